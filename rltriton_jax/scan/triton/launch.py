"""The kernel as a call of jax_triton's, and what it needs to run."""

import functools
import importlib
import linecache
import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from rltriton_jax.scan.plain import scan as plain
from rltriton_jax.scan.recurrence import COMPOSITE, Recurrence
from rltriton_jax.scan.triton.plan import Plan, make_plan
from rltriton_jax.scan.triton.target import compute_capability, mend_rocm
from rltriton_jax.versions import numbers

MAX_TERMS = 16
"""Weighted sums of more terms than this are taken by XLA before the kernel.

Measured on one NVIDIA H200, Retrace of 4096 x 128, rows adjoining, as the ratio to an elementwise pass over the same
bytes, the kernel's sum and XLA's before it: 4 terms 0.80 and 1.00, 8 terms 0.87 and 1.04, 16 terms 0.91 and 1.02, 64
terms 2.15 and 1.06.
"""

INSTALL = "pip install 'rltriton-jax[cuda12]' (or [cuda13])"

DTYPES = frozenset(
    [
        "bool",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        *(f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32, 64)),
    ]
)
"""What the kernel reads as it lies; anything else (int4, float8) is cast before it, to the scan's own dtype."""

CONSTANTS = ("COEFFICIENTS", "OUTPUTS", "PROGRAM")


