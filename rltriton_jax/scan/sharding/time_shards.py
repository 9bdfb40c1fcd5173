"""A scan whose time is split over devices: each scans its own steps, from a state that it makes of all composites.

What moves is one step of what is read with a shift, from the neighbour, and one composite (w, u) a row, to everybody.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from rltriton_jax.scan.plain.neighbours import outside, step_from_neighbour
from rltriton_jax.scan.plain.products import weighted
from rltriton_jax.scan.plain.scan import compute_dtype, initial_state, num_steps, reduce_composites, steps_between
from rltriton_jax.scan.recurrence import COMPOSITE, START, Read, Recurrence
from rltriton_jax.scan.sharding.split import Axes


def without_edge_rows(recurrence: Recurrence, operands, time_axis: int):
    """The same scan with operands of T steps or 1, and without `START`, so that each device can have its part of it.

    The step T + 1 of an operand becomes an operand of its own. What is the same at all steps is read without a shift.
    """
    steps = num_steps(operands, time_axis)
    named = dict(zip(recurrence.operands, operands, strict=True))
    reads = list(recurrence.reads)
    if START in reads:
        named["start"] = jnp.ones((1,) * operands[0].ndim, bool)
        edge = Read(None, 1 if recurrence.reverse else -1, "start", kind="flag")
        reads = [edge if r == START else r for r in reads]
    for name, x in zip(recurrence.operands, operands, strict=True):
        held = x.shape[time_axis]
        if held == 1 != steps:
            reads = [replace(r, shift=0, beyond=None) if r.operand == name else r for r in reads]
        elif held == steps + 1:
            last = f"{name} at T"
            named[last] = steps_between(x, steps, held, time_axis)
            named[name] = steps_between(x, 0, steps, time_axis)
            reads = [replace(r, beyond=last) if r.operand == name and r.shift == 1 else r for r in reads]
    return recurrence.reading(reads, operands=tuple(named)), tuple(named.values())


def _with_neighbours(recurrence: Recurrence, operands, time_axis: int, dtype, time: Axes):
    """The recurrence on this device's steps: each shifted read finds the neighbour's step beyond."""
    named = dict(zip(recurrence.operands, operands, strict=True))
    reads = []
    for r in recurrence.reads:
        if r.shift and (r.operand or r.beyond):
            kind = r.dtype(compute_dtype(dtype))
            edge = jnp.zeros((1,) * operands[0].ndim, kind) if r.beyond is None else named[r.beyond].astype(kind)
            if r.operand is None:
                edge = jnp.where(outside(r.shift, time), edge, jnp.zeros_like(edge))
            else:
                edge = step_from_neighbour(named[r.operand], r.shift, edge, time_axis, time)
            name = f"step beyond {len(named)}"
            named[name] = edge
            r = replace(r, beyond=name)
        reads.append(r)
    return recurrence.reading(reads, operands=tuple(named)), tuple(named.values())


def _entering_state(w, u, initial, *, reverse: bool, time: Axes):
    """The state that enters this device's steps: `initial` through the composites of all devices before it."""
    composites = lax.all_gather(jnp.stack((w, u)), time.names)
    index = lax.axis_index(time.names)
    devices = lax.broadcasted_iota(jnp.int32, (composites.shape[0], *(1,) * w.ndim), 0)
    before = devices > index if reverse else devices < index
    w, u = reduce_composites(
        jnp.where(before, composites[:, 0], 1), jnp.where(before, composites[:, 1], 0), axis=0, reverse=reverse
    )
    w, u = jnp.squeeze(w, 0), jnp.squeeze(u, 0)
    return u if initial is None else u + weighted(w, initial)


def scan_part(
    time: Axes,
    *operands,
    recurrence: Recurrence,
    time_axis: int,
    dtype,
    wanted,
    scan: Callable[..., Any],
):
    """This device's part of the outputs; `scan` does one device's work."""
    layout = {"time_axis": time_axis, "dtype": dtype}
    initial = initial_state(recurrence, operands, dtype)
    recurrence, operands = _with_neighbours(recurrence, operands, time_axis, dtype, time)
    w, u = scan(*operands, recurrence=replace(recurrence, initial=None), wanted=COMPOSITE, **layout)
    state = _entering_state(w, u, initial, reverse=recurrence.reverse, time=time)
    seeded = replace(recurrence, operands=(*recurrence.operands, "entering state"), initial="entering state")
    return scan(*operands, state, recurrence=seeded, wanted=wanted, **layout)
