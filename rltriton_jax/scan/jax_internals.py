"""Everything of JAX that is private or differs between its versions, each with the reason for its use."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax._src import checkify as _checkify
from jax._src.interpreters.mlir import lower_with_sharding_in_types
from jax._src.sharding_impls import ShardingContext, SPMDAxisContext
from jax.core import ShapedArray
from jax.experimental import checkify

# XLA gathers the operands of a call that it cannot look into; this is the only way to tell it how to split one.
from jax.experimental.custom_partitioning import custom_partitioning as custom_partitioning
from jax.extend.core import Literal as Literal
from jax.extend.core import Primitive as Primitive

# The rules of a primitive are registered in these modules; there is no other place for them.
from jax.interpreters import ad as ad
from jax.interpreters import batching as batching
from jax.interpreters import mlir as mlir
from jax.interpreters import partial_eval, xla


def run_eagerly(primitive: Primitive) -> None:
    """Lets eager calls run as a compiled program that is cached; a `jax.jit` made at each call would compile again."""
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))


def drop_unused_outputs(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Lets `rule` shorten an equation of which not all outputs are used; JAX 0.12 gives it the live inputs too."""
    partial_eval.dce_rules[primitive] = rule


def zero_tangent(x) -> ad.Zero:
    """The symbolic tangent of what does not move."""
    return ad.Zero(jax.typeof(x).to_tangent_aval())


def debugs_nans() -> bool:
    """Is `jax.debug_nans` on? Type checkers do not know the attribute of `jax.config` by which to ask."""
    return getattr(jax.config, "jax_debug_nans")  # noqa: B009


def retyped(aval: ShapedArray, shape, dtype, sharding) -> ShapedArray:
    """The type `aval` with another shape, dtype and sharding; the manual axes along which it varies stay."""
    return aval.update(shape=tuple(shape), dtype=dtype, weak_type=False, sharding=sharding)


def platforms(ctx: mlir.LoweringRuleContext) -> tuple[str, ...]:
    """The platforms that a program is lowered for; a lowering rule has no public way to ask."""
    return tuple(ctx.module_context.platforms)


def num_automatic_devices(ctx: mlir.LoweringRuleContext) -> int:
    """Over how many devices XLA may split what is lowered; lowering rules have no public way to ask."""
    context = ctx.module_context.axis_context
    return context.num_devices if isinstance(context, ShardingContext) else 1


def with_any_devices(ctx: mlir.LoweringRuleContext) -> mlir.LoweringRuleContext:
    """The context for `custom_partitioning`, which wants the devices that XLA splits over, and only looks at how many.

    JAX would tell which they are, but then refuses programs with more than one mesh.
    """
    count = num_automatic_devices(ctx)
    devices = (jax.local_devices()[0],) * count
    return ctx.replace(module_context=ctx.module_context.replace(axis_context=ShardingContext(count, devices)))


def sharded_by_type(ctx: mlir.LoweringRuleContext, results) -> list[Any]:
    """Lowered results, sharded over the explicit axes of a mesh as their types say, as JAX's own rules do."""
    return [lower_with_sharding_in_types(ctx, x, aval) for x, aval in zip(results, ctx.avals_out, strict=True)]


def hlo_sharding(sharding: Any, ndim: int) -> Any:
    """The sharding of an array of `ndim` axes as XLA has it; JAX decodes it only where it knows of one mesh."""
    return sharding._to_xla_hlo_sharding(ndim)


def automatic_axes_beside_manual(ctx: mlir.LoweringRuleContext) -> dict[Any, int]:
    """In the body of a `shard_map`, the mesh axes over which XLA may still split; there is no public way to ask."""
    context = ctx.module_context.axis_context
    if not isinstance(context, SPMDAxisContext):
        return {}
    return {name: n for name, n in context.mesh.shape.items() if name not in context.manual_axes}


def varying_axes(aval: ShapedArray) -> frozenset[Any]:
    """The manual mesh axes along which a value differs between devices; JAX before 0.10 has it as `vma`."""
    return aval.manual_axis_type.varying


def check_under_checkify(primitive: Primitive, check: Callable[..., None]) -> None:
    """Under `checkify.checkify`, and only there, each call of `primitive` runs `check(*operands, **params)` too.

    `check` calls `checkify.debug_check`. Called beside the primitive instead, that would leave its condition and an
    effect, which `jax.export` cannot serialise, in every traced program. There is no public way to add such a rule.
    """

    def rule(*args, **params):
        at = next(i for i, a in enumerate(args) if isinstance(a, checkify.Error))  # JAX 0.12 passes a context first
        error, enabled, *operands = args[at:]
        jaxpr = jax.make_jaxpr(lambda *xs: check(*xs, **params))(*operands)
        error, _ = _checkify.checkify_jaxpr(*args[:at], jaxpr, enabled, error, *operands)
        return error, primitive.bind(*operands, **params)

    _checkify.error_checks[primitive] = rule
