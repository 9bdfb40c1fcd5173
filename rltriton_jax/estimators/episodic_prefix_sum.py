"""Episodic prefix sums."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rltriton_jax.estimators.arguments import choice
from rltriton_jax.estimators.estimate import Estimator
from rltriton_jax.estimators.masks import changes, if_valid
from rltriton_jax.estimators.window import Window, over_leaves
from rltriton_jax.scan.recurrence import Read


class Reads(NamedTuple):
    """What a step reads."""

    value: Any
    cut: Any


def coefficients(s):
    return jnp.where(s.cut, 0.0, 1.0), s.value


class MaskedReads(NamedTuple):
    """What a step reads where steps may be left out."""

    value: Any
    cut: Any
    valid: Any
    segment: Any
    entering_segment: Any
    at_start: Any


def masked_coefficients(s):
    return jnp.where(s.cut | changes(s), 0.0, 1.0), if_valid(s, s.value)


def masked_outputs(s, x, entering):
    return (if_valid(s, x),)


@over_leaves("inputs", options=("boundary",))
def episodic_prefix_sum(
    inputs: Any,
    done: Any = None,
    *,
    boundary: str = "ends_at",
    initial: Any = None,
    valid: Any = None,
    segment_ids: Any = None,
    time_axis: int = 0,
    implementation: str | None = None,
) -> Any:
    """Prefix sums that start anew with each episode (or each segment of a packed sequence).

        S[t] = x[t] + S[t-1]    cut before step t where
                                done[t-1] (boundary="ends_at") or done[t] (boundary="starts_at")
        S[0] = x[0] + initial   cut likewise

    Args:
      inputs: [T, *batch] and any feature axes after those, or a pytree of such arrays.
      done: flags [T, *batch] holding 0 or 1.
      boundary: "ends_at", a flag marks the last step of its episode, as everywhere in this library; or "starts_at", a
        flag marks the first step of a segment, as in sequence packing.
      initial: the sum before the window, [*batch] and the feature axes.
      valid: flags [T, *batch]; 0 where a step is not there. The result is that of the sequence without such steps, put
        back, and 0 at them. No data is read there; a flag that is set there counts: one that
        ends an episode cuts `initial` if no valid step comes before it, one that starts an episode counts for the next
        valid step.
      segment_ids: integers [T, *batch]. A sequence ends where they change; no id has a meaning of its own.
      time_axis: the axis of time in the per-step arrays, `done`'s if it is given.
      implementation: None (chosen by platform when lowering), "triton", "chunked_scan", "associative_scan", "scan" or
        "interpret".

    Returns:
      S, of the shape of `inputs` in the promoted dtype of `inputs` and `initial`.

    Gradients: to any order, in `inputs` and `initial`.

    Raises:
      ValueError: for shapes that do not fit, another `boundary`, and, where they can be seen, flags that are not 0 or
        1. Traced flags are checked under `jax.experimental.checkify`.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Blelloch 1990, Prefix Sums and Their Applications, https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf.

    >>> import jax.numpy as jnp, rltriton_jax as rtj
    >>> flags = jnp.array([False, False, True, False])
    >>> print(rtj.episodic_prefix_sum(jnp.array([1.0, 2.0, 3.0, 4.0]), flags))
    [1. 3. 6. 4.]
    >>> print(rtj.episodic_prefix_sum(jnp.array([1.0, 2.0, 3.0, 4.0]), flags, boundary="starts_at"))
    [1. 3. 3. 7.]
    """
    choice("boundary", boundary, "ends_at", "starts_at")
    window = Window.of_features("inputs", inputs, time_axis, done=done, valid=valid, segment_ids=segment_ids)
    mask = window.mask(valid, segment_ids, reverse=False)
    cut = window.flag("done", done, shift=-1 if boundary == "ends_at" else 0)
    initial = window.one_step("initial", initial)
    options: Any = {"reverse": False, "finite_weights": True, "implementation": implementation, "initial": initial}
    if mask:
        return window.scan(MaskedReads(Read("inputs"), cut, **mask), masked_coefficients, masked_outputs, **options)[0]
    return window.scan(Reads(Read("inputs"), cut), coefficients, **options)[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EpisodicPrefixSum(Estimator):
    """`episodic_prefix_sum` as an object like its siblings; it has no hyperparameters, so this pytree has no leaves."""

    function = episodic_prefix_sum
