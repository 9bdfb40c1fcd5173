"""The recurrence in plain JAX: what every platform without a kernel runs, and what derivatives are taken of."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from rltriton_jax.scan.plain import loop
from rltriton_jax.scan.plain.chunks import Chunks, num_chunks
from rltriton_jax.scan.plain.loop import Source
from rltriton_jax.scan.plain.neighbours import shifted
from rltriton_jax.scan.plain.products import scaled, weighted
from rltriton_jax.scan.recurrence import COMPOSITE, START, Read, Recurrence, without_sums


def compute_dtype(dtype):
    """The dtype of arithmetic and carries: float64 for float64 outputs, float32 for all others."""
    return jnp.dtype("float64") if dtype == jnp.float64 else jnp.dtype("float32")


def num_steps(operands, time_axis: int) -> int:
    return operands[0].shape[time_axis]


def num_terms(operands) -> list[Any]:
    """How many products each operand is part of a sum of, on an axis that the first operand lacks; 1 for most."""
    return [o.shape[-1] if o.ndim > operands[0].ndim else 1 for o in operands]


def output_shape(operands, time_axis: int) -> tuple[Any, ...]:
    """The common shape [T, batch] of the operands, whose sizes on an axis agree or are 1.

    Operands of a sum have one axis more, for its terms, which does not count; time may also be one step longer.
    """
    steps, ndim = num_steps(operands, time_axis), operands[0].ndim
    batch = jnp.broadcast_shapes(*(o.shape[:time_axis] + o.shape[time_axis + 1 : ndim] for o in operands))
    return (*batch[:time_axis], steps, *batch[time_axis:])


def weighted_sum(values, weights, *, dtype):
    """The sum of weights * values over the last axis; a weight of 0 leaves out whatever it weighs."""
    values, weights = values.astype(compute_dtype(dtype)), weights.astype(compute_dtype(dtype))
    left_out = (weights == 0) & ~jnp.isfinite(values)
    return jnp.sum(jnp.where(left_out, 0, scaled(weights, values)), -1)


def sums_taken(recurrence: Recurrence, operands, *, dtype):
    """The recurrence and its operands with every weighted sum taken, and so an operand like the others."""
    named = dict(zip(recurrence.operands, operands, strict=True))
    plain, sums = without_sums(recurrence)
    for name, (values, weights) in sums.items():
        named[name] = weighted_sum(named[values], named[weights], dtype=dtype)
    return plain, tuple(named[name] for name in plain.operands)


def in_stages(recurrence: Recurrence, operands, scan: Callable[..., Any], *, dtype):
    """The recurrence and its operands with all that is carried an array, which `scan` makes, and so like the others."""
    if not recurrence.carried:
        return recurrence, tuple(operands)
    named = dict(zip(recurrence.operands, operands, strict=True))
    for name, inner in recurrence.carried:
        inputs = (named[operand] for operand in inner.operands)
        (named[name],) = scan(*inputs, recurrence=inner, dtype=compute_dtype(dtype), wanted=(0,))
    return replace(recurrence, operands=tuple(named), carried=()), tuple(named.values())


def steps_between(x, start, stop, axis):
    return lax.slice_in_dim(x, start, stop, axis=axis)


def _split_as(like, x, axis):
    """x with `axis` split as that of `like`, where an explicit mesh has that in its types."""
    names = jax.typeof(like).sharding.spec[axis]
    if names is None:
        return x
    spec = jax.typeof(x).sharding.spec
    wanted = NamedSharding(jax.typeof(like).sharding.mesh, P(*spec[:axis], names, *spec[axis + 1 :]))
    return jax.sharding.reshard(x, wanted)


def _read(read: Read, named, steps, time_axis, ndim, dtype, reverse):
    first = next(iter(named.values()))
    if read == START:
        shape = [1] * ndim
        shape[time_axis] = steps
        at_start = lax.broadcasted_iota(jnp.int32, shape, time_axis) == (steps - 1 if reverse else 0)
        return _split_as(first, at_start, time_axis)

    def value(name):
        x = named[name]
        return x.astype(read.dtype(dtype))

    beyond = None if read.beyond is None else value(read.beyond)
    if read.operand is None:
        nothing = jnp.zeros((1,) * ndim, read.dtype(dtype))
        if beyond is None:
            return nothing
        shape = [1] * ndim
        shape[time_axis] = steps
        return shifted(_split_as(first, jnp.broadcast_to(nothing, shape), time_axis), read.shift, beyond, time_axis)
    x = value(read.operand)
    held = x.shape[time_axis]
    if held == steps + 1:
        return steps_between(x, read.shift, steps + read.shift, time_axis)
    if read.shift == 0 or (held == 1 and steps != 1):
        return x
    return shifted(x, read.shift, beyond, time_axis)


def gather(recurrence: Recurrence, operands, *, time_axis: int, dtype):
    """Everything the algebra reads, by name, as arrays of one rank in the scan's dtype."""
    named = dict(zip(recurrence.operands, operands, strict=True))
    steps = num_steps(operands, time_axis)
    ndim = operands[0].ndim
    state = compute_dtype(dtype)
    return recurrence.named(
        _read(r, named, steps, time_axis, ndim, state, recurrence.reverse) for r in recurrence.reads
    )


