"""What a recurrence is: what each step reads, by name, and the algebra on that."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rltriton_jax.scan.algebra import check_algebra


@dataclass(frozen=True)
class Read:
    """One quantity that the algebra sees at step t: `operand` at t + shift.

    Where t + shift lies outside the window the operand `beyond` (of one step) is read instead. Either, left out (None),
    reads as 0, or as False for a flag. With `weights`, another operand, the quantity is the sum of weights * operand
    over a last axis that these two alone have; a weight of 0 leaves out what it weighs.

    `kind` says as what: a "number" in the scan's dtype, a "flag", or as it is where that is "int32" or "int64".
    """

    operand: str | None = None
    shift: int = 0
    beyond: str | None = None
    kind: str = "number"
    weights: str | None = None

    def __post_init__(self):
        if self.shift not in (-1, 0, 1):
            raise ValueError(f"shift is {self.shift}; a step reads its own element or a neighbour's, -1, 0 or 1.")
        if self.weights is not None and (self.shift or self.beyond is not None or self.kind != "number"):
            raise ValueError("a weighted sum is read at its own step, as a number: no shift and nothing beyond.")

    def dtype(self, number) -> Any:
        """The dtype in which the algebra sees it; `number` is that of numbers."""
        return jnp.dtype({"number": number, "flag": bool}.get(self.kind, self.kind))


START = Read("first step in scan order", kind="flag")
"""A read that is True at the step the scan begins with: the last one of a backward scan, else the first."""

COMPOSITE = "composite"
"""In place of indices of outputs: asks for the affine map (w, u) of all steps together, of size 1 along time."""


def state_alone(s, x, entering):
    """The outputs of a recurrence whose result is its state."""
    return (x,)


@dataclass(frozen=True)
class Recurrence:
    """A first-order linear recurrence over time, with the algebra before and after it.

        backward:  x[t] = u[t] + w[t] * x[t+1]
        forward:   x[t] = u[t] + w[t] * x[t-1]

    A step reads what `reads` lists, a NamedTuple of `Read`, and the algebra sees it by the same names, as `s`:
    `coefficients(s)` gives (w, u), and `outputs(s, x, entering)` a tuple of results, where `entering` is the state that
    entered step t (x[t+1] or x[t-1]). Both are written once, in the Python that `rltriton_jax.scan.algebra` allows, and
    run in jnp and inside the Triton kernel. What a result must not depend on is taken out with `jnp.where`, never by a
    product with 0.

    Attributes:
      operands: names in the order in which the primitive takes them; the first one spans all steps.
      reads: what each step reads, by name.
      coefficients: s -> (w, u).
      outputs: s, x, entering -> tuple of results; left out where x is the result.
      reverse: True for a backward scan.
      initial: the operand (of one step) that is the state before the first step; 0 when None.
      finite_weights: True where no data makes a weight infinite; the kernel then need not look whether one meets a 0.
      carried: other recurrences over the same steps in the same direction, each with a name and one output, in the
        scan's dtype: an operand, by that name, of those behind it and of this one. They begin at 0.
    """

    operands: tuple[str, ...]
    reads: Any
    coefficients: Callable[[Any], tuple[Any, Any]]
    outputs: Callable[[Any, Any, Any], tuple[Any, ...]] = state_alone
    reverse: bool = True
    initial: str | None = None
    finite_weights: bool = False
    carried: tuple[tuple[str, "Recurrence"], ...] = ()

    def __post_init__(self):
        if not isinstance(self.reads, tuple) or not hasattr(self.reads, "_fields"):
            raise TypeError(
                f"reads is a {type(self.reads).__name__}; pass a NamedTuple of Read, whose names s will have."
            )
        _num_outputs(self.reads, self.coefficients, self.outputs)
        for name, inner in self.carried:
            if inner.num_outputs != 1 or inner.reverse != self.reverse or inner.initial or not inner.finite_weights:
                raise ValueError(
                    f"{name} cannot be carried: it needs one output, the direction of the recurrence that reads it, no "
                    "initial state, and finite weights."
                )

    @property
    def num_outputs(self) -> int:
        return _num_outputs(self.reads, self.coefficients, self.outputs)

    @property
    def state(self) -> int:
        """The index by which the primitive's parameter `wanted` asks for x itself, in the scan's own dtype."""
        return self.num_outputs

    def dtypes(self, number) -> tuple[Any, ...]:
        """The dtype of each read, in their order; `number` is that of numbers."""
        return tuple(r.dtype(number) for r in self.reads)

    def named(self, values) -> Any:
        """Values in the order of `reads`, by name."""
        return type(self.reads)(*values)

    def reading(self, reads: Sequence[Read], **changes) -> "Recurrence":
        """The same algebra on other reads in the same order."""
        return replace(self, reads=self.named(reads), **changes)


@functools.cache
def _num_outputs(reads, coefficients, outputs) -> int:
    """How many results `outputs` gives; refuses an algebra that the kernel would not understand."""
    for function in (coefficients, outputs):
        check_algebra(function)
    s = type(reads)(*(jax.ShapeDtypeStruct((), r.dtype(jnp.float32)) for r in reads))
    pair = jax.eval_shape(coefficients, s)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ValueError(f"{coefficients.__qualname__} must return the pair (w, u); it returns {pair}.")
    state = jax.ShapeDtypeStruct((), jnp.float32)
    results = jax.eval_shape(outputs, s, state, state)
    if not isinstance(results, tuple):
        raise ValueError(f"{outputs.__qualname__} must return a tuple of results, (x,) for one; it returns {results}.")
    return len(results)


class LinearReads(NamedTuple):
    """What a step of the bare recurrence reads."""

    input: Any
    weight: Any


def linear_coefficients(s):
    return s.weight, s.input


def linear(*, reverse: bool, weight_shift: int = 0, initial: bool = False) -> Recurrence:
    """The bare recurrence. With a `weight_shift` the weight that step t applies is read at t + weight_shift."""
    return Recurrence(
        operands=("inputs", "weights", "initial") if initial else ("inputs", "weights"),
        reads=LinearReads(input=Read("inputs"), weight=Read("weights", weight_shift)),
        coefficients=linear_coefficients,
        reverse=reverse,
        initial="initial" if initial else None,
    )


def is_linear(recurrence: Recurrence) -> bool:
    """Is it the bare recurrence, which is differentiated by itself?"""
    return isinstance(recurrence.reads, LinearReads)


def without_sums(recurrence: Recurrence) -> tuple[Recurrence, dict[str, tuple[str, str]]]:
    """The recurrence with an operand in place of each weighted sum, and (operand, weights) of each of these."""
    sums: dict[str, tuple[str, str]] = {}
    reads = []
    for r in recurrence.reads:
        if r.operand is not None and r.weights is not None:
            name = f"{r.weights} * {r.operand}"
            sums[name] = (r.operand, r.weights)
            r = Read(name)
        reads.append(r)
    summed = {name for pair in sums.values() for name in pair}
    kept = [name for name in recurrence.operands if name not in summed]
    return recurrence.reading(reads, operands=(*kept, *sums)), sums
