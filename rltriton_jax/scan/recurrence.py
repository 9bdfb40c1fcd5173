"""What a recurrence is: which operands each step reads, and the algebra on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import Literal


@dataclass(frozen=True)
class Read:
    """One quantity that the algebra sees at step t: `operand` at t + shift.

    Where t + shift lies outside the window the operand `beyond` (one row) is read instead. An operand or a row
    left out (None) reads as 0, or as False for a flag. With `weights`, another operand, the quantity is the sum of
    weights * operand over a last axis that these two alone have; a weight of 0 leaves out what it weighs.
    """

    operand: str | None = None
    shift: int = 0
    beyond: str | None = None
    flag: bool = False
    weights: str | None = None

    def __post_init__(self):
        if self.shift not in (-1, 0, 1):
            raise ValueError(f"shift is {self.shift}; a step reads its own row or a neighbour's, -1, 0 or 1.")
        if self.weights is not None and (self.shift or self.beyond is not None or self.flag):
            raise ValueError("a weighted sum is read at its own step, as a number: no shift, beyond or flag.")


START = Read("first step in scan order", flag=True)
"""A read that is True at the step the scan begins with: the last one of a backward scan, else the first."""

COMPOSITE = "composite"
"""In place of indices of outputs: asks for the affine map (w, u) of all steps together, of size 1 along time."""


@dataclass(frozen=True)
class Recurrence:
    """A first-order linear recurrence over time, with the algebra before and after it.

        backward:  x[t] = u[t] + w[t] * x[t+1]
        forward:   x[t] = u[t] + w[t] * x[t-1]

    `coefficients(*reads)` gives (w, u). `outputs(*reads, x, previous)` gives the outputs, where `previous` is the
    state that entered step t (x[t+1] or x[t-1]). Both are written once, in the part of `jax.numpy` that
    `rltriton_jax.scan.tile_math` also has: the same functions run in jnp and inside the Triton kernel. What an
    output must not depend on is taken out with `jnp.where`, never by a product with 0.

    Attributes:
      operands: names in the order in which the primitive takes them; the first one spans all steps.
      reads: what each step reads, in the order of the algebra's arguments.
      coefficients: reads -> (w, u).
      outputs: reads, x, previous -> tuple of outputs.
      num_outputs: how many outputs that is.
      reverse: True for a backward scan.
      initial: the operand (one row) that is the state before the first step; 0 when None.
    """

    operands: tuple[str, ...]
    reads: tuple[Read, ...]
    coefficients: Callable[..., tuple[Any, Any]]
    outputs: Callable[..., tuple[Any, ...]]
    num_outputs: int
    reverse: bool
    initial: str | None = None

    @property
    def state(self) -> int:
        """The index by which the primitive's `outputs` parameter asks for x itself, in the scan's own dtype."""
        return self.num_outputs


def _linear_coefficients(inputs, weights):
    return weights, inputs


def _state_output(inputs, weights, x, previous):
    return (x,)


def linear(*, reverse: bool, weight_shift: int = 0, initial: bool = False) -> Recurrence:
    """The bare recurrence. With a `weight_shift` the weight that step t applies is read at t + weight_shift."""
    return Recurrence(
        operands=("inputs", "weights", "initial") if initial else ("inputs", "weights"),
        reads=(Read("inputs"), Read("weights", weight_shift)),
        coefficients=_linear_coefficients,
        outputs=_state_output,
        num_outputs=1,
        reverse=reverse,
        initial="initial" if initial else None,
    )


def is_linear(recurrence: Recurrence) -> bool:
    return recurrence.coefficients is _linear_coefficients


def weight_shift(recurrence: Recurrence) -> int:
    return recurrence.reads[1].shift


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
    return replace(recurrence, operands=(*kept, *sums), reads=tuple(reads)), sums


def depends(function: Callable[..., tuple[Any, ...]], arguments: Sequence[Any], i: int) -> list[bool]:
    """For each output of `function`: can it change with argument i? Read off the traced program."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    moving = {jaxpr.invars[i]}
    for eqn in jaxpr.eqns:
        if any(not isinstance(v, Literal) and v in moving for v in eqn.invars):
            moving.update(eqn.outvars)
    return [not isinstance(v, Literal) and v in moving for v in jaxpr.outvars]
