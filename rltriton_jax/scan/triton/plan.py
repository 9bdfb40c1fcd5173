"""From a recurrence and the shapes of its operands to what the kernel is told, and what it writes."""

import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from rltriton_jax.scan.plain import scan as plain
from rltriton_jax.scan.recurrence import COMPOSITE, START, Read, Recurrence
from rltriton_jax.scan.triton.program import Array, Program, ReadFrom, Stage
from rltriton_jax.scan.triton.tiles import Tile, choose_tile


@dataclass(frozen=True)
class Plan:
    """One launch of the kernel.

    Attributes:
      recurrence: whose algebra it is.
      program: all else that the kernel is told.
      results: what it writes.
      scratch: composites and flags, where programs wait for each other; else nothing.
    """

    recurrence: Recurrence
    program: Program
    results: list[jax.ShapeDtypeStruct]
    scratch: list[jax.ShapeDtypeStruct]

    @property
    def programs(self) -> int:
        """How many programs the grid has."""
        return self.program.blocks * self.program.tile.chunks


def _strides(shape):
    return tuple(math.prod(shape[i + 1 :]) if size != 1 else 0 for i, size in enumerate(shape))


def _merged(sizes, strides):
    """Batch axes, last to first, as (size, stride in each array); those that arrays step through as one are one."""
    merged: list[tuple[int, list[int]]] = []
    for k in reversed(range(len(sizes))):
        if sizes[k] == 1:
            continue
        column = [s[k] for s in strides]
        size, inner = merged[-1] if merged else (0, [])
        if merged and all(a == b * size for a, b in zip(column, inner)):
            merged[-1] = (size * sizes[k], inner)
        else:
            merged.append((sizes[k], column))
    return merged or [(1, [0] * len(strides))]


def _read_from(read: Read, recurrence: Recurrence, operands, steps: int, time_axis: int) -> ReadFrom:
    """`read` with its operands found, but for `unshifted`."""
    position = {name: i for i, name in enumerate(recurrence.operands)}
    if read == START:
        return ReadFrom("start")
    kind = {"number": "value", "flag": "flag"}.get(read.kind, "integer")
    array = None if read.operand is None else position[read.operand]
    held = steps if array is None else operands[array].shape[time_axis]
    shift = 0 if held == 1 != steps else read.shift
    if shift and held == 1:
        array = None  # the only step has no neighbour
    return ReadFrom(
        kind,
        array,
        shift,
        held,
        beyond=None if read.beyond is None or not shift else position[read.beyond],
        weights=None if read.weights is None else position[read.weights],
        per_step=array is not None and held != 1,
    )


def _unshifted(read: Read, found: ReadFrom, unique: list[Read]) -> int | None:
    """The position of the read of the same operand without a shift, if `read` has a shift and there is one."""
    alone = Read(read.operand, kind=read.kind)
    return unique.index(alone) if found.shift and found.array is not None and alone in unique else None


LONGEST, SECTOR = 16, 32
"""How many bytes a thread loads at once, and memory at least."""


