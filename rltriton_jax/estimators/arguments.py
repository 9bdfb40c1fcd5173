"""What a user passes: bound to its parameters, made an array of numbers, or refused in words that help."""

import difflib
import functools
import inspect
import operator
import reprlib
from collections.abc import Callable, Iterator, Set
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

F = TypeVar("F", bound=Callable[..., Any])

FLOATS = ("float32", "bfloat16", "float16", "float64")
NUMBERS = {jnp.dtype(name) for name in FLOATS} | {np.dtype(code) for code in "?bhilqBHILQ"}

FIXES = {
    "c": "pass its real part, {name}.real",
    "M": "pass the time since some start in some unit, ({name} - start) / np.timedelta64(1, 's')",
    "m": "pass it in some unit, {name} / np.timedelta64(1, 's')",
    "O": "stack the arrays in it with np.stack, with zeros where it has None (as Gymnasium's final_obs has)",
    "S": "pass the numbers that it spells, {name}.astype(np.float32)",
    "U": "pass the numbers that it spells, {name}.astype(np.float32)",
}
"""By the kind of a NumPy dtype."""

ITERABLES = (Iterator, Set)
"""What JAX takes for one leaf of a pytree, and will refuse."""

ALIASES = {
    "gamma": "discount discounts discount_factor discount_t",
    "discount": "gamma",
    "discount_t": "gamma gammas discounts",
    "lambda_": "lambda lam lambd lmbda gae_lambda td_lambda trace_decay",
    "terminated": "done dones termination terminations terminal terminals",
    "done": "dones terminated termination terminations terminal terminals",
    "truncated": "truncation truncations timeout timeouts",
    "bootstrap_value": "last_value last_values last_val next_value",
    "final_values": "final_value terminal_value terminal_values",
    "log_rhos": "log_ratio log_ratios log_importance_weights",
    "time_axis": "axis time_dim time_major",
    "initial": "init initial_value initial_state carry",
    "implementation": "backend impl",
}
"""By the name that it has here, what an argument is called elsewhere."""


