"""The algebra and its partial derivatives, of any order, as one primitive.

In the reverse mode that JAX has for the algebra, a cotangent of 0 meets what a select has left out: 0 * Inf. Here every
derivative is a sum of tangent * partial instead. Forward mode takes the partial, in which a select drops what it leaves
out, and `scaled` the product, in which 0 wins; differentiated again, both give the like.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rltriton_jax.scan.jax_internals import Literal, ad, mlir, zero_tangent
from rltriton_jax.scan.plain.products import scaled
from rltriton_jax.scan.recurrence import Recurrence
from rltriton_jax.scan.rules import aligned, bind, define, result_aval
from rltriton_jax.scan.sharding.devices import NO_MESH


class Algebra(NamedTuple):
    """An elementwise function of what a step reads, by name, and of what else it takes."""

    function: Callable[..., tuple[Any, ...]]
    reads: type
    dtype: np.dtype
    kinds: tuple[np.dtype, ...]
    """The dtype of each argument; those of another than `dtype` do not move."""

    def __call__(self, *arguments):
        count = len(self.reads._fields)
        return self.function(self.reads(*arguments[:count]), *arguments[count:])


def coefficients_of(recurrence: Recurrence, dtype) -> Algebra:
    return Algebra(recurrence.coefficients, type(recurrence.reads), np.dtype(dtype), recurrence.dtypes(dtype))


def outputs_of(recurrence: Recurrence, dtype) -> Algebra:
    """Its last two arguments are the state and the one that entered the step."""
    dtype = np.dtype(dtype)
    return Algebra(recurrence.outputs, type(recurrence.reads), dtype, (*recurrence.dtypes(dtype), dtype, dtype))


def evaluate(algebra: Algebra, output: int, arguments: Sequence[jax.Array]) -> jax.Array:
    """One output of the algebra, of the arguments' rank."""
    out = _partial(algebra, output, (), arguments)
    return out if isinstance(out, jax.Array) else jnp.full((1,) * arguments[0].ndim, out, algebra.dtype)


def differential(algebra: Algebra, output: int, arguments: Any, tangents: Mapping[int, jax.Array], by=()):
    """The sum of tangent * partial over the arguments that have a tangent; None where the output cannot move.

    It is that of one output, or of its partial derivative `by` these arguments.
    """
    parts = []
    for i in sorted(tangents.keys() & set(_moving_arguments(algebra, output, by))):
        partial = _partial(algebra, output, tuple(sorted((*by, i))), arguments)
        if isinstance(partial, jax.Array):
            parts.append(scaled(tangents[i], partial))
        elif partial:
            parts.append(tangents[i] if partial == 1 else tangents[i] * partial)
    return functools.reduce(jnp.add, parts) if parts else None


def inputs_of_change(recurrence: Recurrence, dtype, reads: Any, changes: Mapping[int, jax.Array], entering):
    """(w, du + dw * entering) at the changes of these reads; None in place of inputs that are 0.

    Garbage that enters behind a cut counts as 0.
    """
    coefficients = coefficients_of(recurrence, dtype)
    w = evaluate(coefficients, 0, reads)
    dw, du = (differential(coefficients, i, reads, changes) for i in (0, 1))
    if dw is None:
        return w, du
    through_weight = scaled(dw, finite_behind_cuts(entering, w))
    return w, through_weight if du is None else du + through_weight


def finite_behind_cuts(entering, w):
    """The state that enters each step, as the factor of the weight's tangent: garbage behind a cut counts as 0."""
    return jnp.where((w == 0) & ~jnp.isfinite(entering), 0, entering)


def finite_weights(w):
    """The weights by which tangents go on.

    One that is not finite has made the results of its own sequence so; the tangents of others must stay as they are.
    """
    return jnp.where(jnp.isfinite(w), w, 0)


def change_of_output(recurrence: Recurrence, dtype, i: int, arguments: Any, changes: Mapping[int, jax.Array]):
    """The change of the output `i` at those of its arguments: the reads, x and entering; None where it is 0."""
    if i == recurrence.state:
        return changes[len(recurrence.reads)]
    return differential(outputs_of(recurrence, dtype), i, arguments, changes)


