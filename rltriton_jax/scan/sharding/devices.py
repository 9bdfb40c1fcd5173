"""Lowering for several devices: each is given the part of the operands that it holds.

XLA cannot look into a kernel, and would gather the operands of one. Here each device runs the kernel on its own part
instead: by `custom_partitioning` where XLA chooses the shardings, by `shard_map` where they are part of the types (an
explicit mesh). In the body of a user's own `shard_map` the operands are local already.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rltriton_jax.scan.jax_internals import (
    automatic_axes_beside_manual,
    custom_partitioning,
    mlir,
    num_automatic_devices,
)


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
    for aval in ctx.avals_in:
        mesh = aval.sharding.mesh
        if not mesh.empty and AxisType.Explicit in mesh.axis_types:
            return mesh
    return None


def on_each_shard(ctx: mlir.LoweringRuleContext, part: Callable[..., Any], time_axis: int) -> Callable[..., Any]:
    """A function of whole arrays, for which each device calls `part(time_names, *operands)` on what it holds of them.

    `time_names` are the mesh axes over which time is split, () where it is not. Operands and results have one rank; an
    operand has the full size on an axis or 1.
    """
    shape, num_results = ctx.avals_out[0].shape, len(ctx.avals_out)

    def results_of(names, *operands):
        return tuple(part(names, *operands))

    def specs(spec, mesh, operands):
        spec = (*spec, *(None,) * (len(shape) - len(spec)))
        names = _names(spec[time_axis])
        count = math.prod(mesh.shape[name] for name in names)
        if shape[time_axis] % count:
            raise ValueError(
                f"the operands hold {shape[time_axis]} steps, split over {count} devices along time; "
                "make the number of steps a multiple of that, or shard batch axes instead."
            )
        return names, [P(*(None if n == 1 else s for n, s in zip(x.shape, spec))) for x in operands], P(*spec)

    def with_types(mesh, *operands):
        names, ins, out = specs(ctx.avals_out[0].sharding.spec, mesh, operands)
        explicit = {n for n, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}
        return jax.shard_map(
            functools.partial(results_of, names),
            mesh=mesh,
            in_specs=tuple(ins),
            out_specs=(out,) * num_results,
            axis_names=explicit,
            check_vma=False,
        )(*(jax.sharding.reshard(x, NamedSharding(mesh, spec)) for x, spec in zip(operands, ins, strict=True)))

    def partition(mesh, operands, results):
        if not isinstance(results[0].sharding, NamedSharding):
            raise ValueError(f"operands are sharded by {results[0].sharding}; use jax.sharding.NamedSharding.")
        names, ins, out = specs(results[0].sharding.spec, mesh, operands)

        def local(*operands):
            with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):  # the user's mesh is not the part's
                return results_of(names, *operands)

        return mesh, local, (NamedSharding(mesh, out),) * num_results, tuple(NamedSharding(mesh, s) for s in ins)

    def with_xla(*operands):
        call = custom_partitioning(functools.partial(results_of, ()))
        call.def_partition(partition, sharding_rule=_sharding_rule([x.shape for x in operands], shape, num_results))
        return call(*operands)

    mesh = _explicit_mesh(ctx)
    return with_xla if mesh is None else functools.partial(with_types, mesh)


def _names(entry) -> tuple[Any, ...]:
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def _sharding_rule(in_shapes, shape, num_results):
    """Every axis passes through; one of size 1 has no other array's sharding."""

    def factors(i, s):
        return " ".join(f"axis{d}" if n == shape[d] else f"one{i}_{d}" for d, n in enumerate(s))

    result = " ".join(f"axis{d}" for d in range(len(shape)))
    return f"{', '.join(factors(i, s) for i, s in enumerate(in_shapes))} -> {', '.join([result] * num_results)}"
