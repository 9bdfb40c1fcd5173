"""Eligibility traces."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rltriton_jax.estimators.arguments import shape
from rltriton_jax.estimators.estimate import Estimator
from rltriton_jax.estimators.window import Window, over_leaves
from rltriton_jax.scan.recurrence import Read


class Reads(NamedTuple):
    """What a step reads."""

    gradient: Any
    done_before: Any
    gamma_before: Any
    lambda_before: Any


def coefficients(s):
    return jnp.where(s.done_before, 0.0, s.gamma_before * s.lambda_before), s.gradient


@over_leaves("gradients")
def eligibility_traces(
    gradients: Any,
    done: Any = None,
    *,
    gamma: Any = 0.99,
    lambda_: Any = 0.95,
    initial: Any = None,
    time_axis: int = 0,
    implementation: str | None = None,
) -> Any:
    """Accumulating eligibility traces.

        z[t] = g[t] + gamma[t-1] * lambda_[t-1] * z[t-1]    cut where step t-1 was the last of its episode
        z[0] = g[0] + gamma * lambda_ * initial

    The decay into step t belongs to the transition that led there, so this scan is the exact transpose of `gae`'s:
    sum_t g[t] * A[t] = sum_t delta[t] * z[t].

    Args:
      gradients: [T, *batch] and any feature axes after those, or a pytree of such arrays.
      done: flags [T, *batch] holding 0 or 1; 1 at the last step of an episode, terminated or truncated. Flags that mark
        the first step (CleanRL, SB3) must be moved one step earlier. Where an environment resets one step after that
        (Gymnasium's NEXT_STEP mode, its default; not in SAME_STEP), flag the reset step too: it is no step of either.
      gamma: discount. A scalar, or an array that broadcasts against [T, *batch]: [N], [T, 1], [T, N].
      lambda_: decay of the trace, like `gamma`.
      initial: the trace before the window, [*batch] and the feature axes; decayed once as it enters step 0.
      time_axis: the axis of time in the per-step arrays, `done`'s if it is given.
      implementation: None (chosen by platform when lowering), "triton", "chunked_scan", "associative_scan", "scan" or
        "interpret".

    Returns:
      z, of the shape of `gradients` in the promoted dtype of `gradients` and `initial`.

    Gradients: to any order, in every float argument, `gamma` and `lambda_` included.

    Raises:
      ValueError: for shapes that do not fit, and for `initial` with per-step `gamma` or `lambda_`, whose decay into
        step 0 is undefined: add the decayed trace to `gradients[0]` instead. Where they can be seen, also for flags
        that are not 0 or 1 and a negative `gamma` or `lambda_`. Traced flags are checked under
        `jax.experimental.checkify`.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Sutton and Barto 2018, Reinforcement Learning: An Introduction, chapter 12,
      http://incompleteideas.net/book/the-book-2nd.html.

    >>> import jax.numpy as jnp, rltriton_jax as rtj
    >>> done = jnp.array([False, True, False])
    >>> print(rtj.eligibility_traces(jnp.array([1.0, 2.0, 4.0]), done, gamma=1.0, lambda_=0.5))
    [1.  2.5 4. ]
    """
    window = Window("gradients", gradients, time_axis, steps_like=done, like_name="done", edge="initial")
    reads = Reads(
        gradient=Read("gradients"),
        done_before=window.flag("done", done, shift=-1),
        gamma_before=window.coefficient("gamma", gamma, shift=-1),
        lambda_before=window.coefficient("lambda_", lambda_, shift=-1),
    )
    if initial is not None:
        for name, value in (("gamma", gamma), ("lambda_", lambda_)):
            if window.per_step(name):
                raise ValueError(
                    f"initial (shape {shape('initial', initial)}) with {name} per step (shape {shape(name, value)}): "
                    "the decay into step 0 is undefined. Decay it yourself and add it to gradients[0]."
                )
    initial = window.one_step("initial", initial)
    return window.scan(
        reads, coefficients, reverse=False, initial=initial, finite_weights=True, implementation=implementation
    )[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EligibilityTraces(Estimator):
    """`eligibility_traces` with its hyperparameters: `EligibilityTraces(lambda_=0.9)(gradients, done)`.

    Attributes:
      gamma, lambda_: as in `eligibility_traces`; the leaves of this pytree.
    """

    function = eligibility_traces
    gamma: ArrayLike = 0.99
    lambda_: ArrayLike = 0.95
