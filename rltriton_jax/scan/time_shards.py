"""A scan whose time is split over devices: each scans its own steps, from a state that it computes of all composites.

What moves is one row a shifted read, from the neighbour, and one composite (w, u) a row, to everybody.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from rltriton_jax.scan.lax_scan import compute_dtype, initial_state, num_steps, reduce_composites, row_slice
from rltriton_jax.scan.neighbours import outside, row_from_neighbour
from rltriton_jax.scan.products import mul0
from rltriton_jax.scan.recurrence import COMPOSITE, START, Read, Recurrence


def divisible(recurrence: Recurrence, operands, time_axis: int):
    """The same scan with reads and operands that a device can have a part of: no row T + 1, no first step.

    The row T + 1 of an operand becomes an operand of its own. What is the same at all steps is read unshifted.
    """
    steps = num_steps(operands, time_axis)
    named = dict(zip(recurrence.operands, operands, strict=True))
    reads = list(recurrence.reads)
    if START in reads:
        named["start"] = jnp.ones((1,) * operands[0].ndim, bool)
        edge = Read(None, 1 if recurrence.reverse else -1, "start", flag=True)
        reads = [edge if r == START else r for r in reads]
    for name, x in zip(recurrence.operands, operands, strict=True):
        rows = x.shape[time_axis]
        if rows == 1 != steps:
            reads = [replace(r, shift=0, beyond=None) if r.operand == name else r for r in reads]
        elif rows == steps + 1:
            last = f"{name} at T"
            named[last] = row_slice(x, steps, rows, time_axis)
            named[name] = row_slice(x, 0, steps, time_axis)
            reads = [replace(r, beyond=last) if r.operand == name and r.shift == 1 else r for r in reads]
    return replace(recurrence, operands=tuple(named), reads=tuple(reads)), tuple(named.values())


def _with_neighbours(recurrence: Recurrence, operands, time_axis: int, dtype, names):
    """The recurrence on this device's steps: each shifted read finds the neighbour's row beyond."""
    named = dict(zip(recurrence.operands, operands, strict=True))
    reads = []
    for r in recurrence.reads:
        if r.shift and (r.operand or r.beyond):
            kind = jnp.bool_ if r.flag else compute_dtype(dtype)
            row = jnp.zeros((1,) * operands[0].ndim, kind) if r.beyond is None else named[r.beyond].astype(kind)
            if r.operand is None:
                row = jnp.where(outside(r.shift, names), row, jnp.zeros_like(row))
            else:
                row = row_from_neighbour(named[r.operand], r.shift, row, time_axis, names)
            name = f"row beyond {len(named)}"
            named[name] = row
            r = replace(r, beyond=name)
        reads.append(r)
    return replace(recurrence, operands=tuple(named), reads=tuple(reads)), tuple(named.values())


def _entering_state(w, u, initial, *, reverse: bool, names):
    """The state that enters this device's steps: `initial` through the composites of all devices before it."""
    composites = lax.all_gather(jnp.stack((w, u)), names)
    index = lax.axis_index(names)
    devices = lax.broadcasted_iota(jnp.int32, (composites.shape[0], *(1,) * w.ndim), 0)
    before = devices > index if reverse else devices < index
    w, u = reduce_composites(
        jnp.where(before, composites[:, 0], 1), jnp.where(before, composites[:, 1], 0), axis=0, reverse=reverse
    )
    w, u = jnp.squeeze(w, 0), jnp.squeeze(u, 0)
    return u if initial is None else u + mul0(w, initial)


def scan_part(
    names,
    *operands,
    recurrence: Recurrence,
    time_axis: int,
    dtype,
    outputs,
    scan: Callable[..., Any],
):
    """This device's part of the outputs; `scan` does one device's work."""
    layout = {"time_axis": time_axis, "dtype": dtype}
    initial = initial_state(recurrence, operands, dtype)
    recurrence, operands = _with_neighbours(recurrence, operands, time_axis, dtype, names)
    w, u = scan(*operands, recurrence=replace(recurrence, initial=None), outputs=COMPOSITE, **layout)
    state = _entering_state(w, u, initial, reverse=recurrence.reverse, names=names)
    seeded = replace(recurrence, operands=(*recurrence.operands, "entering state"), initial="entering state")
    return scan(*operands, state, recurrence=seeded, outputs=outputs, **layout)
