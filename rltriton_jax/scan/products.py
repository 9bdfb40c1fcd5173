"""Products in which 0 wins over NaN and Inf, so that garbage behind a cut stays there, in derivatives too."""

import functools

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from rltriton_jax.scan.rules import aligned, bind, result_aval


def mul0(a, b):
    """a * b, but 0 where a is 0 whatever b is."""
    return jnp.where(a == 0, 0, a * b)


def sum_to(x, shape):
    """Sums over the axes on which `shape` has 1 and x has more."""
    axes = tuple(a for a, (full, size) in enumerate(zip(x.shape, shape, strict=True)) if size == 1 and full != 1)
    return jnp.sum(x, axes, keepdims=True) if axes else x


scaled_p = Primitive("scaled")
scaled_p.def_impl(functools.partial(xla.apply_primitive, scaled_p))


def _scaled(tangent, factor):
    return jnp.where((tangent == 0) | (factor == 0), 0, tangent * factor)


mlir.register_lowering(scaled_p, mlir.lower_fun(_scaled, multiple_results=False))


def scaled(tangent, factor):
    """tangent * factor, linear in `tangent`, and 0 where either is 0 whatever the other is.

    Its transpose is itself: a cotangent of 0 stays 0. Operands have one rank; sizes agree or are 1.
    """
    return bind(scaled_p, tangent, factor)


@scaled_p.def_abstract_eval
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
    return [sum_to(scaled(cotangent, factor), tangent.aval.shape), None]


batching.primitive_batchers[scaled_p] = _batch
ad.primitive_jvps[scaled_p] = _jvp
ad.primitive_transposes[scaled_p] = _transpose
