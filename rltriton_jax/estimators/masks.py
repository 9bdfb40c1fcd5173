"""Steps that are not there, and sequences that end where their id changes.

An estimator with `valid` is itself on the sequence without its invalid steps. Of these nothing but their flags, ids and
final values is read. Such a step hands on what enters it, (w, u) = (1, 0), unless a sequence ends there. What a valid
step needs of its successor is then not one step ahead, but at the next valid step of its sequence, and has to be part
of the state.

With values and a bootstrap, and a lambda that is the same at all steps of a row, the state is

    Z[t] = (1 - lambda_) * V[t] + lambda_ * G[t]          G[t] = r[t] + gamma * Z[t+1] the return, and A = G - V,

in which V of the next valid step comes along with the return: one scan, and it is the same at any distance. With
`next_values` the usual state does. In all other cases another recurrence is carried beside it, by `held`: it takes what
a valid step holds back to the valid step before it. Both are one pass in the kernel where a program has all steps of a
row, and its threads have the registers; elsewhere, and on several devices, the other comes first, by a scan of its own.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp

from rltriton_jax.estimators.window import Window
from rltriton_jax.scan.recurrence import Read


class Reads(NamedTuple):
    """What a step of GAE and of the return estimators reads."""

    reward: Any
    value: Any
    next_value: Any
    bootstrap: Any
    final_value: Any
    terminated: Any
    truncated: Any
    valid: Any
    segment: Any
    entering_segment: Any
    at_start: Any
    followed: Any
    gamma: Any
    lambda_: Any


class HeldReads(NamedTuple):
    """What a step reads that hands on what the next valid one holds."""

    held: Any
    bootstrap: Any
    final_value: Any
    terminated: Any
    truncated: Any
    valid: Any
    segment: Any
    entering_segment: Any
    at_start: Any


def changes(s):
    """Does another sequence enter the step?"""
    return (s.segment != s.entering_segment) & ~s.at_start


def ends(s):
    """Does a sequence end with this step, be it valid or not?"""
    return s.terminated | s.truncated | changes(s)


def goes_on(s):
    """Does the sequence go on after this step, inside the window?"""
    return s.followed & ~s.at_start & ~ends(s)


def if_valid(s, x):
    return jnp.where(s.valid, x, 0.0)


def handing_on(s, w):
    """The weight of what enters: w at a valid step, 1 at another."""
    return jnp.where(s.valid, w, 1.0)


def passing(s, w):
    """The same, but 0 where a sequence ends."""
    return jnp.where(ends(s), 0.0, handing_on(s, w))


def counted(w, x):
    """w * x, in which a w of 0 leaves out an x that is not finite."""
    return w * jnp.where((w == 0.0) & ((x - x) != 0.0), 0.0, x)


def unless_ended(s, x):
    """x, or what a sequence that ends with this step is worth beyond it."""
    return jnp.where(ends(s), jnp.where(s.truncated & ~s.terminated, s.final_value, 0.0), x)


def successor(s, entering):
    """What comes after the step: V of the true successor, at the window's end the bootstrap, or else what enters."""
    return unless_ended(s, jnp.where(s.at_start, s.bootstrap, entering))


def mixed(s):
    """Of Z."""
    known = successor(s, 0.0)
    u = counted(s.lambda_, s.reward + s.gamma * known) + (1.0 - s.lambda_) * s.value
    return passing(s, s.gamma * s.lambda_), jnp.where(s.valid, u, known)


def returns_of_mixed(s, x, entering):
    target = s.reward + s.gamma * successor(s, entering)
    return if_valid(s, target - s.value), if_valid(s, target)


def masked_error(s):
    """Where V' is that of the next valid step."""
    return s.reward + s.gamma * unless_ended(s, s.next_value) - s.value


def masked_error_given(s):
    """Where V' is given at each step: only its own termination excludes it."""
    return s.reward + s.gamma * jnp.where(s.terminated, 0.0, s.next_value) - s.value


def returns(s):
    """With V of the successor known, the return itself is the state."""
    share = jnp.where(s.at_start | ends(s), 1.0, 1.0 - s.lambda_)
    u = s.reward + s.gamma * share * unless_ended(s, s.next_value)
    return passing(s, s.gamma * s.lambda_), jnp.where(s.valid, u, successor(s, 0.0))


def over_values(s, x, entering):
    return if_valid(s, x - s.value), if_valid(s, x)


