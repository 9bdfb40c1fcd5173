"""The one primitive, `affine_scan_p`, and its rules.

Operands have one rank, but those of a weighted sum have one axis more, the last, for its terms. On every other axis an
operand has the full size or 1 (it is then the same all along it), except that on `time_axis` one may hold T + 1 steps.
Every axis but these two is batch.

Parameters: `recurrence`; `time_axis`; `dtype` of the outputs; `outputs`, the indices of those wanted, or COMPOSITE;
`implementation`, a name or None for the platform's own.
"""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, partial_eval, xla

from rltriton_jax.scan import lax_scan
from rltriton_jax.scan.devices import is_partly_manual, is_split_by_xla, is_spread, needs_devices, spread
from rltriton_jax.scan.implementation import resolve_implementation
from rltriton_jax.scan.jax_internals import check_under_checkify
from rltriton_jax.scan.neighbours import edge_row
from rltriton_jax.scan.products import mul0, scaled, sum_to
from rltriton_jax.scan.recurrence import COMPOSITE, Recurrence, depends, is_linear, linear, weight_shift, without_sums
from rltriton_jax.scan.rules import aligned, bind, result_aval
from rltriton_jax.scan.time_shards import divisible, scan_part

affine_scan_p = needs_devices(Primitive("affine_scan"))
affine_scan_p.multiple_results = True
affine_scan_p.def_impl(functools.partial(xla.apply_primitive, affine_scan_p))


def affine_scan(
    recurrence: Recurrence, operands: Sequence[jax.Array], *, time_axis: int, dtype, implementation: str | None = None
) -> tuple[jax.Array, ...]:
    """Binds the primitive: all outputs of `recurrence`, of the operands' common shape with T steps."""
    return tuple(
        bind(
            affine_scan_p,
            *operands,
            recurrence=recurrence,
            time_axis=time_axis,
            dtype=jnp.dtype(dtype),
            outputs=tuple(range(recurrence.num_outputs)),
            implementation=resolve_implementation(implementation),
        )
    )


@affine_scan_p.def_abstract_eval
def _abstract_eval(*avals, recurrence, time_axis, dtype, outputs, implementation):
    shape = lax_scan.output_shape(avals, time_axis)
    state = lax_scan.compute_dtype(dtype)
    if outputs == COMPOSITE:
        return [result_aval(avals, (*shape[:time_axis], 1, *shape[time_axis + 1 :]), state)] * 2
    return [result_aval(avals, shape, state if i == recurrence.state else dtype) for i in outputs]


def _check_flags(*operands, recurrence, **_):
    """What a caller cannot see of traced flags: each holds 0 or 1. A bool cannot hold anything else."""
    flags = {r.operand for r in recurrence.reads if r.flag}
    for name, x in zip(recurrence.operands, operands, strict=True):
        if name in flags and x.dtype != jnp.bool_:
            checkify.debug_check(jnp.all((x == 0) | (x == 1)), f"{name} holds flags that are neither 0 nor 1")


check_under_checkify(affine_scan_p, _check_flags)


def _dce(used, *rest):
    eqn = rest[-1]  # JAX 0.12 passes the live inputs too
    if not any(used):
        return [False] * len(eqn.invars), None
    if eqn.params["outputs"] == COMPOSITE:
        return [True] * len(eqn.invars), eqn
    keep = [i for i, u in enumerate(used) if u]
    params = {**eqn.params, "outputs": tuple(eqn.params["outputs"][i] for i in keep)}
    return [True] * len(eqn.invars), eqn.replace(outvars=[eqn.outvars[i] for i in keep], params=params)


partial_eval.dce_rules[affine_scan_p] = _dce


def _batch(args, dims, *, time_axis, **params):
    args, axis = aligned(args, dims)
    results = bind(affine_scan_p, *args, time_axis=time_axis + (axis <= time_axis), **params)
    return results, [axis] * len(results)


batching.primitive_batchers[affine_scan_p] = _batch


def _entering_finite(x, w, initial, *, time_axis, reverse):
    """The state that enters each step, as the factor of the weight's tangent: garbage behind a cut counts as 0."""
    previous = lax_scan.entering(x, initial, time_axis=time_axis, reverse=reverse)
    return jnp.where((w == 0) & ~jnp.isfinite(previous), 0, previous)