def initial_state(recurrence: Recurrence, operands, dtype):
    if recurrence.initial is None:
        return None
    return operands[recurrence.operands.index(recurrence.initial)].astype(compute_dtype(dtype))


def entering(x, initial, *, time_axis: int, reverse: bool):
    """The state that enters each step: x one step earlier in scan order, `initial` (or 0) at the first."""
    return shifted(x, 1 if reverse else -1, initial, time_axis)


def _compose(older, newer):
    (w1, u1), (w2, u2) = older, newer
    return weighted(w2, w1), weighted(w2, u1) + u2


def reduce_composites(w, u, *, axis: int, reverse: bool):
    """The composite of all steps along `axis`, of size 1 there."""
    while (steps := u.shape[axis]) > 1:
        if steps % 2:
            ends = [(0, int(a == axis), 0) for a in range(u.ndim)]
            w, u = lax.pad(w, jnp.ones((), w.dtype), ends), lax.pad(u, jnp.zeros((), u.dtype), ends)
        halves = [[lax.slice_in_dim(a, i, None, 2, axis) for a in (w, u)] for i in (0, 1)]
        w, u = _compose(*(reversed(halves) if reverse else halves))
    return w, u


def _source(read: Read, named, *, steps, time_axis, dtype, reverse) -> Source:
    """Where a loop finds what `read` says."""
    kind = read.dtype(dtype)
    nothing = np.zeros((1,) * next(iter(named.values())).ndim, kind)
    if read == START:
        return Source(nothing, 1 if reverse else -1, np.logical_not(nothing))
    beyond = nothing if read.beyond is None else named[read.beyond].astype(kind)
    if read.operand is None:
        return Source(nothing) if read.beyond is None else Source(nothing, read.shift, beyond)
    values = named[read.operand]
    if read.kind == "flag" and values.dtype.itemsize == 2:
        # XLA widens 16-bit floats in the loop, and then rounds the rest of its body otherwise; a flag must not do that.
        values = values.astype(kind)
    held = values.shape[time_axis]
    if held == steps + 1:
        return Source(values, read.shift)
    if read.shift == 0 or held == 1 != steps:
        return Source(values)
    return Source(values, read.shift, beyond)


def sources(recurrence: Recurrence, operands, *, time_axis: int, dtype) -> list[Source]:
    """Where a loop finds everything the algebra reads."""
    named = dict(zip(recurrence.operands, operands, strict=True))
    layout = {"steps": num_steps(operands, time_axis), "time_axis": time_axis, "reverse": recurrence.reverse}
    return [_source(r, named, dtype=compute_dtype(dtype), **layout) for r in recurrence.reads]


def _associative(w, u, initial, *, time_axis, reverse):
    """The states by `lax.associative_scan` over all steps."""
    u = jnp.broadcast_to(u, jnp.broadcast_shapes(w.shape, u.shape))
    steps = u.shape[time_axis]
    w = jnp.broadcast_to(w, (*w.shape[:time_axis], steps, *w.shape[time_axis + 1 :]))
    if initial is not None:
        first = steps - 1 if reverse else 0
        at_first = lax.broadcasted_iota(jnp.int32, [steps if a == time_axis else 1 for a in range(u.ndim)], time_axis)
        u = u + jnp.where(at_first == first, weighted(w, initial), 0)
    if not isinstance(steps, int):
        raise ValueError(
            f"the number of steps is {steps}, but lax.associative_scan needs a static one; export with a static "
            "number of steps, or with implementation='scan' or 'chunked_scan'."
        )
    return lax.associative_scan(_compose, (w, u), reverse=reverse, axis=time_axis)[1]


