"""What `jnp` means inside the kernel: each function that `rltriton_jax.scan.algebra` allows, in Triton."""

import functools
import sys
import types

import triton
import triton.language as tl

from rltriton_jax.scan.algebra import helpers


@triton.jit
def where(condition, x, y):
    return tl.where(condition, x, y)


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def minimum(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def maximum(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@functools.cache
def translate(function: types.FunctionType) -> triton.JITFunction:
    """The Triton function with the body of `function`, in which `jnp` is this module and helpers are translated too."""
    names = dict(function.__globals__, jnp=_THIS, tl=tl)
    names.update((name, translate(helper)) for name, helper in helpers(function).items())
    return triton.jit(types.FunctionType(function.__code__, names, function.__name__))


_THIS = sys.modules[__name__]