def _finite(w):
    """The weights of a tangent: one that is not finite made its own row's output so, and must spoil no other row."""
    return jnp.where(jnp.isfinite(w), w, 0)


def _partials(function, arguments, i):
    """The derivative of each output of an elementwise `function` in argument i; None where it cannot depend on it."""

    def of(x):
        return function(*arguments[:i], x, *arguments[i + 1 :])

    moves = depends(function, [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments], i)
    partials = jax.jvp(of, (arguments[i],), (jnp.ones_like(arguments[i]),))[1]
    return [p if m else None for p, m in zip(partials, moves, strict=True)]


def _differential(function, arguments, tangents):
    """The differential of each output of an elementwise `function`: sum of tangent * partial, None where it is 0.

    Spelled out, since in the derivative that JAX would take of the algebra a cotangent of 0 meets garbage in a product.
    """
    parts = [
        [None if partial is None else scaled(tangent, partial) for partial in _partials(function, arguments, i)]
        for i, tangent in tangents.items()
    ]
    return [functools.reduce(_plus, column) for column in zip(*parts, strict=True)]


def _plus(a, b):
    """a + b, where None is 0."""
    return b if a is None else a if b is None else a + b


def _moving(tangents):
    return [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]


def _jvp_of_moving(function, primals, tangents):
    """`function` of a list of all primals, and its tangent; those that do not move have none to instantiate."""
    moving = _moving(tangents)

    def of(*moved):
        full = list(primals)
        for i, value in zip(moving, moved, strict=True):
            full[i] = value
        return function(full)

    return jax.jvp(of, tuple(primals[i] for i in moving), tuple(tangents[i] for i in moving))


def _with_sums_taken(recurrence, primals, tangents, dtype):
    """The recurrence, primals and tangents of which every weighted sum is an operand like the others."""
    plain, sums = without_sums(recurrence)
    known = dict(zip(recurrence.operands, tangents, strict=True))
    moving = {recurrence.operands[i] for i in _moving(tangents)}
    taken, dtaken = _jvp_of_moving(
        lambda full: lax_scan.sums_taken(recurrence, full, dtype=dtype)[1], primals, tangents
    )
    for name, x, dx in zip(plain.operands, taken, dtaken, strict=True):
        if name in sums:
            still = moving.isdisjoint(sums[name])
            known[name] = ad.Zero(jax.typeof(x).to_tangent_aval()) if still else dx
    return plain, taken, [known[name] for name in plain.operands]


def _jvp(primals, tangents, *, recurrence, outputs, **params):
    """dx is the bare recurrence driven by du + dw * previous; all else is the derivative of the algebra."""
    if any(r.weights is not None for r in recurrence.reads):
        recurrence, primals, tangents = _with_sums_taken(recurrence, primals, tangents, params["dtype"])
    wanted = outputs if recurrence.state in outputs else (*outputs, recurrence.state)
    results = bind(affine_scan_p, *primals, recurrence=recurrence, outputs=wanted, **params)
    x = results[wanted.index(recurrence.state)]
    results = results[: len(outputs)]

    rule = _jvp_linear if is_linear(recurrence) else _jvp_fused
    outs = rule(primals, tangents, x, recurrence=recurrence, outputs=outputs, **params)
    return results, outs


def _jvp_linear(primals, tangents, x, *, recurrence, time_axis, dtype, outputs, implementation):
    weights = primals[1]
    dinputs, dweights, *dinitial = tangents
    shift = weight_shift(recurrence)
    driving = None if isinstance(dinputs, ad.Zero) else dinputs.astype(x.dtype)
    if not isinstance(dweights, ad.Zero):
        in_place = shift == 0 or weights.shape[time_axis] == 1
        w, dw = (a if in_place else lax_scan.shifted(a, shift, None, time_axis) for a in (weights, dweights))
        initial = lax_scan.initial_state(recurrence, primals, dtype)
        previous = _entering_finite(x, w, initial, time_axis=time_axis, reverse=recurrence.reverse)
        change = scaled(dw.astype(x.dtype), previous)
        driving = _plus(driving, change)
    if driving is None:
        driving = jnp.zeros(x.shape, x.dtype)
    dx = _bind_linear(
        driving, _finite(weights), None if not dinitial or isinstance(dinitial[0], ad.Zero) else dinitial[0],
        reverse=recurrence.reverse, shift=shift, time_axis=time_axis, dtype=x.dtype, implementation=implementation,
    )  # fmt: skip
    return [dx if i == recurrence.state else dx.astype(dtype) for i in outputs]