def bind(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of `name` by parameter, defaults included."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        raise TypeError(_misfit(name, signature, args, kwargs)) from None
    bound.apply_defaults()
    return bound.arguments


def _misfit(name, signature, args, kwargs) -> str:
    """Why a call does not fit the signature."""
    positional = [p.name for p in signature.parameters.values() if p.kind != p.KEYWORD_ONLY]
    keyword_only = [p for p in signature.parameters if p not in positional]
    takes = f"{name} takes ({', '.join([*positional, *(['*'] if keyword_only else []), *keyword_only])})"
    for keyword in kwargs:
        if keyword not in signature.parameters:
            near = _meant(keyword, signature.parameters)
            return f"{name} has no argument {keyword}{f'; did you mean {near}?' if near else '.'} {takes}."
    if len(args) > len(positional):
        shape = getattr(args[len(positional)], "shape", None)
        also = f"; {', '.join(keyword_only)} are keyword-only" if keyword_only else ""
        return (
            f"{name} was given {len(args)} arguments by position{'' if shape is None else f', one of shape {shape}'}, "
            f"but takes {len(positional)} ({', '.join(positional)}){also}."
        )
    for i, parameter in enumerate(positional[: len(args)], 1):
        if parameter in kwargs:
            return f"{name} was given {parameter} twice, as argument {i} and by its name; leave one out. {takes}."
    required = [p.name for p in signature.parameters.values() if p.default is p.empty]
    missing = [p for p in required if p not in positional[: len(args)] and p not in kwargs]
    return f"{name} was not given {' and '.join(missing)}; pass {', '.join(required)}. {takes}."


def _meant(keyword, parameters) -> str | None:
    known = [p for p in parameters if keyword in ALIASES.get(p, "").split()]
    return next(iter(known or difflib.get_close_matches(keyword, parameters, n=1)), None)


def static(name: str, value):
    """`value`, which must be known while tracing."""
    if isinstance(value, Tracer):
        raise TypeError(
            f"{name} is traced ({value.aval}), but must be known while tracing; under jax.jit make it static, "
            f'jax.jit(f, static_argnames="{name}"), or bind it before, functools.partial(f, {name}=...).'
        )
    return value


def index(name: str, value) -> int:
    """`value` as a Python int."""
    static(name, value)
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{name} is {_described(value)}; pass an int.")


def choice(name: str, value, *choices: str) -> str:
    """`value`, one of the `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is {value!r}; use {' or '.join(map(repr, choices))}.")
    return value


def boolean(name: str, value):
    """`value`, a bool or an array of one; it may be traced."""
    of_array = isinstance(value, jax.Array | np.ndarray) and value.dtype == np.bool_ and value.shape == ()
    if not (of_array or isinstance(value, bool | np.bool_)):
        raise TypeError(f"{name} is {_described(value)}; pass True or False.")
    return value


def numbers(name: str, value, *, flag: bool = False) -> Any:
    """`value` as an array of NumPy or JAX or a Python number, such that `jnp.asarray` takes it as it is.

    Data and hyperparameters have integers, booleans or floats that promote; a `flag` may have any that holds 0 and 1.
    """
    if not isinstance(value, jax.Array):
        value = _of_python(name, value)
        if isinstance(value, bool | int | float):
            return value
    dtype = value.dtype
    exotic = flag and (jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating)) and dtype.itemsize < 8
    if not (dtype in NUMBERS or (exotic and np.array_equal(np.arange(2).astype(dtype), [0, 1]))):
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            fix = "pass what is drawn with it, jax.random.normal({name}, shape)"
        else:
            fix = FIXES.get(dtype.kind, "cast it, {name}.astype(jnp.float32)")
        raise TypeError(
            f"{name} has dtype {dtype} and shape {value.shape}; {fix.format(name=name)}. "
            f"Results have one of {', '.join(FLOATS)}."
        )
    return value


def integers(name: str, value, narrower: str) -> Any:
    """`value` as an array of integers of NumPy or JAX, or a Python integer.

    `narrower` says what to pass where JAX's integers are too narrow for it.
    """
    if not isinstance(value, jax.Array):
        value = _of_python(name, value, narrower)
    dtype = np.result_type(value) if isinstance(value, bool | int | float) else value.dtype
    if not jnp.issubdtype(dtype, jnp.integer):
        raise TypeError(
            f"{name} has dtype {dtype} and shape {np.shape(value)}; it holds integers: pass {name}.astype(np.int32)."
        )
    return value


def as_array(name: str, value) -> jax.Array:
    return of_jax(numbers(name, value))


def of_jax(value) -> jax.Array:
    """`value` as an array of JAX; `jax.debug_nans` does not look at it, as it is no result."""
    with jax.debug_nans(False):
        return jnp.asarray(value)


def shape(name: str, value) -> tuple[int, ...]:
    return jnp.shape(numbers(name, value, flag=True))


def _of_python(name, value, narrower=""):
    """What is no JAX array as one of NumPy, if it becomes one, or as a Python number.

    `narrower`, if given, is what to pass in place of integers that JAX would wrap.
    """
    if value is None:
        raise ValueError(f"{name} is None; {name} is required, so pass an array.")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array of shape {value.shape}; fill it, {name}.filled(0).")
    if isinstance(value, bool | float):
        return value
    given = value
    try:
        # NumPy would fetch what lies on a device, and cannot look at what is traced.
        holds_jax = hasattr(value, "__jax_array__") or (
            isinstance(value, list | tuple) and any(isinstance(x, jax.Array) for x in jax.tree.leaves(value))
        )
        value = jnp.asarray(value) if holds_jax else np.asarray(value)
    except Exception as error:
        raise TypeError(f"{name} is {_described(given)}; {_remedy(name, given)}.") from error
    if value.dtype.kind in "OSU" and not isinstance(given, np.ndarray | int) and not hasattr(given, "__array__"):
        raise TypeError(f"{name} is {_described(given)}; {_remedy(name, given)}.")
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    if isinstance(given, int):
        _refuse_overflow(name, value, np.int64, narrower or f"float({name})")
        return given
    if value.dtype.kind in "iu" and value.dtype.itemsize == 8:
        _refuse_overflow(name, value, value.dtype, narrower or f"{name}.astype(np.float32)")
    return value


def _refuse_overflow(name, value, dtype, fix):
    """JAX would wrap integers that its dtype, 32 bits long unless x64 is enabled, cannot hold."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    limits = np.iinfo(dtype)
    for extreme in (value.min(), value.max()) if value.size else ():
        if not limits.min <= extreme <= limits.max:
            raise ValueError(f"{name} (shape {value.shape}) holds {extreme}, beyond JAX's {dtype}; pass {fix}.")


def _described(value) -> str:
    kind = type(value).__name__
    if hasattr(value, "shape"):
        return f"of type {kind} and shape {value.shape}"
    return f"{reprlib.repr(value)}, of type {kind}"


def _remedy(name, value) -> str:
    """What to pass in place of an object that does not become an array of numbers."""
    if isinstance(value, str | bytes):
        return "pass a number or an array of numbers"
    if isinstance(value, jax.ShapeDtypeStruct):
        return "it holds no numbers: pass an array, or trace with it, jax.eval_shape(f, ...)"
    if isinstance(value, list | tuple):
        return "pass one array of numbers: pad its entries to one shape and stack them by np.stack"
    if isinstance(value, ITERABLES):
        return f"pass an array of what it yields, np.stack(list({name}))"
    if not jax.tree_util.all_leaves([value]):
        return "pass one array, or make the first argument, too, a pytree of this structure"
    if callable(value):
        return "pass the array that it returns, not the function"
    return "it does not become an array of numbers: convert it to one of NumPy or JAX first"


def of_arrays(*options: str) -> Callable[[F], F]:
    """Guards a function whose arguments are arrays, those in `options` and with a default of None or a bool apart.

    Each becomes an array of NumPy or JAX or a Python number, and a call that does not fit is an error that says why.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def guarded(*args, **kwargs):
            arguments = bind(function.__name__, signature, args, kwargs)
            for name, value in arguments.items():
                default = signature.parameters[name].default
                if isinstance(default, bool):
                    boolean(name, value)
                elif name not in options and not (value is None and default is None):
                    arguments[name] = numbers(name, value)
            return function(**arguments)

        return cast(F, guarded)

    return decorate
