"""Launching the kernel: what it reads and writes, the tile it uses, and the call through jax_triton."""

import functools
import importlib
import linecache
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rltriton_jax.scan import lax_scan
from rltriton_jax.scan.recurrence import COMPOSITE, START, Read, Recurrence
from rltriton_jax.scan.tiles import Tile, choose_tile

COMPUTE_CAPABILITY: int | None = None
"""The device to compile for, as 90 for sm_90; None asks the device. Set only to lower on a machine without one."""

MAX_TERMS = 16
"""Weighted sums of more terms than this are taken by XLA before the kernel.

Measured on one NVIDIA H200, Retrace of 4096 x 128, rows adjoining, as the ratio to an elementwise pass over the same
bytes, the kernel's sum and XLA's before it: 4 terms 0.80 and 1.00, 8 terms 0.87 and 1.04, 16 terms 0.91 and 1.02, 64
terms 2.15 and 1.06.
"""

INSTALL = "pip install 'rltriton-jax[cuda12]' (or [cuda13])"


def missing(*names: str) -> str | None:
    """Why one of the modules cannot be imported, with what mends it; None if all can."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            return (
                f"import {name} failed ({type(error).__name__}: {error}); install the kernel's packages with {INSTALL}"
            )
    return None


@functools.cache
def problem() -> str | None:
    """Why the kernel cannot run here, with what mends it; None if it can."""
    if (reason := missing("triton", "jax_triton")) is not None:
        return reason
    import jax_triton
    import triton

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    needed = (3, 6) if _jax_triton_version(jax_triton) < (0, 4) else (3, 7)
    if not hasattr(importlib.import_module("jaxlib.gpu_triton"), "TritonKernel"):
        return f"jax's plugin for GPUs is not installed; install the kernel's packages with {INSTALL}"
    if version < needed:
        return (
            f"triton {triton.__version__} is older than the {needed[0]}.{needed[1]} that jax-triton "
            f"{jax_triton.__version__} needs; upgrade both with {INSTALL}"
        )
    return None


def _jax_triton_version(jax_triton) -> tuple[int, ...]:
    return tuple(int(part) for part in jax_triton.__version__.split(".")[:2])


@dataclass(frozen=True)
class Plan:
    """A scan as the kernel sees it: a set of rows, each with T steps, and how to find an element of each array.

    Attributes:
      constants: every constexpr argument of the kernel.
      tile: what one program works on.
      programs: how many there are.
      wanted: what the kernel writes, as shapes and dtypes.
      scratch: composites and flags, where programs wait for each other; else nothing.
    """

    constants: dict[str, Any]
    tile: Tile
    programs: int
    wanted: list[jax.ShapeDtypeStruct]
    scratch: list[jax.ShapeDtypeStruct]


def _strides(shape):
    return tuple(math.prod(shape[i + 1 :]) if size != 1 else 0 for i, size in enumerate(shape))


def _merged(sizes, strides):
    """Batch axes, last to first, with neighbours merged that every array steps through as one."""
    merged: list[list[Any]] = []
    for k in reversed(range(len(sizes))):
        if sizes[k] == 1:
            continue
        column = [s[k] for s in strides]
        if merged and all(a == b * merged[-1][0] for a, b in zip(column, merged[-1][1])):
            merged[-1][0] *= sizes[k]
        else:
            merged.append([sizes[k], column])
    return merged or [[1, [0] * len(strides)]]


def make_plan(recurrence: Recurrence, operands, *, time_axis: int, dtype, outputs, tile: Tile | None = None) -> Plan:
    """`operands` need only shapes and dtypes; `tile` overrides the choice."""
    import triton.language as tl

    from rltriton_jax.scan.tile_math import translate

    shape = lax_scan.output_shape(operands, time_axis)
    steps = shape[time_axis]
    if any(not isinstance(size, int) for size in shape):
        raise ValueError(
            f"the Triton kernel needs static shapes, but this one is {shape}; export with static dimensions for "
            "cuda and rocm, or with implementation='associative_scan'."
        )
    wanted = () if outputs == COMPOSITE else outputs
    strides = [_strides(o.shape) for o in operands] + [_strides(shape)] * len(wanted)
    terms = lax_scan.num_terms(operands)
    batch_axes = [a for a in range(len(shape)) if a != time_axis]
    batch = _merged([shape[a] for a in batch_axes], [[s[a] for a in batch_axes] for s in strides])
    slot = {name: i for i, name in enumerate(recurrence.operands)}
    access = tuple(
        (
            i if i < len(operands) else i - len(operands),
            s[time_axis],
            *(column[i] for _, column in batch),
        )
        for i, s in enumerate(strides)
    )

    def read(r):
        if r == START:
            return (2, -1, 0, 0, -1, -1, -1)
        operand = -1 if r.operand is None else slot[r.operand]
        rows = steps if r.operand is None else operands[operand].shape[time_axis]
        shift = 0 if rows == 1 != steps else r.shift
        if shift and rows == 1:
            operand = -1  # the only step has no neighbour
        beyond = -1 if r.beyond is None or not shift else slot[r.beyond]
        twin = _twin(recurrence, r) if shift and operand >= 0 else -1
        return (int(r.flag), operand, shift, rows, beyond, twin, -1 if r.weights is None else slot[r.weights])

    reads = tuple(read(r) for r in recurrence.reads)
    rows = math.prod(size for size, _ in batch)
    sizes = [o.size for o in operands] + [math.prod(shape)]
    if tile is None:
        used = {i for r in reads for i in (r[1], r[6]) if i >= 0 and access[i][1]}
        tile = choose_tile(steps, rows, _strides(shape)[time_axis] == 1, sum(terms[i] for i in used) + len(wanted))
    state = lax_scan.compute_dtype(dtype)
    constants = {
        "COEFFICIENTS": translate(recurrence.coefficients),
        "OUTPUTS": translate(recurrence.outputs),
        "READS": reads,
        "ACCESS": access,
        "WANTED": tuple(-1 if i == recurrence.state else i for i in wanted),
        "INITIAL": -1 if recurrence.initial is None else slot[recurrence.initial],
        "BATCH": tuple(size for size, _ in batch),
        "T": steps,
        "ROWS": rows,
        "TERMS": max(terms),
        "REVERSE": recurrence.reverse,
        "DTYPE": tl.float64 if state == jnp.float64 else tl.float32,
        "WIDE": max(sizes) >= 2**31,
        "COMPOSITE": outputs == COMPOSITE,
        **tile.constants(),
    }
    blocks = tile.blocks(rows)
    composites = [jax.ShapeDtypeStruct((tile.chunks, rows), state)] * 2
    results = [jax.ShapeDtypeStruct(shape, state if i == recurrence.state else dtype) for i in wanted]
    flags = jax.ShapeDtypeStruct((tile.chunks, blocks), jnp.int32)
    return Plan(
        constants,
        tile,
        blocks * tile.chunks,
        wanted=composites if outputs == COMPOSITE else results,
        scratch=[*composites, flags] if tile.chunks > 1 and outputs != COMPOSITE else [],
    )


def _twin(recurrence: Recurrence, read: Read) -> int:
    """The unshifted read of the same operand, or -1."""
    twins = [i for i, r in enumerate(recurrence.reads) if r == Read(read.operand, flag=read.flag)]
    return twins[0] if twins else -1


@functools.cache
def entry(num_inputs: int, num_outputs: int, split: bool, repeated_flags: bool):
    """The kernel for so many pointers: they are passed one by one, and the template takes tuples of them.

    A split scan also takes the flags, an operand of zeros, and two results of scratch; `repeated_flags` is for a
    jax_triton that passes the result which shares the flags' memory as one more pointer.
    """
    from rltriton_jax.scan import kernel

    inputs = [f"in{i}" for i in range(num_inputs)]
    outs = [f"out{i}" for i in range(num_outputs)]
    scratch = ["scratch_w", "scratch_u", "flags"] if split else []
    pointers = [*inputs, *scratch[2:], *outs, *scratch[:2], *(["same_flags"] if split and repeated_flags else [])]
    constants = [*CONSTANTS, *Tile.CONSTANTS]
    source = (
        f"def affine_scan({', '.join([*pointers, *(f'{c}: tl.constexpr' for c in constants)])}):\n"
        f"    scan_tile(({', '.join(inputs)},), ({', '.join(outs)},), ({''.join(s + ', ' for s in scratch)}),\n"
        f"              {', '.join(constants)})\n"
    )
    name = f"<affine_scan {num_inputs} {num_outputs} {split} {repeated_flags}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace = dict(vars(kernel))
    exec(compile(source, name, "exec"), namespace)
    return kernel.triton.jit(namespace["affine_scan"])


def scan_by(launch: Callable[..., Any], *operands, recurrence: Recurrence, time_axis: int, dtype, outputs):
    """The scan by the kernel; `launch(plan, operands)` gives what it writes."""
    if not all(isinstance(n, int) and 0 < n <= MAX_TERMS for n in lax_scan.num_terms(operands)):
        recurrence, operands = lax_scan.sums_taken(recurrence, operands, dtype=dtype)
    layout = {"time_axis": time_axis, "dtype": dtype, "outputs": outputs}
    shape = lax_scan.output_shape(operands, time_axis)
    if 0 in shape:
        return lax_scan.affine_scan(*operands, recurrence=recurrence, sequential=False, **layout)
    written = launch(make_plan(recurrence, operands, **layout), operands)
    if outputs != COMPOSITE:
        return tuple(written)
    w, u = lax_scan.reduce_composites(*written, axis=0, reverse=False)
    shape = (*shape[:time_axis], 1, *shape[time_axis + 1 :])
    return w.reshape(shape), u.reshape(shape)


def launched(plan: Plan, operands, *, platform: str):
    """A Triton call."""
    import jax_triton

    results = [*plan.wanted, *plan.scratch]
    old = _jax_triton_version(jax_triton) < (0, 4)
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
            kernel=entry(len(operands), len(plan.wanted), bool(plan.scratch), old),
            grid=(plan.programs,),
            num_warps=plan.tile.warps,
            num_stages=1,
            compute_capability=COMPUTE_CAPABILITY,
            **options,
            **plan.constants,
        )
    return written[: len(plan.wanted)]


CONSTANTS = (
    "COEFFICIENTS", "OUTPUTS", "READS", "ACCESS", "WANTED", "INITIAL", "BATCH", "T", "ROWS",
    "TERMS", "REVERSE", "DTYPE", "WIDE", "COMPOSITE",
)  # fmt: skip