def _jvp_fused(primals, tangents, x, *, recurrence, time_axis, dtype, outputs, implementation):
    layout = {"time_axis": time_axis, "reverse": recurrence.reverse}
    names = {recurrence.operands[i] for i in _moving(tangents)}
    initial = lax_scan.initial_state(recurrence, primals, dtype)
    dinitial = None
    if recurrence.initial in names:
        dinitial = tangents[recurrence.operands.index(recurrence.initial)].astype(x.dtype)

    gather = functools.partial(lax_scan.gather, recurrence, time_axis=time_axis, dtype=dtype)
    reads, dreads = _jvp_of_moving(gather, primals, tangents)
    changes = {i: dreads[i] for i, r in enumerate(recurrence.reads) if not r.flag and {r.operand, r.beyond} & names}
    w, _ = recurrence.coefficients(*reads)
    dw, driving = _differential(recurrence.coefficients, reads, changes) if changes else (None, None)
    if dw is not None:
        driving = _plus(driving, scaled(dw, _entering_finite(x, w, initial, **layout)))
    driving = jnp.zeros(x.shape, x.dtype) if driving is None else jnp.broadcast_to(driving, x.shape)
    dx = _bind_linear(
        driving, _finite(w), dinitial,
        reverse=recurrence.reverse, shift=0, time_axis=time_axis, dtype=x.dtype, implementation=implementation,
    )  # fmt: skip

    arguments = [*reads, x, lax_scan.entering(x, initial, **layout)]
    changes |= {len(reads): dx, len(reads) + 1: lax_scan.entering(dx, dinitial, **layout)}
    douts = [*_differential(recurrence.outputs, arguments, changes), dx]
    zeros = jnp.zeros(x.shape, dtype)
    return [
        dx
        if i == recurrence.state
        else zeros
        if (d := douts[i]) is None
        else jnp.broadcast_to(d, x.shape).astype(dtype)
        for i in outputs
    ]


def _bind_linear(inputs, weights, initial, *, reverse, shift, time_axis, dtype, implementation):
    recurrence = linear(reverse=reverse, weight_shift=shift, initial=initial is not None)
    operands = (inputs, weights) if initial is None else (inputs, weights, initial)
    return bind(
        affine_scan_p,
        *operands,
        recurrence=recurrence,
        time_axis=time_axis,
        dtype=dtype,
        outputs=(0,),
        implementation=implementation,
    )[0]


ad.primitive_jvps[affine_scan_p] = _jvp


def _transpose(cotangents, inputs, weights, *initial, recurrence, time_axis, dtype, outputs, implementation):
    """Backward in u: the scan in the other direction, each weight on the same pair of steps, so read one step over."""
    if not is_linear(recurrence) or ad.is_undefined_primal(weights):
        raise NotImplementedError("affine_scan is linear in its inputs and its initial state only.")
    cts = [c for c in cotangents if not isinstance(c, ad.Zero)]
    if not cts:
        return [ad.Zero(a.aval) if ad.is_undefined_primal(a) else None for a in (inputs, weights, *initial)]
    state = lax_scan.compute_dtype(dtype)
    shift = weight_shift(recurrence)
    back = 1 if recurrence.reverse else -1
    ct = _bind_linear(
        sum(c.astype(state) for c in cts),
        weights,
        None,
        reverse=not recurrence.reverse,
        shift=0 if shift else -back,
        time_axis=time_axis,
        dtype=state,
        implementation=implementation,
    )
    result: list[Any] = [None, None, *([None] * len(initial))]
    if ad.is_undefined_primal(inputs):
        result[0] = sum_to(ct, inputs.aval.shape).astype(inputs.aval.dtype)
    if initial and ad.is_undefined_primal(initial[0]):
        w = weights.astype(state)
        first = 1 if recurrence.reverse else -1
        if w.shape[time_axis] != 1:
            w = edge_row(w, first, time_axis)
        seed = mul0(w, edge_row(ct, first, time_axis))
        result[2] = sum_to(seed, initial[0].aval.shape).astype(initial[0].aval.dtype)
    return result