def _vector(array: Array, itemsize: int, steps: int, steps_adjoin: bool, summed: bool, tile: Tile) -> int:
    """How many steps of an array are read or written at once.

    Steps that adjoin are as many as one load takes, if every row begins where that is aligned. Else threads load what
    adjoins and exchange it, all of a group at once: so also with elements of adjoining rows that are narrow, but fill
    sectors, of which each thread then has several rows.
    """
    whole = tile.slices & -tile.slices
    if summed:
        return min(whole, 4) if steps_adjoin else 1
    if array.time_stride != 1:
        fills_sectors = array.time_stride and 1 in array.batch_strides and tile.block * itemsize >= SECTOR
        return whole if itemsize < 4 and fills_sectors else 1
    vector = min(whole, LONGEST // itemsize)
    while vector * itemsize >= min(8, 4 * itemsize):
        if all(n % vector == 0 for n in (steps, *array.batch_strides)):
            return vector
        vector //= 2
    return whole


def _stage(recurrence: Recurrence, unique: list[Read], results_of: list[str], is_number: bool = True) -> Stage:
    sources = (
        len(unique) + results_of.index(r.operand) if r.operand in results_of else unique.index(r)
        for r in recurrence.reads
    )
    return Stage(recurrence.reads._fields, tuple(sources), is_number)


def make_plan(
    recurrence: Recurrence,
    operands,
    *,
    time_axis: int,
    dtype,
    wanted,
    tile: Tile | None = None,
    carried: int | None = None,
) -> Plan:
    """`operands` need only shapes and dtypes, and `tile` overrides the choice.

    `carried` tells the choice how many recurrences there were, if these had launches of their own.
    """
    shape = plain.output_shape(operands, time_axis)
    steps = shape[time_axis]
    if any(not isinstance(size, int) for size in shape):
        raise ValueError(
            f"the Triton kernel needs static shapes, but this one is {shape}; export with static dimensions for "
            "cuda and rocm, or with implementation='associative_scan'."
        )
    stored = () if wanted == COMPOSITE else wanted
    state = plain.compute_dtype(dtype)
    outputs = [jax.ShapeDtypeStruct(shape, state if i == recurrence.state else dtype) for i in stored]
    steps_adjoin = _strides(shape)[time_axis] == 1
    strides = [_strides(x.shape) for x in (*operands, *outputs)]
    batch_axes = [a for a in range(len(shape)) if a != time_axis]
    batch = _merged([shape[a] for a in batch_axes], [[s[a] for a in batch_axes] for s in strides])
    arrays = [Array(s[time_axis], tuple(column[i] for _, column in batch)) for i, s in enumerate(strides)]

    results_of = [name for name, _ in recurrence.carried]
    every = [r for each in (*dict(recurrence.carried).values(), recurrence) for r in each.reads]
    unique = list(dict.fromkeys(r for r in every if r.operand not in results_of))
    unique.sort(key=lambda r: r.shift != 0)  # `kernel.values_of` takes what is shifted from what is not
    found = [_read_from(r, recurrence, operands, steps, time_axis) for r in unique]
    reads = tuple(replace(f, unshifted=_unshifted(r, f, unique)) for r, f in zip(unique, found, strict=True))

    terms = plain.num_terms(operands)
    rows = math.prod(size for size, _ in batch)
    if tile is None:
        used = {i for r in reads for i in (r.array, r.weights) if i is not None and arrays[i].time_stride}
        streams = sum(terms[i] for i in used) + len(stored)
        tile = choose_tile(
            steps,
            rows,
            steps_adjoin,
            streams,
            len(recurrence.carried) if carried is None else carried,
        )
    summed = {i for r in reads if r.is_sum for i in (r.array, r.weights)}
    program = Program(
        stages=(
            *(
                _stage(inner, unique, results_of, all(r.kind == "number" for r in every if r.operand == name))
                for name, inner in recurrence.carried
            ),
            _stage(recurrence, unique, results_of),
        ),
        reads=reads,
        arrays=tuple(
            replace(array, vector=_vector(array, x.dtype.itemsize, steps, steps_adjoin, i in summed, tile))
            for i, (array, x) in enumerate(zip(arrays, (*operands, *outputs), strict=True))
        ),
        num_operands=len(operands),
        results=tuple(None if i == recurrence.state else i for i in stored),
        initial=None if recurrence.initial is None else recurrence.operands.index(recurrence.initial),
        batch_sizes=tuple(size for size, _ in batch),
        steps=steps,
        rows=rows,
        steps_adjoin=steps_adjoin,
        terms=max(terms),
        reverse=recurrence.reverse,
        finite_weights=recurrence.finite_weights,
        double=state == jnp.float64,
        wide=max(math.prod(x) for x in (shape, *(o.shape for o in operands))) >= 2**31,
        composite=wanted == COMPOSITE,
        tile=tile,
    )
    composites = [jax.ShapeDtypeStruct((tile.chunks, rows), state)] * 2
    flags = jax.ShapeDtypeStruct((tile.chunks, program.blocks), jnp.int32)
    return Plan(
        recurrence,
        program,
        results=composites if program.composite else outputs,
        scratch=[*composites, flags] if program.split else [],
    )
