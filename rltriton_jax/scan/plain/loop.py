"""The recurrence as a sequential loop whose body holds the algebra, so that no weights or inputs are written out."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rltriton_jax.scan.plain.products import weighted
from rltriton_jax.scan.recurrence import Recurrence, is_linear
from rltriton_jax.scan.rules import varying_alike


class Source(NamedTuple):
    """Where the loop finds what step t reads: step t + shift of `values`, and `beyond` where there is none.

    A step keeps the axis of time, of size 1. `values` of one step are the same at all steps.
    """

    values: Any
    shift: int = 0
    beyond: Any = None


def _read(source: Source, i, steps, axis: int, dtype):
    """What step i reads, in the dtype in which the algebra sees it."""
    x, at = source.values, i + source.shift if source.shift else i
    if x.shape[axis] != 1:
        x = lax.dynamic_slice_in_dim(x, at, 1, axis, allow_negative_indices=False)
    x = x.astype(dtype)
    if source.beyond is None:
        return x
    return jnp.where((at < 0) | (at >= steps), source.beyond, x)


def run(sources: list[Source], dtypes, carry, advance, *, steps, axis: int, reverse: bool, onto=(), in_place=False):
    """Runs `advance(i, reads, carry) -> (carry, results)` over the steps, `reads` being what step i finds, by `dtypes`.

    Results are written into the arrays `onto`, which are returned behind the last carry. `in_place` says that the first
    source is the first of these: each of its steps is read before it is written over.
    """

    def body(n, state):
        carry, written = state
        i = steps - 1 - n if reverse else n
        found = [Source(written[0]), *sources[1:]] if in_place else sources
        reads = [_read(source, i, steps, axis, dtype) for source, dtype in zip(found, dtypes, strict=True)]
        carry, results = advance(i, reads, carry)
        return carry, [
            lax.dynamic_update_slice_in_dim(a, x, i, axis, allow_negative_indices=False)
            for a, x in zip(written, results, strict=True)
        ]

    leaves, tree = jax.tree.flatten((carry, list(onto)))
    leaves = varying_alike([*leaves, *(s.values for s in sources)])[: len(leaves)]
    return lax.fori_loop(0, steps, body, jax.tree.unflatten(tree, leaves))


def one_step(shape, axis: int) -> tuple[int, ...]:
    """The shape of one step of an array."""
    return (*shape[:axis], 1, *shape[axis + 1 :])


def states(recurrence: Recurrence, sources, start, *, shape, axis: int, dtype, wanted, out_dtype):
    """The wanted outputs of all steps, from the state `start`; those of the bare recurrence in place of its inputs."""
    step = one_step(shape, axis)
    out_dtypes = [dtype if i == recurrence.state else out_dtype for i in wanted]

    def advance(_, reads, entering):
        s = recurrence.named(reads)
        w, u = recurrence.coefficients(s)
        x = jnp.broadcast_to(u + weighted(w, entering), step)
        outputs = (*recurrence.outputs(s, x, entering), x)
        return x, [jnp.broadcast_to(outputs[i], step).astype(d) for i, d in zip(wanted, out_dtypes, strict=True)]

    inputs = sources[0].values
    in_place = is_linear(recurrence) and [(inputs.shape, inputs.dtype)] == [(shape, d) for d in out_dtypes]
    onto = [inputs] if in_place else [lax.full(shape, 0, d) for d in out_dtypes]
    layout = {"steps": shape[axis], "axis": axis, "reverse": recurrence.reverse}
    start = jnp.broadcast_to(start, step)
    return run(sources, recurrence.dtypes(dtype), start, advance, onto=onto, in_place=in_place, **layout)[1]


def composites(recurrence: Recurrence, sources, *, shape, axis: int, dtype, live=None):
    """The affine map (w, u) of all steps together, of size 1 on `axis`; with `live`, of those for which it is True."""
    step = one_step(shape, axis)

    def advance(i, reads, older):
        w, u = recurrence.coefficients(recurrence.named(reads))
        if live is not None:
            w, u = jnp.where(live(i), w, 1.0), jnp.where(live(i), u, 0.0)
        through_w, through_u = weighted(w, older[0]), u + weighted(w, older[1])
        return (jnp.broadcast_to(through_w, step), jnp.broadcast_to(through_u, step)), ()

    start = jnp.ones(step, dtype), jnp.zeros(step, dtype)
    layout = {"steps": shape[axis], "axis": axis, "reverse": recurrence.reverse}
    return run(sources, recurrence.dtypes(dtype), start, advance, **layout)[0]
