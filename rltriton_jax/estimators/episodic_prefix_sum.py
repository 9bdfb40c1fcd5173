"""Episodic prefix sums."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rltriton_jax.estimators.arguments import choice
from rltriton_jax.estimators.estimate import Estimator
from rltriton_jax.estimators.window import Window, over_leaves
from rltriton_jax.scan.recurrence import Read


class Reads(NamedTuple):
    """What a step reads."""

    value: Any
    cut: Any


def coefficients(s):
    return jnp.where(s.cut, 0.0, 1.0), s.value


@over_leaves("inputs", options=("boundary",))
def episodic_prefix_sum(
    inputs: Any,
    done: Any = None,
    *,
    boundary: str = "ends_at",
    initial: Any = None,
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
    window = Window("inputs", inputs, time_axis, steps_like=done, like_name="done", edge="initial")
    reads = Reads(value=Read("inputs"), cut=window.flag("done", done, shift=-1 if boundary == "ends_at" else 0))
    initial = window.one_step("initial", initial)
    return window.scan(
        reads, coefficients, reverse=False, initial=initial, finite_weights=True, implementation=implementation
    )[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EpisodicPrefixSum(Estimator):
    """`episodic_prefix_sum` as an object like its siblings; it has no hyperparameters, so this pytree has no leaves."""

    function = episodic_prefix_sum
