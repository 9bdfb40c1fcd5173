"""What the kernel would not understand is an error when a recurrence is made, on every machine."""

import importlib
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.numpy as np_of_jax
import pytest
from jax.numpy import where

from rltriton_jax.scan import algebra
from rltriton_jax.scan.recurrence import Read, Recurrence


class Reads(NamedTuple):
    value: Any
    weight: Any


READS = Reads(value=Read("inputs"), weight=Read("weights"))
OPERANDS = ("inputs", "weights")
HALF = 0.5


def sound(s):
    """A docstring, helpers, locals, comparisons, and a tuple that is taken apart."""
    w, u = pair(s.weight, s.value)
    w = jnp.where((w < 0) | ~(w <= 1), 0.0, jnp.minimum(w, 1.0))
    w *= 0.5
    return w, -u / 2 + jnp.maximum(u, 0)


def pair(a, b):
    return exponential(a), b


def exponential(x):
    return jnp.exp(jnp.log(x))


def power(s):
    return s.weight**2, s.value


def absolute(s):
    return jnp.abs(s.weight), s.value


def builtin(s):
    return abs(s.weight), s.value


def of_an_alias(s):
    return np_of_jax.where(s.weight > 0, s.weight, 0.0), s.value


def of_a_name(s):
    return where(s.weight > 0, s.weight, 0.0), s.value


def method(s):
    return s.weight.astype("float32"), s.value


def constant_of_the_module(s):
    return HALF * s.weight, s.value


def constant_of_jnp(s):
    return s.weight * jnp.pi, s.value


def by_keyword(s):
    return jnp.where(s.weight > 0, x=s.weight, y=0.0), s.value


def branch(s):
    return (s.weight if s.weight > 0 else 0.0), s.value


def statement(s):
    if s.weight > 0:
        return s.weight, s.value
    return 0.0, s.value


def chained(s):
    return jnp.where(0 < s.weight < 1, s.weight, 0.0), s.value


def logical(s):
    return jnp.where((s.weight > 0) and (s.value > 0), 1.0, 0.0), s.value


def subscript(s):
    return s[1], s[0]


def inside_a_helper(s):
    return deeper(s), s.value


def deeper(s):
    return jnp.tanh(s.weight)


def recursive(s):
    return recursive(s)


def there_and_back(s):
    return back_and_there(s)


def back_and_there(s):
    return there_and_back(s)


def closing(decay):
    def coefficients(s):
        return decay * s.weight, s.value

    return coefficients


namespace: dict = {}
exec("def without_source(s):\n    return s.weight, s.value", namespace)

REFUSED = {
    "a power": (power, r"power, line \d+: `s\.weight \*\* 2`"),
    "a function that the kernel lacks": (absolute, r"`jnp\.abs`"),
    "a builtin": (builtin, r"the call `abs\(\.\.\.\)`"),
    "an alias of jnp": (of_an_alias, r"`np_of_jax\.where`.*jnp being jax\.numpy"),
    "a name out of jnp": (of_a_name, r"the call `where\(\.\.\.\)`"),
    "a method": (method, r"the call `s\.weight\.astype\(\.\.\.\)`"),
    "a constant of the module": (constant_of_the_module, "HALF is no argument; declare a read"),
    "a constant of jnp": (constant_of_jnp, r"`jnp\.pi`"),
    "arguments by keyword": (by_keyword, "by keyword"),
    "a conditional expression": (branch, "if s.weight > 0 else 0.0"),
    "an if statement": (statement, "statement, line"),
    "a chained comparison": (chained, "0 < s.weight < 1"),
    "a logical and": (logical, "and s.value > 0"),
    "a subscript": (subscript, r"`s\[1\]`"),
    "what a helper calls": (inside_a_helper, r"deeper, line \d+: `jnp\.tanh`"),
    "recursion": (recursive, "recursive calls itself"),
    "recursion by way of another": (there_and_back, "there_and_back calls itself"),
    "a lambda": (lambda s: (s.weight, s.value), "def statement"),
    "a closure": (closing(0.5), "closes over decay"),
    "a function without source": (namespace["without_source"], "source cannot be read"),
    "a partial function": (partial(pair, 1.0), "def statement"),
    "a function of C": (max, "def statement"),
}


def test_what_the_kernel_understands_is_taken():
    assert Recurrence(OPERANDS, READS, sound).num_outputs == 1


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_kernel_does_not_understand_is_refused_by_name_with_what_is_allowed(name):
    function, message = REFUSED[name]
    with pytest.raises(ValueError, match=f"(?s){message}") as refused:
        Recurrence(OPERANDS, READS, function)
    assert name.startswith("recursion") or "The kernel understands names" in str(refused.value)


def test_outputs_are_checked_too():
    def outputs(s, x, entering):
        return (jnp.sin(x),)

    with pytest.raises(ValueError, match=r"`jnp\.sin`"):
        Recurrence(OPERANDS, READS, sound, outputs)


def three(s):
    return s.weight, s.value, s.value


def alone(s, x, entering):
    return x


def unknown(s):
    return s.wieght, s.value


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ((READS, three), ValueError, r"three must return the pair \(w, u\)"),
        ((READS, sound, alone), ValueError, r"alone must return a tuple .*\(x,\)"),
        ((tuple(READS), sound), TypeError, "reads is a tuple; pass a NamedTuple"),
        ((READS, unknown), AttributeError, "wieght"),
    ],
    ids=["three coefficients", "one output, no tuple", "reads without names", "a name that is not read"],
)
def test_what_is_returned_and_read_is_checked(arguments, kind, message):
    with pytest.raises(kind, match=message):
        Recurrence(OPERANDS, *arguments)


def test_a_function_is_checked_once(monkeypatch):
    read = []
    original = algebra._Reader.called
    monkeypatch.setattr(algebra._Reader, "called", lambda self: read.append(self.function) or original(self))

    def coefficients(s):
        return s.weight, s.value

    for _ in range(3):
        Recurrence(OPERANDS, READS, coefficients)
    assert read == [coefficients]


def test_the_kernel_has_each_function_that_is_allowed_and_no_other():
    triton = pytest.importorskip("triton", reason="the kernel needs triton")
    module = importlib.import_module("rltriton_jax.scan.triton.algebra")
    defined = {n for n, f in vars(module).items() if isinstance(f, triton.JITFunction)}
    assert defined == set(algebra.FUNCTIONS)