ad.primitive_transposes[affine_scan_p] = _transpose


def _lower_spread(ctx, *operands, recurrence, time_axis, dtype, outputs, implementation):
    """Each device scans what it holds; within, the primitive is bound again, to that. XLA takes sums before."""
    if implementation == "interpret" and is_split_by_xla(ctx):
        raise ValueError(
            "implementation='interpret' calls back to the host, which XLA cannot split over devices; use one device, "
            "jax.shard_map, or a mesh with AxisType.Explicit."
        )
    params = {"time_axis": time_axis, "dtype": dtype, "implementation": implementation}

    def whole(*operands):
        plain, operands = lax_scan.sums_taken(recurrence, operands, dtype=dtype)
        local, operands = divisible(plain, operands, time_axis)

        def part(names, *operands):
            if not names:
                return affine_scan_p.bind(*operands, recurrence=local, outputs=outputs, **params)
            scan = functools.partial(affine_scan_p.bind, implementation=implementation)
            return scan_part(
                names, *operands, recurrence=local, time_axis=time_axis, dtype=dtype, outputs=outputs, scan=scan
            )

        return spread(ctx, part, time_axis)(*operands)

    return mlir.lower_fun(whole, multiple_results=True)(ctx, *operands)


def _on_each_device(rule):
    """A lowering rule for one device made one for several."""

    def lower(ctx, *operands, **params):
        return (_lower_spread if is_spread(ctx) else rule)(ctx, *operands, **params)

    return lower


def _lax_rule(*operands, implementation, **params):
    return lax_scan.affine_scan(*operands, sequential=implementation == "scan", **params)


_lower_lax = mlir.lower_fun(_lax_rule, multiple_results=True)


def _lower_elsewhere(ctx, *operands, implementation, **params):
    if implementation in ("triton", "interpret"):
        platforms = ", ".join(ctx.module_context.platforms)
        needs = "a CUDA or ROCm device" if implementation == "triton" else "the CPU platform"
        raise ValueError(
            f"implementation={implementation!r} needs {needs}, but this computation is being lowered for {platforms}; "
            "use implementation=None, which suits every platform."
        )
    return _lower_lax(ctx, *operands, implementation=implementation, **params)


def _lower_cpu(ctx, *operands, implementation, **params):
    if implementation != "interpret":
        return _lower_elsewhere(ctx, *operands, implementation=implementation, **params)
    from rltriton_jax.scan import launch
    from rltriton_jax.scan.interpret import interpreted

    if (reason := launch.missing("triton")) is not None:
        raise ValueError(f"implementation='interpret' cannot run: {reason}")
    scan = functools.partial(launch.scan_by, interpreted)
    return mlir.lower_fun(scan, multiple_results=True)(ctx, *operands, **params)


def _lower_gpu(ctx, *operands, implementation, **params):
    if implementation not in (None, "triton"):
        return _lower_elsewhere(ctx, *operands, implementation=implementation, **params)
    from rltriton_jax.scan import launch

    if is_partly_manual(ctx):
        raise ValueError(
            "a kernel cannot run in a shard_map over some axes of the mesh only: XLA would gather its operands to "
            "split it over the others; map over all axes, use a mesh with AxisType.Explicit, or "
            "implementation='associative_scan'."
        )
    problem = launch.problem()
    if problem is None:
        by = functools.partial(launch.launched, platform=ctx.module_context.platforms[0])
        scan = functools.partial(launch.scan_by, by)
        return mlir.lower_fun(scan, multiple_results=True)(ctx, *operands, **params)
    if implementation == "triton":
        raise ValueError(f"implementation='triton' cannot run: {problem}")
    warnings.warn(f"The Triton kernel cannot run, lax.associative_scan takes its place: {problem}", stacklevel=2)
    return _lower_lax(ctx, *operands, implementation=implementation, **params)


mlir.register_lowering(affine_scan_p, _on_each_device(_lower_elsewhere))
mlir.register_lowering(affine_scan_p, _on_each_device(_lower_cpu), platform="cpu")
mlir.register_lowering(affine_scan_p, _on_each_device(_lower_gpu), platform="cuda")
mlir.register_lowering(affine_scan_p, _on_each_device(_lower_gpu), platform="rocm")
