"""x[t + 1] or x[t - 1] as one linear primitive: XLA's own slices would gather an array whose time is split."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rltriton_jax.scan.jax_internals import ad, zero_tangent
from rltriton_jax.scan.plain.products import unbroadcast
from rltriton_jax.scan.rules import aligned, bind, define, result_aval
from rltriton_jax.scan.sharding.devices import is_split, lower, on_each_shard
from rltriton_jax.scan.sharding.split import NOT_SPLIT, Axes


def shifted(x, shift: int, beyond, axis: int):
    """x[t + shift] along `axis`, shift being 1 or -1; the step `beyond`, or 0, where that is outside."""
    return bind(neighbour_p, *((x,) if beyond is None else (x, beyond)), shift=shift, axis=axis)


def edge_step(x, shift: int, axis: int):
    """The step of x that is last (shift = 1) or first (-1); of none, nothing."""
    if x.shape[axis] == 0:
        return jnp.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)
    last = x.shape[axis] - 1
    if jax.typeof(x).sharding.spec[axis] is None:
        return lax.slice_in_dim(x, *((last, last + 1) if shift > 0 else (0, 1)), axis=axis)
    # JAX does not slice an axis that an explicit mesh splits.
    steps = [last + 1 if a == axis else 1 for a in range(x.ndim)]
    at_edge = lax.broadcasted_iota(jnp.int32, steps, axis) == (last if shift > 0 else 0)
    return unbroadcast(jnp.where(at_edge, x, 0), (*x.shape[:axis], 1, *x.shape[axis + 1 :]))


def _abstract_eval(x, *beyond, shift, axis):
    batch = [jnp.broadcast_shapes(*(a.shape[d : d + 1] for a in (x, *beyond)))[0] for d in range(x.ndim)]
    batch[axis] = x.shape[axis]
    return result_aval((x, *beyond), batch, x.dtype)


def _shift(x, beyond, shift, axis):
    batch = jnp.broadcast_shapes((*x.shape[:axis], 1, *x.shape[axis + 1 :]), beyond.shape)
    steps = x.shape[axis]
    x = jnp.broadcast_to(x, (*batch[:axis], steps, *batch[axis + 1 :]))
    if not steps:
        return x
    edge = jnp.broadcast_to(beyond.astype(x.dtype), batch)
    inner = lax.slice_in_dim(x, *((1, steps) if shift > 0 else (0, steps - 1)), axis=axis)
    return lax.concatenate([inner, edge] if shift > 0 else [edge, inner], axis)


def outside(shift: int, axes: Axes):
    """Is this device's neighbour in the direction of `shift` outside the window?"""
    return lax.axis_index(axes.names) == (lax.axis_size(axes.names) - 1 if shift > 0 else 0)


def step_from_neighbour(x, shift: int, beyond, axis: int, axes: Axes):
    """The step that follows this device's part of x in the direction of `shift`, in the dtype of `beyond`.

    It is the first or last that the neighbouring device holds, and `beyond` where the window ends.
    """
    count, ordered = lax.axis_size(axes.names), axes.in_mesh_order
    sizes = [lax.axis_size(name) for name in ordered]
    numbers = np.arange(count).reshape(sizes).transpose([ordered.index(name) for name in axes.names]).ravel().tolist()
    edge = lax.slice_in_dim(x, *((0, 1) if shift > 0 else (x.shape[axis] - 1, x.shape[axis])), axis=axis)
    pairs = [(numbers[i], numbers[i - shift]) for i in range(count) if 0 <= i - shift < count]
    return jnp.where(outside(shift, axes), beyond, lax.ppermute(edge.astype(beyond.dtype), ordered, pairs))


def _lower(ctx, *operands, shift, axis):
    def local(time, x, *beyond):
        edge = beyond[0] if beyond else jnp.zeros((1,) * x.ndim, x.dtype)
        if time != NOT_SPLIT:
            edge = step_from_neighbour(x, shift, edge, axis, time)
        return [_shift(x, edge, shift, axis)]

    function = on_each_shard(ctx, local, axis, 1) if is_split(ctx) else functools.partial(local, NOT_SPLIT)
    return lower(ctx, function, *operands)


def _batch(args, dims, *, shift, axis):
    args, new = aligned(args, dims)
    return bind(neighbour_p, *args, shift=shift, axis=axis + (new <= axis)), new


def _jvp(primals, tangents, *, shift, axis):
    out = bind(neighbour_p, *primals, shift=shift, axis=axis)
    if all(isinstance(t, ad.Zero) for t in tangents):
        return out, zero_tangent(out)
    dx, *dbeyond = (ad.instantiate_zeros(t) for t in tangents)
    return out, bind(neighbour_p, dx, *dbeyond, shift=shift, axis=axis)


def _transpose(cotangent, x, *beyond, shift, axis):
    results: list[Any] = [None] * (1 + len(beyond))
    if isinstance(cotangent, ad.Zero):
        return [ad.Zero(a.aval) if ad.is_undefined_primal(a) else None for a in (x, *beyond)]
    if ad.is_undefined_primal(x):
        results[0] = unbroadcast(shifted(cotangent, -shift, None, axis), x.aval.shape)
    if beyond and ad.is_undefined_primal(beyond[0]):
        results[1] = unbroadcast(edge_step(cotangent, shift, axis), beyond[0].aval.shape).astype(beyond[0].aval.dtype)
    return results


neighbour_p = define(
    "neighbour",
    abstract_eval=_abstract_eval,
    batch=_batch,
    jvp=_jvp,
    transpose=_transpose,
    lower={None: _lower},
)
