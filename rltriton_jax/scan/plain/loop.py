"""The recurrence as a sequential loop whose body holds the algebra, so that no weights or inputs are written out."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rltriton_jax.scan.plain.products import zero_wins
from rltriton_jax.scan.recurrence import Recurrence
from rltriton_jax.scan.rules import varying_alike


class Source(NamedTuple):
    """Where the loop finds what a step reads, with the time axis in place and of size 1 in rows.

    `values` has a row for each step, or one for all of them. With `start` each step reads what the step before it in
    scan order had, and the first one `start`; without, its own. `offset` is where the row of step 0 is.
    """

    values: Any
    start: Any = None
    offset: int = 0


def _row(source: Source, i, axis: int, dtype):
    """The row of `source` at step i, in the dtype in which the algebra sees it."""
    x = source.values
    if x.shape[axis] != 1:
        x = lax.dynamic_slice_in_dim(x, i + source.offset if source.offset else i, 1, axis)
    return x.astype(dtype)


def run(recurrence: Recurrence, sources: list[Source], carry, advance, *, steps, axis: int, dtype, results=()):
    """Runs `advance(s, carry) -> (carry, rows)` from the first step to the last, `s` being what the step reads.

    The rows are written to arrays of the types in `results`, which are returned behind the last carry.
    """
    kinds = [bool if r.flag else dtype for r in recurrence.reads]
    later = [k for k, source in enumerate(sources) if source.start is not None]

    def body(n, state):
        carry, held, written = state
        i = steps - 1 - n if recurrence.reverse else n
        rows = [_row(source, i, axis, kind) for source, kind in zip(sources, kinds, strict=True)]
        ahead = [jnp.broadcast_to(rows[k], h.shape) for k, h in zip(later, held, strict=True)]
        for k, h in zip(later, held, strict=True):
            rows[k] = h
        carry, rows = advance(recurrence.named(rows), carry)
        written = [lax.dynamic_update_slice_in_dim(a, row, i, axis) for a, row in zip(written, rows, strict=True)]
        return carry, ahead, written

    held = [sources[k].start for k in later]
    state = carry, held, [lax.full(r.shape, 0, r.dtype) for r in results]
    leaves, tree = jax.tree.flatten(state)
    leaves = varying_alike([*leaves, *(s.values for s in sources)])[: len(leaves)]
    carry, _, written = lax.fori_loop(0, steps, body, jax.tree.unflatten(tree, leaves))
    return carry, written


def states(recurrence: Recurrence, sources, start, *, shape, axis: int, dtype, wanted, out_dtype):
    """The wanted outputs of all steps, from the state `start`."""
    row = (*shape[:axis], 1, *shape[axis + 1 :])
    dtypes = [dtype if i == recurrence.state else out_dtype for i in wanted]

    def advance(s, entering):
        w, u = recurrence.coefficients(s)
        x = jnp.broadcast_to(u + zero_wins(w, entering), row)
        outputs = (*recurrence.outputs(s, x, entering), x)
        return x, [jnp.broadcast_to(outputs[i], row).astype(d) for i, d in zip(wanted, dtypes, strict=True)]

    results = [jax.ShapeDtypeStruct(shape, d) for d in dtypes]
    start = jnp.broadcast_to(start, row)
    return run(recurrence, sources, start, advance, steps=shape[axis], axis=axis, dtype=dtype, results=results)[1]


def composites(recurrence: Recurrence, sources, *, shape, axis: int, dtype):
    """The affine map (w, u) of all steps together, of size 1 on `axis`."""
    row = (*shape[:axis], 1, *shape[axis + 1 :])

    def advance(s, older):
        w, u = recurrence.coefficients(s)
        through_w, through_u = zero_wins(w, older[0]), u + zero_wins(w, older[1])
        return (jnp.broadcast_to(through_w, row), jnp.broadcast_to(through_u, row)), ()

    start = jnp.ones(row, dtype), jnp.zeros(row, dtype)
    return run(recurrence, sources, start, advance, steps=shape[axis], axis=axis, dtype=dtype)[0]
