"""The one primitive, `affine_scan_p`, and its rules but for its derivatives, which `scan.derivatives` gives it.

Operands have one rank, except that those of a weighted sum have one axis more, the last, for its terms. On every other
axis an operand has the full size or 1 (it is then the same all along it), except that on `time_axis` one may hold T + 1
steps. Every axis but these two is batch.

Parameters: `recurrence`; `time_axis`; `dtype` of the outputs; `wanted`, the indices of the outputs asked for, or
COMPOSITE; `implementation`, a name or None for the platform's own.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental import checkify

from rltriton_jax.scan.implementation import resolve_implementation
from rltriton_jax.scan.jax_internals import check_under_checkify, drop_unused_outputs
from rltriton_jax.scan.lowering import LOWERINGS
from rltriton_jax.scan.plain import scan as plain
from rltriton_jax.scan.recurrence import COMPOSITE, Recurrence
from rltriton_jax.scan.rules import aligned, bind, define, result_aval


def affine_scan(
    recurrence: Recurrence, operands: Sequence[jax.Array], *, time_axis: int, dtype, implementation: str | None = None
) -> tuple[jax.Array, ...]:
    """Binds the primitive: all outputs of `recurrence`, of the operands' common shape with T steps."""
    params = {
        "recurrence": recurrence,
        "time_axis": time_axis,
        "dtype": jnp.dtype(dtype),
        "wanted": tuple(range(recurrence.num_outputs)),
        "implementation": resolve_implementation(implementation),
    }
    return tuple(_bind_as_one(*operands, params=tuple(params.items())))


@functools.partial(jax.jit, static_argnames="params", inline=True)
def _bind_as_one(*operands, params):
    """An eager call and each of its derivatives run as one program.

    Only what comes out of it does `jax.debug_nans` look at, and not garbage on its way to where it is left out.
    """
    return bind(affine_scan_p, *operands, **dict(params))


def _abstract_eval(*avals, recurrence, time_axis, dtype, wanted, implementation):
    shape = plain.output_shape(avals, time_axis)
    state = plain.compute_dtype(dtype)
    if wanted == COMPOSITE:
        return [result_aval(avals, (*shape[:time_axis], 1, *shape[time_axis + 1 :]), state)] * 2
    return [result_aval(avals, shape, state if i == recurrence.state else dtype) for i in wanted]


def _check_flags(*operands, recurrence, **_):
    """What a caller cannot see of traced flags: each holds 0 or 1. A bool cannot hold anything else."""
    reads = [r for each in (recurrence, *dict(recurrence.carried).values()) for r in each.reads]
    flags = {r.operand for r in reads if r.kind == "flag"}
    for name, x in zip(recurrence.operands, operands, strict=True):
        if name in flags and x.dtype != jnp.bool_:
            checkify.debug_check(jnp.all((x == 0) | (x == 1)), f"{name} holds flags that are neither 0 nor 1")


def _dce(used, *rest):
    eqn = rest[-1]
    if not any(used):
        return [False] * len(eqn.invars), None
    if eqn.params["wanted"] == COMPOSITE:
        return [True] * len(eqn.invars), eqn
    keep = [i for i, u in enumerate(used) if u]
    params = {**eqn.params, "wanted": tuple(eqn.params["wanted"][i] for i in keep)}
    return [True] * len(eqn.invars), eqn.replace(outvars=[eqn.outvars[i] for i in keep], params=params)


def _batch(args, dims, *, time_axis, **params):
    args, axis = aligned(args, dims)
    results = bind(affine_scan_p, *args, time_axis=time_axis + (axis <= time_axis), **params)
    return results, [axis] * len(results)


affine_scan_p = define(
    "affine_scan",
    abstract_eval=_abstract_eval,
    batch=_batch,
    lower=LOWERINGS,
    multiple_results=True,
)
drop_unused_outputs(affine_scan_p, _dce)
check_under_checkify(affine_scan_p, _check_flags)
