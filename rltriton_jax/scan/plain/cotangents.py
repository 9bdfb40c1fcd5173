"""The transposed differential of a recurrence, as one loop whose body holds the algebra's derivative.

Steps that go one way in the scan go the other way here. A step reads what the algebra read there, the state and the one
that entered, and the cotangents of its outputs. It carries on the cotangent of the state that entered, and those of
what the algebra read one step ahead.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from rltriton_jax.scan.plain import loop
from rltriton_jax.scan.plain.chunks import num_chunks
from rltriton_jax.scan.plain.loop import Source
from rltriton_jax.scan.plain.partials import change_of_output, finite_weights, inputs_of_change
from rltriton_jax.scan.plain.products import scaled, unbroadcast
from rltriton_jax.scan.plain.scan import compute_dtype, initial_state, output_shape, sources
from rltriton_jax.scan.recurrence import Recurrence

FEW = 8
"""With up to this many environments the loop is faster than the scan and whole arrays around it, measured on x86-64."""


def moving_reads(recurrence: Recurrence, moving) -> list[int]:
    """The reads that change with the operands of these names."""
    return [i for i, r in enumerate(recurrence.reads) if r.kind == "number" and {r.operand, r.beyond} & set(moving)]


def one_loop_suits(operands, recurrence: Recurrence, *, time_axis: int, moving, chunked: bool) -> bool:
    """Is one loop fast, and writes each step of a cotangent once? Where one is summed or read a step back, no."""
    shape = output_shape(operands, time_axis)
    steps, *batch = shape[time_axis], *shape[:time_axis], *shape[time_axis + 1 :]
    if steps == 0 or math.prod(batch) not in range(1, FEW + 1) or (chunked and num_chunks((steps, *batch)) > 1):
        return False
    named = dict(zip(recurrence.operands, operands, strict=True))
    full = [shape, tuple(n + (axis == time_axis) for axis, n in enumerate(shape))]
    reads = [recurrence.reads[i] for i in moving_reads(recurrence, moving)]
    return all(
        r.shift in (0, _ahead(recurrence)) and (r.operand not in moving or named[r.operand].shape in full)
        for r in reads
    )


def _ahead(recurrence):
    """The direction from which the state enters, in which the transposed loop goes."""
    return 1 if recurrence.reverse else -1


def cotangents(*operands, recurrence: Recurrence, time_axis: int, dtype, wanted, moving):
    """Those of the operands named `moving`, from those of the scan, its state, and cotangents of `wanted` outputs."""
    count = len(recurrence.operands)
    operands = [jnp.moveaxis(a, time_axis, 0) for a in operands]
    operands, (x, *cts) = operands[:count], operands[count:]
    found = _by_loop(operands, x, cts, recurrence, compute_dtype(dtype), wanted, moving)
    return [jnp.moveaxis(found[name], 0, time_axis) for name in moving]


def _by_loop(operands, x, cts, recurrence, dtype, wanted, moving):
    named = dict(zip(recurrence.operands, operands, strict=True))
    reads = recurrence.reads
    moved = moving_reads(recurrence, moving)
    ahead = [i for i in moved if reads[i].shift]
    along = [name for name in moving if any(reads[i].operand == name for i in moved)]
    shape = output_shape(operands, 0)
    steps, step = shape[0], loop.one_step(shape, 0)
    nothing = jnp.zeros(step, dtype)

    def advance(_, found, carry):
        ct_x, pending = carry
        s, (entering, x, *cts) = found[: len(reads)], found[len(reads) :]

        def differential(dentering, *ds):
            changes = dict(zip(moved, ds, strict=True))
            w, inputs = inputs_of_change(recurrence, dtype, s, changes, entering)
            dx = scaled(dentering, finite_weights(w))
            dx = jnp.broadcast_to(dx if inputs is None else dx + inputs, step)
            changes |= {len(reads): dx, len(reads) + 1: dentering}
            outs = [change_of_output(recurrence, dtype, i, [*s, x, entering], changes) for i in wanted]
            return dx, *(nothing if d is None else jnp.broadcast_to(d, step) for d in outs)

        transposed = jax.linear_transpose(differential, *[jax.ShapeDtypeStruct(step, dtype)] * (1 + len(moved)))
        ct_entering, *ct_s = transposed((ct_x, *cts))
        ct_s = dict(zip(moved, ct_s, strict=True))
        arriving = {i: pending[i] if i in pending else ct_s[i] for i in moved}
        parts = [[arriving[i] for i in moved if reads[i].operand == name] for name in along]
        sums = [functools.reduce(jnp.add, p).astype(named[name].dtype) for name, p in zip(along, parts, strict=True)]
        return (ct_entering, {i: ct_s[i] for i in ahead}), sums

    shift = _ahead(recurrence)
    initial = initial_state(recurrence, operands, dtype)
    start = jnp.zeros((1,) * x.ndim, dtype) if initial is None else initial
    found = [*sources(recurrence, operands, time_axis=0, dtype=dtype), Source(x, shift, start), *map(Source, (x, *cts))]
    (ct_initial, pending), arrays = loop.run(
        found,
        [*recurrence.dtypes(dtype), *[dtype] * (2 + len(cts))],
        (nothing, dict.fromkeys(ahead, nothing)),
        advance,
        steps=steps,
        axis=0,
        reverse=not recurrence.reverse,
        onto=[lax.full(named[name].shape, 0, named[name].dtype) for name in along],
    )
    results = dict(zip(along, arrays, strict=True))

    def at_edge(name, ct):
        """Adds what the loop did not reach: the step beyond the others, or the only one."""
        if name not in moving:
            return
        ct = unbroadcast(ct, loop.one_step(named[name].shape, 0)).astype(named[name].dtype)
        if name in results:
            ct = lax.pad(
                ct, jnp.zeros((), ct.dtype), [(results[name].shape[0] - 1, 0, 0), *[(0, 0, 0)] * (ct.ndim - 1)]
            )
            ct = results[name] + ct
        results[name] = ct

    for i, ct in pending.items():
        held = None if reads[i].operand is None else named[reads[i].operand].shape[0]
        if held == steps + 1:
            at_edge(reads[i].operand, ct)
        elif held in (None, steps):
            at_edge(reads[i].beyond, ct)
    at_edge(recurrence.initial, ct_initial)
    return results
