"""What the rules of every primitive here share: binding, the type of a result, and batching.

Operands of a primitive have one rank, but for last axes of terms that it sums. On every axis an operand has the full
size or 1: it is then the same all along.
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


def aligned(args, dims):
    """Batched operands with the new axis where the fullest of them has it; what is not batched gets size 1 there.

    Axes that only some operands have come last, and stay so.
    """

    def fullness(i):
        return sum(not (isinstance(d, int) and d == 1) for d in args[i].shape)

    common = min(a.ndim - (d is not None) for a, d in zip(args, dims, strict=True))
    axis = min(common, dims[max((i for i, d in enumerate(dims) if d is not None), key=fullness)])
    return [
        jnp.expand_dims(a, axis) if d is None else (a if d == axis else jnp.moveaxis(a, d, axis))
        for a, d in zip(args, dims, strict=True)
    ], axis
