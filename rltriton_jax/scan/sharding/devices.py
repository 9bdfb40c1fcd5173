"""Lowering for several devices: each is given the part of the operands that it holds.

XLA cannot look into a kernel, and would gather the operands of one. Here each device runs the kernel on its own part
instead: by `custom_partitioning` where XLA chooses the shardings, by `shard_map` where they are part of the types (an
explicit mesh). In the body of a user's own `shard_map` the operands are local already.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rltriton_jax.scan.jax_internals import (
    automatic_axes_beside_manual,
    custom_partitioning,
    hlo_sharding,
    mlir,
    num_automatic_devices,
    retyped,
    sharded_by_type,
    with_any_devices,
)
from rltriton_jax.scan.sharding.split import NOT_SPLIT, split_by_types, split_by_xla, whole

NO_MESH = AbstractMesh((), ())


def is_split(ctx: mlir.LoweringRuleContext) -> bool:
    """Is the computation lowered for several devices, each of which holds a part of the operands?"""
    return _explicit_mesh(ctx) is not None or is_split_by_xla(ctx)


def is_split_by_xla(ctx: mlir.LoweringRuleContext) -> bool:
    """Does XLA choose the shardings, rather than an explicit mesh?"""
    return _explicit_mesh(ctx) is None and num_automatic_devices(ctx) > 1


def is_partly_manual(ctx: mlir.LoweringRuleContext) -> bool:
    """Is it the body of a `shard_map` over some axes of the mesh, in which XLA splits over the others?"""
    return _explicit_mesh(ctx) is None and any(n > 1 for n in automatic_axes_beside_manual(ctx).values())


def _explicit_mesh(ctx):
    """The mesh whose types say all; where XLA splits over other axes of it, XLA knows those that types name too."""
    for aval in ctx.avals_in:
        mesh = aval.sharding.mesh
        kinds = {kind for kind, n in zip(mesh.axis_types, mesh.axis_sizes, strict=True) if n > 1}
        if not mesh.empty and AxisType.Explicit in mesh.axis_types and (AxisType.Auto not in kinds):
            return mesh
    return None


def lower(ctx: mlir.LoweringRuleContext, function: Callable[..., Any], *operands):
    """Lowers a function of whole arrays that calls what `on_each_shard` gives."""
    if not is_split_by_xla(ctx):
        return mlir.lower_fun(function, multiple_results=True)(ctx, *operands)
    inner = with_any_devices(ctx).replace(avals_in=[_untyped(a) for a in ctx.avals_in])
    results = mlir.lower_fun(_outside_meshes(function), multiple_results=True)(inner, *operands)
    return sharded_by_type(ctx, results)


def _untyped(aval):
    """The type without a sharding, which XLA knows already."""
    return retyped(aval, aval.shape, aval.dtype, NamedSharding(NO_MESH, P(*(None,) * aval.ndim)))


def _outside_meshes(function):
    """The same function, in which the user's mesh does not hold."""

    def outside(*operands):
        with jax.sharding.use_abstract_mesh(NO_MESH):
            return function(*operands)

    return outside


def on_each_shard(
    ctx: mlir.LoweringRuleContext, part: Callable[..., Any], time_axis: int, num_results: int
) -> Callable[..., Any]:
    """A function of whole arrays, for which each device calls `part(time, *operands)` on what it holds of them.

    `time` are the `Axes` over which time is split. Operands and results have one rank; an operand has the full size on
    an axis or 1.
    """
    shape = ctx.avals_out[0].shape
    mesh = _explicit_mesh(ctx)
    if mesh is None:
        return functools.partial(_as_xla_splits, part, shape, num_results, time_axis, num_automatic_devices(ctx))
    return functools.partial(_as_types_say, part, shape, num_results, time_axis, ctx.avals_out[0].sharding)


def on_one_device(ctx: mlir.LoweringRuleContext, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of whole arrays, that calls back to the host: XLA gathers for one device what it splits."""
    everywhere = whole(len(ctx.avals_out[0].shape), num_automatic_devices(ctx))

    def with_results_everywhere(*operands, **params):
        with jax.sharding.use_abstract_mesh(everywhere.mesh):
            results = function(*operands, **params)
            return [jax.lax.with_sharding_constraint(x, everywhere.sharding(x.shape)) for x in results]

    return with_results_everywhere


def _results(part, time, *operands):
    return tuple(part(time, *operands))


def _as_types_say(part, shape, num_results, time_axis, sharding, *operands):
    mesh = sharding.mesh
    split = split_by_types(sharding, len(shape)).dividing(time_axis, shape[time_axis])
    ins = [split.sharding(x.shape) for x in operands]
    return jax.shard_map(
        functools.partial(_results, part, split.axes(time_axis)),
        mesh=mesh,
        in_specs=tuple(s.spec for s in ins),
        out_specs=(split.sharding(shape).spec,) * num_results,
    )(*(jax.sharding.reshard(x, s) for x, s in zip(operands, ins, strict=True)))


def _as_xla_splits(part, shape, num_results, time_axis, num_devices, *operands):
    steps = shape[time_axis]

    def read(arrays):
        return [split_by_xla(x.sharding, len(shape), num_devices) for x in arrays]

    def first(splits):
        return next((s for s in splits if s is not None and any(s.names)), whole(len(shape), num_devices))

    def infer(_, operands, results):
        """GSPMD asks for the results' shardings first; Shardy reads the sharding rule."""
        return (first(read(operands)).sharding(shape),) * num_results

    def partition(_, operands, results):
        """Split as the first result that is split, else as the first such operand; XLA moves what differs."""
        splits = read((*results, *operands))
        wanted = first(splits)
        chosen = wanted.dividing(time_axis, steps)
        if None in splits:
            _warn_of_a_gather("devices are in an order that no mesh has; use one mesh", shape, results, operands)
        if chosen != wanted and steps:
            _warn_of_a_gather(
                f"{wanted.count(time_axis)} devices along time do not divide {steps} steps; make the number of steps a "
                "multiple of that, or shard batch axes instead",
                shape,
                results,
                operands,
            )
        local = _outside_meshes(functools.partial(_results, part, chosen.axes(time_axis)))
        outs, ins = ([chosen.sharding(x.shape) for x in arrays] for arrays in (results, operands))
        return chosen.mesh, local, tuple(outs), tuple(ins)

    call = custom_partitioning(functools.partial(_results, part, NOT_SPLIT))
    call.def_partition(
        partition,
        infer_sharding_from_operands=infer,
        decode_shardings=False,
        sharding_rule=_sharding_rule([x.shape for x in operands], shape, num_results),
    )
    return call(*operands)


def _warn_of_a_gather(reason, shape, results, operands):
    given, made = (
        ", ".join(f"{x.shape} {hlo_sharding(x.sharding, len(shape))}" for x in a) for a in (operands, results)
    )
    warnings.warn(f"A scan gathers what XLA has split: {reason}. Operands: {given}; results: {made}.", stacklevel=2)


def _sharding_rule(in_shapes, shape, num_results):
    """Every axis passes through; one of size 1 has no other array's sharding."""

    def factors(i, s):
        return " ".join(f"axis{d}" if n == shape[d] else f"one{i}_{d}" for d, n in enumerate(s))

    result = " ".join(f"axis{d}" for d in range(len(shape)))
    return f"{', '.join(factors(i, s) for i, s in enumerate(in_shapes))} -> {', '.join([result] * num_results)}"
