"""What the primitive becomes on each platform: the kernel on a GPU, plain JAX elsewhere; on several devices, parts."""

import functools
import warnings

from rltriton_jax.scan.implementation import resolve_implementation
from rltriton_jax.scan.jax_internals import mlir, platforms
from rltriton_jax.scan.plain import scan as plain
from rltriton_jax.scan.sharding.devices import (
    is_partly_manual,
    is_split,
    is_split_by_xla,
    lower,
    on_each_shard,
    on_one_device,
)
from rltriton_jax.scan.sharding.split import NOT_SPLIT
from rltriton_jax.scan.sharding.time_shards import scan_part, without_edge_rows
from rltriton_jax.scan.triton import launch


def implementation_on(platform: str, name: str | None = None) -> str:
    """What runs on `platform`, by JAX's name for it, where a call names this implementation, or none."""
    return resolve_implementation(name) or _own(platform)


def _own(platform):
    """What runs where nothing is named."""
    if platform == "cpu":
        return "chunked_scan"
    if platform in ("gpu", "cuda", "rocm") and launch.why_unavailable() is None:
        return "triton"
    return "associative_scan"


def _lower_split(ctx, *operands, recurrence, time_axis, dtype, wanted, implementation):
    """Each device scans what it holds: the primitive is bound again, to that. XLA takes weighted sums beforehand."""
    scan = functools.partial(ctx.primitive.bind, implementation=implementation)

    def whole(*operands, recurrence, dtype, wanted, num_results=1):
        layout = {"time_axis": time_axis, "dtype": dtype, "wanted": wanted}
        plain_recurrence, operands = plain.sums_taken(recurrence, operands, dtype=dtype)
        local, operands = without_edge_rows(plain_recurrence, operands, time_axis)

        def part(time, *operands):
            if time == NOT_SPLIT:
                return scan(*operands, recurrence=local, **layout)
            return scan_part(time, *operands, recurrence=local, scan=scan, **layout)

        return on_each_shard(ctx, part, time_axis, num_results)(*operands)

    def stages(*operands):
        last, operands = plain.in_stages(recurrence, operands, whole, dtype=dtype)
        return whole(*operands, recurrence=last, dtype=dtype, wanted=wanted, num_results=len(ctx.avals_out))

    return lower(ctx, stages, *operands)


def _or_split(rule):
    """A lowering rule for one device made one for any number."""

    def lower_either(ctx, *operands, **params):
        # The interpreter calls back to the host: XLA gathers for that what it splits.
        interpreted = params["implementation"] == "interpret" and is_split_by_xla(ctx)
        return (_lower_split if is_split(ctx) and not interpreted else rule)(ctx, *operands, **params)

    return lower_either


_lower_plain = mlir.lower_fun(plain.affine_scan, multiple_results=True)


def _lower_elsewhere(ctx, *operands, implementation, platform="others", **params):
    if implementation in ("triton", "interpret"):
        needs = "a CUDA or ROCm device" if implementation == "triton" else "the CPU platform"
        raise ValueError(
            f"implementation={implementation!r} needs {needs}, but this computation is being lowered for "
            f"{', '.join(platforms(ctx))}; "
            "use implementation=None, which suits every platform."
        )
    return _lower_plain(ctx, *operands, implementation=implementation or _own(platform), **params)


def _lower_cpu(ctx, *operands, implementation, **params):
    if implementation != "interpret":
        return _lower_elsewhere(ctx, *operands, implementation=implementation, platform="cpu", **params)
    if (reason := launch.why_no_triton()) is not None:
        raise ValueError(f"implementation='interpret' cannot run: {reason}")
    from rltriton_jax.scan.triton.interpret import run_interpreted

    scan = functools.partial(launch.scan_with, run_interpreted)
    if is_partly_manual(ctx):
        raise ValueError(
            "implementation='interpret' calls back to the host, which it cannot in a shard_map over some axes of the "
            "mesh only; map over all axes, or use implementation=None."
        )
    if is_split_by_xla(ctx):
        scan = on_one_device(ctx, scan)
    return mlir.lower_fun(scan, multiple_results=True)(ctx, *operands, **params)


@functools.cache
def warn_once(text):
    warnings.warn(text, stacklevel=3)


def _lower_gpu(ctx, *operands, implementation, platform, **params):
    if implementation not in (None, "triton"):
        return _lower_elsewhere(ctx, *operands, implementation=implementation, **params)
    if is_partly_manual(ctx):
        raise ValueError(
            "a kernel cannot run in a shard_map over some axes of the mesh only: XLA would gather its operands to "
            "split it over the others; map over all axes, use a mesh with AxisType.Explicit, or "
            "implementation='associative_scan'."
        )
    reason = launch.why_unavailable()
    if reason is None:
        run = functools.partial(launch.run_on_gpu, platform=platform)
        scan = functools.partial(launch.scan_with, run)
        return mlir.lower_fun(scan, multiple_results=True)(ctx, *operands, **params)
    if implementation == "triton":
        raise ValueError(f"implementation='triton' cannot run: {reason}")
    warn_once(f"The Triton kernel cannot run, lax.associative_scan takes its place: {reason}")
    return _lower_plain(ctx, *operands, implementation="associative_scan", **params)


LOWERINGS = {
    None: _or_split(_lower_elsewhere),
    "cpu": _or_split(_lower_cpu),
    "cuda": _or_split(functools.partial(_lower_gpu, platform="cuda")),
    "rocm": _or_split(functools.partial(_lower_gpu, platform="rocm")),
}
"""The rule of each platform; None is for all others."""
