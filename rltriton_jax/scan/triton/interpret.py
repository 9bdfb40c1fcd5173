"""The kernel under Triton's interpreter, on NumPy arrays on the host: for tests on machines without a GPU."""

import functools
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np

from rltriton_jax.scan.triton import algebra
from rltriton_jax.scan.triton.launch import constants, kernel_for
from rltriton_jax.scan.triton.plan import Plan

_LOCK = threading.Lock()


class _HostArray:
    """A NumPy array with the few methods of a tensor that the interpreter asks for."""

    def __init__(self, array: np.ndarray):
        self.array = array
        self.dtype = "int1" if array.dtype == bool else array.dtype.name

    def data_ptr(self):
        return self.array.ctypes.data

    def element_size(self):
        return self.array.itemsize

    def size(self):
        return self.array.shape

    def stride(self):
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def storage_offset(self):
        return 0

    def untyped_storage(self):
        return self

    def cpu(self):
        return self

    def new_empty(self, *_, **__):
        return self

    def set_(self, *_):
        return self

    def copy_(self, _):
        return self


@functools.cache
def _interpreted(function):
    """The interpreted twin of a jitted function, in which all jitted functions that it calls are twins too."""
    from triton.runtime.interpreter import InterpretedFunction

    names = dict(function.fn.__globals__)
    copy = types.FunctionType(function.fn.__code__, names, function.fn.__name__)
    copy.__annotations__ = dict(function.fn.__annotations__)
    names.update({name: _interpreted_twin(names[name]) for name in function.fn.__code__.co_names if name in names})
    return InterpretedFunction(copy)


class _Device:
    """A twin that is called from a kernel, where the interpreter is set up already."""

    def __init__(self, function):
        self.function = function

    @functools.cached_property
    def fn(self):
        return _interpreted(self.function).rewrite()

    def __call__(self, *args, **kwargs):
        return self.fn(*args, **kwargs)


def _interpreted_twin(value):
    import triton

    if isinstance(value, triton.JITFunction) and not value.fn.__module__.startswith("triton"):
        return _Device(value)
    if value is algebra:
        return types.SimpleNamespace(
            **{k: _interpreted_twin(v) for k, v in vars(value).items() if isinstance(v, triton.JITFunction)}
        )
    return value


def run_interpreted(plan: Plan, operands):
    """The interpreter's run, as a host callback."""
    return jax.pure_callback(functools.partial(_run, plan), tuple(plan.results), *operands, vmap_method="sequential")


def _dtype(array):
    """In which dtype the interpreter holds it: it truncates where it rounds to bfloat16, and takes -0.0 for not 0."""
    return np.float32 if array.dtype == jnp.bfloat16 else array.dtype


def _run(plan: Plan, *operands):
    arrays = [np.ascontiguousarray(o, _dtype(o)) for o in operands]
    written, scratch = ([np.zeros(r.shape, _dtype(r)) for r in results] for results in (plan.results, plan.scratch))
    pointers = [*arrays, *scratch[-1:], *written, *scratch[:-1]]
    kernel = kernel_for(len(arrays), len(written), bool(scratch), False, plan.program.num_carried)
    with _LOCK, np.errstate(all="ignore"):
        twins = {name: _interpreted_twin(value) for name, value in constants(plan).items()}
        _interpreted(kernel)[(plan.programs,)](*map(_HostArray, pointers), **twins)
    return tuple(array.astype(r.dtype) for array, r in zip(written, plan.results, strict=True))
