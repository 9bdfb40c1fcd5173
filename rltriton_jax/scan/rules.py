"""What the primitives here share: registering their rules, binding, the type of a result, and batching.

Operands of a primitive have one rank, except that those of a sum have one axis more, the last, for its terms. On every
axis an operand has the full size or 1: it is then the same all along.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray, Tracer
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rltriton_jax.scan.jax_internals import (
    Primitive,
    ad,
    batching,
    mlir,
    retyped,
    run_eagerly,
    varying_axes,
)

_result_types: dict[Primitive, Callable[..., Any]] = {}


def define(
    name: str,
    *,
    abstract_eval: Callable[..., Any],
    batch: Callable[..., Any],
    lower: Mapping[str | None, Callable[..., Any]],
    multiple_results: bool = False,
    **derivatives: Callable[..., Any],
) -> Primitive:
    """A primitive with its rules; `lower` has one for each platform, and one for all others at None.

    Its `derivatives` are those of `differentiate`; without them here, they follow.
    """
    primitive = Primitive(name)
    primitive.multiple_results = multiple_results
    run_eagerly(primitive)
    primitive.def_abstract_eval(abstract_eval)
    batching.primitive_batchers[primitive] = batch
    if derivatives:
        differentiate(primitive, **derivatives)
    _result_types[primitive] = abstract_eval
    for platform, rule in lower.items():
        mlir.register_lowering(primitive, rule, platform=platform)
    return primitive


def differentiate(primitive: Primitive, *, jvp: Callable[..., Any], transpose: Callable[..., Any] | None = None):
    """Gives the primitive its derivatives. One that is linear in nothing has no `transpose`."""
    ad.primitive_jvps[primitive] = jvp
    if transpose is not None:
        ad.primitive_transposes[primitive] = transpose


def varying_alike(arrays: Sequence[Any]) -> list[Any]:
    """The arrays, all varying over the same manual axes of a `shard_map`, which wants that of what meets."""
    varying = [varying_axes(jax.typeof(x)) for x in arrays]
    everywhere = frozenset().union(*varying)
    return [
        lax.pcast(x, tuple(sorted(everywhere - v)), to="varying") if everywhere - v else x
        for x, v in zip(arrays, varying, strict=True)
    ]


def sharded_alike(arrays: Sequence[Any], like: ShapedArray) -> list[Any]:
    """The arrays, sharded as `like` is where an explicit mesh has that in the types: JAX's `where` wants that of cases.

    An axis on which one has another size is not split. Eager calls outside `jax.set_mesh` leave it to the lowering.
    """
    if AxisType.Explicit not in like.sharding.mesh.axis_types:
        return list(arrays)
    in_mesh = not jax.sharding.get_abstract_mesh().empty

    def place(x):
        if not (in_mesh or isinstance(x, Tracer)):
            return x
        own = jax.typeof(x).sharding
        spec = [s if n == full else None for n, full, s in zip(x.shape, like.shape, like.sharding.spec)]
        wanted = NamedSharding(like.sharding.mesh, P(*spec, *own.spec[len(spec) :]))
        return x if own == wanted else jax.sharding.reshard(x, wanted)

    return [place(x) for x in arrays]


def bind(primitive: Primitive, *operands, **params):
    """Binds `primitive` to operands that vary over the same manual axes and are sharded as its result."""
    operands = varying_alike(operands)
    result = _result_types[primitive](*map(jax.typeof, operands), **params)
    return primitive.bind(*sharded_alike(operands, jax.tree.leaves(result)[0]), **params)


def result_aval(avals: Sequence[ShapedArray], shape, dtype) -> ShapedArray:
    """The type of a result with the operands' common shape: sharded as they are, varying over the same manual axes."""
    spec = [{a.sharding.spec[d] for a in avals if a.shape[d] == n} - {None} for d, n in enumerate(shape)]
    meshes = [a.sharding.mesh for a in avals if not a.sharding.mesh.empty]
    if not meshes:
        return retyped(avals[0], shape, jnp.dtype(dtype), avals[0].sharding)
    every = [entry for entries in spec for entry in entries]
    names = [name for entry in every for name in (entry if isinstance(entry, tuple) else (entry,))]
    if any(len(entries) > 1 for entries in spec) or len(names) != len(set(names)):
        raise ValueError(
            f"operands of shapes {[a.shape for a in avals]} are sharded by {[str(a.sharding.spec) for a in avals]}, "
            "which contradict each other; give them one sharding with jax.sharding.reshard."
        )
    sharding = NamedSharding(meshes[0], P(*(entries.pop() if entries else None for entries in spec)))
    return retyped(avals[0], shape, jnp.dtype(dtype), sharding)


def aligned(args, dims):
    """Batched operands with the new axis where the fullest of them has it; what is not batched gets size 1 there.

    The axis of terms, which only the operands of a sum have, stays the last.
    """

    def fullness(i):
        return sum(not (isinstance(d, int) and d == 1) for d in args[i].shape)

    common = min(a.ndim - (d is not None) for a, d in zip(args, dims, strict=True))
    axis = min(common, dims[max((i for i, d in enumerate(dims) if d is not None), key=fullness)])
    return [
        jnp.expand_dims(a, axis) if d is None else (a if d == axis else jnp.moveaxis(a, d, axis))
        for a, d in zip(args, dims, strict=True)
    ], axis