def errors_given(s):
    return passing(s, s.gamma * s.lambda_), if_valid(s, masked_error_given(s))


def advantages(s, x, entering):
    return if_valid(s, x), if_valid(s, x + s.value)


def returns_given(s):
    """Without V: the return itself is the state, and whether one follows must be known."""
    share = jnp.where(goes_on(s), 1.0 - s.lambda_, 1.0)
    u = s.reward + s.gamma * share * jnp.where(s.terminated, 0.0, s.next_value)
    return passing(s, s.gamma * s.lambda_), if_valid(s, u)


def return_alone(s, x, entering):
    return (if_valid(s, x),)


def holding(s):
    return passing(s, 0.0), jnp.where(s.valid, s.held, successor(s, 0.0))


def held_by_successor(s, x, entering):
    return (successor(s, entering),)


def held(window: Window, read: Read, mask: dict[str, Read], ended: dict[str, Read], name: str) -> Read:
    """What the successor of a step holds, the next valid step of its sequence, by a scan beside those that read it.

    Without a successor it is what `ended` says: its `bootstrap` at the window's end, and its `final_value`.
    """
    reads = HeldReads(held=read, **ended, **mask)
    return window.carry(name, reads, holding, held_by_successor, reverse=True, finite_weights=True)


class LatestReads(NamedTuple):
    """What a step reads that hands on what the latest valid one holds, whatever sequence that is of."""

    held: Any
    valid: Any


def latest(s):
    return handing_on(s, 0.0), if_valid(s, s.held)


def latest_before(s, x, entering):
    return (entering,)


def held_behind(window: Window, read: Read, mask: dict[str, Read], name: str, **options) -> Read:
    """What the valid step before each holds, be it of the same sequence or not."""
    if not window.skips:
        return Read(read.operand, -1)
    options = {**options, "reverse": False}
    window.operands[name] = window.scan(LatestReads(read, mask["valid"]), latest, latest_before, **options)[0]
    return Read(name)


def nothing(flags: dict[str, Read]) -> dict[str, Read]:
    """As `ended`: 0 where there is no successor."""
    return {"bootstrap": Read(), "final_value": Read(), **flags}


def followed(window: Window, mask: dict[str, Read], flags: dict[str, Read]) -> Read:
    """A flag: does a valid step of the same sequence follow? Where one ends, and at the window's end, it may be set."""
    if not window.skips:
        return mask["valid"]
    return replace(held(window, Read("valid"), mask, nothing(flags), "followed"), kind="flag")


def values_ahead(window: Window, source: dict[str, Read], mask: dict[str, Read], flags: dict[str, Read]) -> Read:
    """V of the successor where values come with a bootstrap; `source` is what `Window.successor` gives."""
    if not window.skips:
        return source["next_value"]
    ended = {"bootstrap": at_window_end(source["next_value"]), "final_value": source["final_value"], **flags}
    return held(window, source["value"], mask, ended, "values ahead")


def at_window_end(next_value: Read) -> Read:
    """The read of V at the next step, needed at the window's end alone: of the bootstrap, if that is an operand."""
    return Read(None, next_value.shift, next_value.beyond) if next_value.beyond else next_value


def estimate(
    window: Window,
    source: dict[str, Read],
    mask: dict[str, Read],
    flags: dict[str, Read],
    *,
    gamma: Read,
    lambda_: Read,
    given: bool,
    implementation: str | None,
):
    """Advantages and returns; `given` says that `source` has the value of each step's true successor."""
    options: Any = {"reverse": True, "finite_weights": True, "implementation": implementation}
    bootstrap, next_value = Read(), source["next_value"]
    if given:
        coefficients, outputs = errors_given, advantages
    elif window.per_step("lambda_"):
        coefficients, outputs = returns, over_values
        bootstrap = at_window_end(next_value)
        next_value = values_ahead(window, source, mask, flags)
    else:
        coefficients, outputs = mixed, returns_of_mixed
        bootstrap, next_value = at_window_end(next_value), Read()
    reads = Reads(
        reward=Read(window.name),
        value=source["value"],
        next_value=next_value,
        bootstrap=bootstrap,
        final_value=source["final_value"],
        followed=Read(kind="flag"),
        gamma=gamma,
        lambda_=lambda_,
        **flags,
        **mask,
    )
    return window.scan(reads, coefficients, outputs, **options)
