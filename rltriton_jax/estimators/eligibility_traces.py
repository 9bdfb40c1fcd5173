"""Eligibility traces."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rltriton_jax.estimators.arguments import shape
from rltriton_jax.estimators.estimate import Estimator
from rltriton_jax.estimators.masks import changes, counted, handing_on, if_valid
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


class MaskedReads(NamedTuple):
    """What a step reads where steps may be left out."""

    gradient: Any
    done: Any
    valid: Any
    segment: Any
    entering_segment: Any
    at_start: Any
    gamma: Any
    lambda_: Any


def masked_coefficients(s):
    """The state is the trace as it leaves a step, decayed by that step's gamma and lambda."""
    decay = s.gamma * s.lambda_
    w = jnp.where(s.done | changes(s), 0.0, handing_on(s, decay))
    return w, jnp.where(s.done | ~s.valid, 0.0, counted(decay, s.gradient))


def masked_outputs(s, x, entering):
    return (if_valid(s, s.gradient + jnp.where(changes(s), 0.0, entering)),)


@over_leaves("gradients")
def eligibility_traces(
    gradients: Any,
    done: Any = None,
    *,
    gamma: Any = 0.99,
    lambda_: Any = 0.95,
    initial: Any = None,
    valid: Any = None,
    segment_ids: Any = None,
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
        the first step (CleanRL, SB3) go through `rtj.boundaries.dones_from_starts` first. Where an environment resets
        one step after that (Gymnasium's NEXT_STEP mode, its default; not in SAME_STEP), flag the reset step too, or
        leave it out by `valid`: it is no step of either.
      gamma: discount. A scalar, or an array that broadcasts against [T, *batch]: [N], [T, 1], [T, N].
      lambda_: decay of the trace, like `gamma`.
      initial: the trace before the window, [*batch] and the feature axes; decayed once as it enters step 0.
      valid: flags [T, *batch]; 0 where a step is not there. The result is that of the sequence without such steps, put
        back, and 0 at them. No data is read there, and neither `gamma` nor `lambda_` applies; a flag that is set there
        counts, and cuts `initial` if no valid step comes before it.
      segment_ids: integers [T, *batch]. A sequence ends where they change; no id has a meaning of its own.
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
    window = Window.of_features("gradients", gradients, time_axis, done=done, valid=valid, segment_ids=segment_ids)
    mask = window.mask(valid, segment_ids, reverse=False)
    shift = 0 if mask else -1
    flag = window.flag("done", done, shift=shift)
    weights = window.coefficient("gamma", gamma, shift=shift), window.coefficient("lambda_", lambda_, shift=shift)
    if initial is not None:
        for name, value in (("gamma", gamma), ("lambda_", lambda_)):
            if window.per_step(name):
                raise ValueError(
                    f"initial (shape {shape('initial', initial)}) with {name} per step (shape {shape(name, value)}): "
                    "the decay into step 0 is undefined. Decay it yourself and add it to gradients[0]."
                )
    initial = window.one_step("initial", initial)
    options: Any = {"reverse": False, "finite_weights": True, "implementation": implementation, "initial": initial}
    if mask:
        if initial is not None:
            window.scale(initial, "gamma", "lambda_")
        reads = MaskedReads(Read("gradients"), flag, gamma=weights[0], lambda_=weights[1], **mask)
        return window.scan(reads, masked_coefficients, masked_outputs, **options)[0]
    return window.scan(Reads(Read("gradients"), flag, *weights), coefficients, **options)[0]


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
