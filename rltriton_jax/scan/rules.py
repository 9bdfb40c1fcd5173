"""What the rules of every primitive here share: binding, the type of a result, and batching.

Operands of a primitive have one rank, but for summed axes. On every axis an operand has the full size or 1: it is then
the same all along.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def bind(primitive: Primitive, *operands, **params):
    """Binds `primitive` to operands that vary over the same manual axes, as `shard_map` wants them to."""
    varying = [jax.typeof(x).manual_axis_type.varying for x in operands]
    everywhere = frozenset().union(*varying)
    cast = [
        lax.pcast(x, tuple(sorted(everywhere - v)), to="varying") if everywhere - v else x
        for x, v in zip(operands, varying, strict=True)
    ]
    return primitive.bind(*cast, **params)


def result_aval(avals: Sequence[ShapedArray], shape, dtype) -> ShapedArray:
    """The type of a result with the operands' common shape: sharded as they are, varying over the same manual axes."""
    spec = [_common_axis(avals, d) for d in range(len(shape))]
    meshes = [a.sharding.mesh for a in avals if not a.sharding.mesh.empty]
    sharding = NamedSharding(meshes[0], P(*spec)) if meshes else avals[0].sharding
    return avals[0].update(shape=tuple(shape), dtype=jnp.dtype(dtype), weak_type=False, sharding=sharding)


def _common_axis(avals, d):
    names = {a.sharding.spec[d] for a in avals if d < len(a.sharding.spec)} - {None}
    if len(names) > 1:
        raise ValueError(
            f"on axis {d} operands of shapes {[a.shape for a in avals]} are sharded over {sorted(map(str, names))}; "
            "give them one sharding with jax.sharding.reshard."
        )
    return names.pop() if names else None


def dropped(aval: ShapedArray, axis: int) -> ShapedArray:
    """The type of an array without its `axis`."""
    shape, spec = ((*x[:axis], *x[axis + 1 :]) for x in (aval.shape, aval.sharding.spec))
    return aval.update(shape=shape, sharding=NamedSharding(aval.sharding.mesh, P(*spec)))


def _fullest(args, dims):
    """The batched operand with the most axes of more than one element."""

    def fullness(i):
        return sum(not (isinstance(d, int) and d == 1) for d in args[i].shape)

    return max((i for i, d in enumerate(dims) if d is not None), key=fullness)


def _with_axis(a, d, axis):
    """The operand with its batch axis at `axis`; one that is not batched gets size 1 there."""
    return jnp.expand_dims(a, axis) if d is None else (a if d == axis else jnp.moveaxis(a, d, axis))


def aligned(args, dims):
    """Operands with the batch axis where the fullest of them has it, and that axis."""
    axis = dims[_fullest(args, dims)]
    return [_with_axis(a, d, axis) for a, d in zip(args, dims, strict=True)], axis


def aligned_around(args, dims, summed_axis: int | None):
    """As `aligned`, and where the summed axis is then that some operands have."""
    if summed_axis is None:
        return *aligned(args, dims), None
    ranks = [a.ndim - (d is not None) for a, d in zip(args, dims, strict=True)]
    wide = [rank > ranks[0] for rank in ranks]
    behind = [w and d is not None and d > summed_axis for w, d in zip(wide, dims, strict=True)]
    k = _fullest(args, dims)
    axis = dims[k] - behind[k]
    after = axis > summed_axis or (axis == summed_axis and any(behind))
    args = [_with_axis(a, d, axis + (after and w)) for a, d, w in zip(args, dims, wide, strict=True)]
    return args, axis, summed_axis + (not after)
