"""Products in which 0 wins over NaN and Inf, so that garbage behind a cut stays there, in derivatives too."""

import jax.numpy as jnp
from jax import lax

from rltriton_jax.scan.jax_internals import ad, mlir
from rltriton_jax.scan.rules import aligned, bind, define, result_aval


def weighted(weight, state):
    """weight * state, but 0 where the weight is 0, whatever the state is, and where 0 meets an infinite weight.

    Of finite weights a composite may have an infinite one, and a state of 0 is 0 after each of them.
    """
    return jnp.where((weight == 0) | ((state == 0) & jnp.isinf(weight)), 0, weight * state)


def unbroadcast(x, shape):
    """Sums over the axes on which `shape` has 1 and x has more."""
    axes = tuple(a for a, (full, size) in enumerate(zip(x.shape, shape, strict=True)) if size == 1 and full != 1)
    return jnp.sum(x, axes, keepdims=True) if axes else x


def scaled(tangent, factor):
    """tangent * factor, linear in `tangent`, and 0 where either is 0 whatever the other is.

    Its transpose is itself: a cotangent of 0 stays 0. Operands have one rank; sizes agree or are 1.
    """
    return bind(scaled_p, tangent, factor)


def _scaled(tangent, factor):
    # Said so that XLA sees through it where the factor is a constant, 1 most often.
    product = tangent * factor
    return lax.select((factor == 0) | ((tangent == 0) & ~lax.is_finite(factor)), lax.full_like(product, 0), product)


def _abstract_eval(tangent, factor):
    return result_aval((tangent, factor), jnp.broadcast_shapes(tangent.shape, factor.shape), tangent.dtype)


def _batch(args, dims):
    args, axis = aligned(args, dims)
    return scaled(*args), axis


def _jvp(primals, tangents):
    (tangent, factor), (dtangent, dfactor) = primals, tangents
    out = scaled(tangent, factor)
    changes = ((dtangent, factor), (dfactor, tangent))
    parts = [scaled(d, other) for d, other in changes if not isinstance(d, ad.Zero)]
    return out, jnp.broadcast_to(sum(parts[1:], parts[0]), out.shape)


def _transpose(cotangent, tangent, factor):
    if isinstance(cotangent, ad.Zero):
        return [ad.Zero(tangent.aval), None]
    return [unbroadcast(scaled(cotangent, factor), tangent.aval.shape), None]


scaled_p = define(
    "scaled",
    abstract_eval=_abstract_eval,
    batch=_batch,
    jvp=_jvp,
    transpose=_transpose,
    lower={None: mlir.lower_fun(_scaled, multiple_results=False)},
)