def affine_scan(*operands, recurrence: Recurrence, time_axis: int, dtype, wanted, implementation):
    """The outputs whose indices `wanted` lists, or the composite, by one of the plain implementations."""
    one = functools.partial(affine_scan, time_axis=time_axis, implementation=implementation)
    recurrence, operands = in_stages(recurrence, operands, one, dtype=dtype)
    recurrence, operands = sums_taken(recurrence, operands, dtype=dtype)
    shape = output_shape(operands, time_axis)
    if 0 in shape and wanted != COMPOSITE:
        return tuple(jnp.zeros(shape, compute_dtype(dtype) if i == recurrence.state else dtype) for i in wanted)
    layout = {"time_axis": time_axis, "dtype": dtype}
    if implementation == "associative_scan":
        function = composite if wanted == COMPOSITE else functools.partial(_over_all_steps, wanted=wanted)
        return function(*operands, recurrence=recurrence, **layout)
    chunked = implementation == "chunked_scan"
    return _by_loop(*operands, recurrence=recurrence, wanted=wanted, chunked=chunked, **layout)


def _over_all_steps(*operands, recurrence: Recurrence, time_axis: int, dtype, wanted):
    """Algebra, `lax.associative_scan`, algebra, each in jnp."""
    shape = output_shape(operands, time_axis)
    reads = gather(recurrence, operands, time_axis=time_axis, dtype=dtype)
    initial = initial_state(recurrence, operands, dtype)
    w, u = recurrence.coefficients(reads)
    x = _associative(w, u, initial, time_axis=time_axis, reverse=recurrence.reverse)
    x = jnp.broadcast_to(x, shape)
    return finish(recurrence, reads, x, initial, time_axis=time_axis, dtype=dtype, wanted=wanted)


def composite(*operands, recurrence: Recurrence, time_axis: int, dtype):
    """The affine map (w, u) from the state before all steps to the state after them, of size 1 along time."""
    shape = output_shape(operands, time_axis)
    reads = gather(recurrence, operands, time_axis=time_axis, dtype=dtype)
    w, u = (jnp.broadcast_to(a, shape) for a in recurrence.coefficients(reads))
    return reduce_composites(w, u, axis=time_axis, reverse=recurrence.reverse)


def _by_loop(*operands, recurrence: Recurrence, time_axis: int, dtype, wanted, chunked: bool):
    """A loop over the steps. Time comes first: a step in one piece is worth the copy where it did not."""
    operands = [jnp.moveaxis(x, time_axis, 0) for x in operands]
    shape = output_shape(operands, 0)
    found = sources(recurrence, operands, time_axis=0, dtype=dtype)
    initial = initial_state(recurrence, operands, dtype)
    start = jnp.zeros((1,) * len(shape), compute_dtype(dtype)) if initial is None else initial
    over = functools.partial(_over_chunks, num_chunks(shape)) if chunked and num_chunks(shape) > 1 else _over_steps
    results = over(recurrence, found, start, shape=shape, dtype=dtype, wanted=wanted)
    return [jnp.moveaxis(x, 0, time_axis) for x in results]


def _over_steps(recurrence, found, start, *, shape, dtype, wanted):
    """By one loop over all steps."""
    layout = {"shape": shape, "axis": 0, "dtype": compute_dtype(dtype)}
    if wanted == COMPOSITE:
        return loop.composites(recurrence, found, **layout)
    return loop.states(recurrence, found, start, wanted=wanted, out_dtype=dtype, **layout)


def _over_chunks(count, recurrence, found, start, *, shape, dtype, wanted):
    """By a loop over those of all chunks at once: once for their composites, and again from the states of these."""
    reverse = recurrence.reverse
    chunks = Chunks(shape, count, reverse)
    found = [chunks.source(source) for source in found]
    layout = {"shape": chunks.shape, "axis": 1, "dtype": compute_dtype(dtype)}
    w, u = loop.composites(recurrence, found, live=chunks.live if chunks.filling else None, **layout)
    if wanted == COMPOSITE:
        return [x[0] for x in reduce_composites(w, u, axis=0, reverse=reverse)]
    after = _associative(w, u, start[None], time_axis=0, reverse=reverse)
    start = entering(after, start[None], time_axis=0, reverse=reverse)
    return [chunks.join(x) for x in loop.states(recurrence, found, start, wanted=wanted, out_dtype=dtype, **layout)]


def finish(recurrence: Recurrence, reads, x, initial, *, time_axis, dtype, wanted):
    """The outputs from the scan's state."""
    results = recurrence.outputs(reads, x, entering(x, initial, time_axis=time_axis, reverse=recurrence.reverse))
    return tuple(x if i == recurrence.state else jnp.broadcast_to(results[i], x.shape).astype(dtype) for i in wanted)
