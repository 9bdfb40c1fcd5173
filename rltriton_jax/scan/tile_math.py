"""What `jnp` means inside the kernel: the part of `jax.numpy` in which the algebra of recurrences may be written.

`translate` turns a function of that algebra into a Triton function by rebinding `jnp` (and the helpers that it calls).
"""

import functools
import sys
import types

import triton
import triton.language as tl


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
    """The Triton function with the body of `function`, in which `jnp` is this module."""
    names = dict(function.__globals__)
    names.update(jnp=_THIS, tl=tl)
    for name in function.__code__.co_names:
        value = names.get(name)
        if isinstance(value, types.FunctionType):
            names[name] = translate(value)
    return triton.jit(types.FunctionType(function.__code__, names, function.__name__))


_THIS = sys.modules[__name__]