def change_needs_state(recurrence: Recurrence, dtype, wanted, moved: Sequence[int]) -> bool:
    """Does the change of these outputs at that of the reads `moved` depend on the state, or on the one that entered?"""
    coefficients, outputs = coefficients_of(recurrence, dtype), outputs_of(recurrence, dtype)
    if set(moved) & set(_moving_arguments(coefficients, 0, ())):
        return True
    state = {len(recurrence.reads), len(recurrence.reads) + 1}
    return any(
        state & set(_moving_arguments(outputs, output, (i,)))
        for output in wanted
        if output != recurrence.state
        for i in {*moved, *state} & set(_moving_arguments(outputs, output, ()))
    )


def _partial(algebra, output, by, arguments) -> jax.Array | float:
    """A partial derivative; a number where it is the same everywhere."""
    moving = _moving_arguments(algebra, output, by)
    if not moving:
        return _constant(algebra, output, by)
    return bind(partial_p, *(arguments[i] for i in moving), algebra=algebra, output=output, by=by)


def _function(algebra, output, by):
    """The partial derivative of one output `by` these arguments, as a function of all arguments."""
    if not by:
        return lambda *arguments: algebra(*arguments)[output]
    inner, i = _function(algebra, output, by[1:]), by[0]

    def derivative(*arguments):
        def of(x):
            return inner(*arguments[:i], x, *arguments[i + 1 :])

        return jax.jvp(of, (arguments[i],), (jnp.ones_like(arguments[i]),))[1]

    return derivative


@functools.cache
def _moving_arguments(algebra, output, by) -> tuple[int, ...]:
    """The arguments with which the partial derivative can change, read off the traced program."""
    scalars = [jax.ShapeDtypeStruct((), kind) for kind in algebra.kinds]
    with jax.sharding.use_abstract_mesh(NO_MESH):
        jaxpr = jax.make_jaxpr(_function(algebra, output, by))(*scalars).jaxpr
    needed = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    for eqn in reversed(jaxpr.eqns):
        if not needed.isdisjoint(eqn.outvars):
            needed.update(v for v in eqn.invars if not isinstance(v, Literal))
    return tuple(i for i, v in enumerate(jaxpr.invars) if v in needed)


@functools.cache
def _constant(algebra, output, by) -> float:
    with jax.ensure_compile_time_eval(), jax.sharding.use_abstract_mesh(NO_MESH):
        return float(jax.jit(_function(algebra, output, by))(*(jnp.ones((), kind) for kind in algebra.kinds)))


def _run(*operands, algebra, output, by):
    found = dict(zip(_moving_arguments(algebra, output, by), operands, strict=True))
    arguments = [found[i] if i in found else jnp.zeros_like(operands[0], kind) for i, kind in enumerate(algebra.kinds)]
    return _function(algebra, output, by)(*arguments).astype(algebra.dtype)


def _abstract_eval(*avals, algebra, **_):
    return result_aval(avals, jnp.broadcast_shapes(*(a.shape for a in avals)), algebra.dtype)


def _batch(args, dims, **params):
    args, axis = aligned(args, dims)
    return bind(partial_p, *args, **params), axis


def _jvp(primals, tangents, *, algebra, output, by):
    out = bind(partial_p, *primals, algebra=algebra, output=output, by=by)
    moving = _moving_arguments(algebra, output, by)
    arguments = dict(zip(moving, primals, strict=True))
    known = {
        i: t
        for i, t in zip(moving, tangents, strict=True)
        if algebra.kinds[i] == algebra.dtype and not isinstance(t, ad.Zero)
    }
    change = differential(algebra, output, arguments, known, by)
    return out, zero_tangent(out) if change is None else jnp.broadcast_to(change, out.shape)


partial_p = define(
    "algebra",
    abstract_eval=_abstract_eval,
    batch=_batch,
    jvp=_jvp,
    lower={None: mlir.lower_fun(_run, multiple_results=False)},
)