def import_failure(*names: str) -> str | None:
    """Why one of the modules cannot be imported, with what mends it; None if all can."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            return (
                f"import {name} failed ({type(error).__name__}: {error}); install the kernel's packages with {INSTALL}"
            )
    return None


def why_no_triton() -> str | None:
    """Why Triton can neither compile nor interpret a kernel here, with what mends it; None if it can."""
    if (reason := import_failure("triton", "triton.language")) is not None:
        return reason
    from triton import knobs

    if knobs.runtime.interpret:
        return "TRITON_INTERPRET is set, so that Triton's functions are not what the kernel is made of; unset it"
    return None


@functools.cache
def why_unavailable() -> str | None:
    """Why the kernel cannot run here, with what mends it; None if it can."""
    if (reason := why_no_triton() or import_failure("jax_triton")) is not None:
        return reason
    import jax_triton
    import triton

    if not hasattr(importlib.import_module("jaxlib.gpu_triton"), "TritonKernel"):
        return f"jax's plugin for GPUs is not installed; install the kernel's packages with {INSTALL}"
    found = {
        name: getattr(module, "__version__", "") for name, module in (("triton", triton), ("jax-triton", jax_triton))
    }
    for name, version in found.items():
        if not numbers(version):
            return (
                f"{name} says {version!r} is its version, which is none; install the kernel's packages with {INSTALL}"
            )
    needed = (3, 6) if _before_0_4(jax_triton) else (3, 7)
    if numbers(triton.__version__) < needed:
        return (
            f"triton {triton.__version__} is older than the {needed[0]}.{needed[1]} that jax-triton "
            f"{jax_triton.__version__} needs; upgrade both with {INSTALL}"
        )
    return None


def _before_0_4(jax_triton) -> bool:
    return numbers(jax_triton.__version__) < (0, 4)


def constants(plan: Plan) -> dict[str, Any]:
    """The kernel's constexpr arguments. Triton's cache sees the source of functions that are arguments themselves."""
    from rltriton_jax.scan.triton.algebra import translate

    algebra = (translate(plan.recurrence.coefficients), translate(plan.recurrence.outputs))
    found: dict[str, Any] = dict(zip(CONSTANTS, (*algebra, plan.program), strict=True))
    for i, (_, inner) in enumerate(plan.recurrence.carried):
        found |= {f"COEFFICIENTS{i}": translate(inner.coefficients), f"OUTPUTS{i}": translate(inner.outputs)}
    return found


@functools.cache
def kernel_for(num_inputs: int, num_results: int, split: bool, repeated_flags: bool, num_carried: int = 0):
    """The kernel for so many pointers: they are passed one by one, and the template takes tuples of them.

    A split scan also takes the flags, an operand of zeros, and two results of scratch; `repeated_flags` is for a
    jax_triton that passes the result which shares the flags' memory as one more pointer.
    """
    from rltriton_jax.scan.triton import kernel

    inputs = [f"in{i}" for i in range(num_inputs)]
    outs = [f"out{i}" for i in range(num_results)]
    scratch = ["scratch_w", "scratch_u", "flags"] if split else []
    pointers = [*inputs, *scratch[2:], *outs, *scratch[:2], *(["same_flags"] if split and repeated_flags else [])]
    carried = [f"{kind}{i}" for i in range(num_carried) for kind in CONSTANTS[:2]]

    def together(names):
        return f"({''.join(name + ', ' for name in names)})"

    source = (
        f"def affine_scan({', '.join([*pointers, *(f'{c}: tl.constexpr' for c in (*CONSTANTS, *carried))])}):\n"
        f"    scan_tile({together(inputs)}, {together(outs)}, {together(scratch)},\n"
        f"              {', '.join(CONSTANTS)}, {together(carried)})\n"
    )
    name = f"<affine_scan {num_inputs} {num_results} {split} {repeated_flags} {num_carried}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace = dict(vars(kernel))
    exec(compile(source, name, "exec"), namespace)
    return kernel.triton.jit(namespace["affine_scan"])


def scan_with(run: Callable[..., Any], *operands, recurrence: Recurrence, time_axis: int, dtype, wanted):
    """The scan by the kernel; `run(plan, operands)` gives what it writes."""
    if not all(isinstance(n, int) and 0 < n <= MAX_TERMS for n in plain.num_terms(operands)):
        recurrence, operands = plain.sums_taken(recurrence, operands, dtype=dtype)
    state = plain.compute_dtype(dtype)
    operands = tuple(x if x.dtype.name in DTYPES else x.astype(state) for x in operands)
    layout = {"time_axis": time_axis, "dtype": dtype, "wanted": wanted}
    shape = plain.output_shape(operands, time_axis)
    if 0 in shape:
        return plain.affine_scan(*operands, recurrence=recurrence, implementation="associative_scan", **layout)
    plan = make_plan(recurrence, operands, **layout)
    if not plan.program.in_one_pass:
        one = functools.partial(scan_with, run, time_axis=time_axis)
        recurrence, operands = plain.in_stages(recurrence, operands, one, dtype=dtype)
        plan = make_plan(recurrence, operands, carried=plan.program.num_carried, **layout)
    written = run(plan, operands)
    if wanted != COMPOSITE:
        return tuple(written)
    w, u = plain.reduce_composites(*written, axis=0, reverse=False)
    shape = (*shape[:time_axis], 1, *shape[time_axis + 1 :])
    return w.reshape(shape), u.reshape(shape)


def run_on_gpu(plan: Plan, operands, *, platform: str):
    """A Triton call, for a device of `platform`: cuda or rocm."""
    import jax_triton

    if platform == "rocm":
        mend_rocm()
    results = [*plan.results, *plan.scratch]
    old = _before_0_4(jax_triton)
    options: dict[str, Any] = {}
    if old:
        options["out_shape"] = results
    else:
        # JAX's ptxas may be older than Triton: ask for PTX that it reads.
        cuda = {"ptx_version": 87} if platform == "cuda" else {}
        options |= {"out_type": results, "backend_options": {"enable_fp_fusion": True, **cuda}}
    flags = ()
    if plan.scratch:
        flags = (jnp.zeros(results[-1].shape, results[-1].dtype),)
        options["input_output_aliases"] = {len(operands): len(results) - 1}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "input_output_aliases is deprecated", DeprecationWarning)
        written = jax_triton.triton_call(
            *operands,
            *flags,
            kernel=kernel_for(len(operands), len(plan.results), bool(plan.scratch), old, plan.program.num_carried),
            grid=(plan.programs,),
            num_warps=plan.program.tile.warps,
            num_stages=1,
            compute_capability=compute_capability(platform),
            **options,
            **constants(plan),
        )
    return written[: len(plan.results)]
