"""Discounted returns."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rltriton_jax.estimators import masks
from rltriton_jax.estimators.algebra import successor_value
from rltriton_jax.estimators.estimate import Estimator
from rltriton_jax.estimators.window import Window, over_leaves
from rltriton_jax.scan.recurrence import START, Read


class Reads(NamedTuple):
    """What a step reads."""

    reward: Any
    next_value: Any
    final_value: Any
    at_final: Any
    terminated: Any
    truncated: Any
    last: Any
    gamma: Any


def coefficients(s):
    cut = s.terminated | s.truncated | s.last
    successor = jnp.where(cut, successor_value(s), 0.0)
    return jnp.where(cut, 0.0, s.gamma), s.reward + s.gamma * successor


@over_leaves("rewards")
def discounted_returns(
    rewards: Any,
    terminated: Any = None,
    truncated: Any = None,
    *,
    bootstrap_value: Any = None,
    final_values: Any = None,
    gamma: Any = 0.99,
    valid: Any = None,
    segment_ids: Any = None,
    time_axis: int = 0,
    implementation: str | None = None,
) -> Any:
    """Discounted returns: the reward to go, bootstrapped where the episode is cut short.

        G[t] = r[t] + gamma * G[t+1]             where the episode goes on in the window
        G[t] = r[t] + gamma * final_values[t]    where truncated and not terminated
        G[t] = r[t] + gamma * bootstrap_value    at the window's end
        G[t] = r[t]                              where terminated

    Args:
      rewards: [T, *batch], or a pytree of such arrays.
      terminated: flags [T, *batch] holding 0 or 1; 1 at the last step of an episode that ended by itself. Flags that
        mark the first step of an episode (CleanRL, SB3, PureJaxRL's recurrent learner) go through
        `rtj.boundaries.dones_from_starts` first.
      truncated: flags like `terminated`; 1 at the last step of an episode that was cut short. `terminated` wins where
        both are set. Needs `final_values`: V of the observation in `info` where the environment resets within that step
        (Gymnasium's SAME_STEP mode, Gymnax, Brax), of the next step's where it resets one step later (Gymnasium's
        default, NEXT_STEP; the reset step is to be left out of the loss).
      bootstrap_value: V(s_T), [*batch]; 0 if left out.
      final_values: V of the true final observation, [T, *batch], read only at truncated steps.
      gamma: discount. A scalar, or an array that broadcasts against [T, *batch]: [N], [T, 1], [T, N].
      valid: flags [T, *batch]; 0 where a step is not there. The result is that of the sequence without such steps, put
        back, and 0 at them. No data is read there, and `gamma` does not apply; flags, ids and `final_values` are: an
        end that is flagged there ends its sequence there.
      segment_ids: integers [T, *batch]. A sequence ends where they change: terminated, unless `truncated`. No id
        has a meaning of its own: padding with the id of its sequence hands the bootstrap on, padding with another ends
        it.
      time_axis: the axis of time in the per-step arrays.
      implementation: None (chosen by platform when lowering), "triton", "chunked_scan", "associative_scan", "scan" or
        "interpret".

    Returns:
      G, of the shape of `rewards` in the promoted dtype of the float inputs.

    Gradients: to any order, in every float argument, `gamma` included; none is stopped.

    Raises:
      ValueError: for shapes that do not fit, `truncated` without `final_values` or the reverse, and, where they can be
        seen, flags that are not 0 or 1 and a negative `gamma`. Traced flags are checked under
        `jax.experimental.checkify`.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Sutton and Barto 2018, Reinforcement Learning: An Introduction, chapter 3,
      http://incompleteideas.net/book/the-book-2nd.html.

    >>> import jax.numpy as jnp, rltriton_jax as rtj
    >>> print(rtj.discounted_returns(jnp.array([1.0, 2.0]), gamma=0.5, bootstrap_value=4.0))
    [3. 4.]
    """
    window = Window("rewards", rewards, time_axis, edge="bootstrap_value")
    if truncated is not None and final_values is None:
        window.flag("truncated", truncated)
        raise ValueError(
            f"truncated (shape {window.step_shape}) needs final_values, V of the true final observation (shape "
            f"{window.step_shape}, read only at truncated steps): of that in info where the environment resets within "
            "the step (Gymnasium's SAME_STEP mode, Gymnax, Brax), of the next step's where it resets one step later "
            "(Gymnasium's default, NEXT_STEP)."
        )
    source = {
        "next_value": Read(None, 1, window.one_step("bootstrap_value", bootstrap_value)),
        **window.at_final(final_values, truncated),
    }
    mask = window.mask(valid, segment_ids, reverse=True)
    flags = {"terminated": window.flag("terminated", terminated), "truncated": window.flag("truncated", truncated)}
    weight = window.coefficient("gamma", gamma)
    if mask:
        source["value"], whole = Read(), window.coefficient("lambda_", 1.0)
        return masks.estimate(
            window, source, mask, flags, gamma=weight, lambda_=whole, given=False, implementation=implementation
        )[1]
    reads = Reads(reward=Read("rewards"), last=START, gamma=weight, **source, **flags)
    return window.scan(reads, coefficients, reverse=True, finite_weights=True, implementation=implementation)[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiscountedReturns(Estimator):
    """`discounted_returns` with its hyperparameter: `DiscountedReturns(gamma=0.99)(rewards, ...)`.

    Attributes:
      gamma: as in `discounted_returns`; the leaf of this pytree.
    """

    function = discounted_returns
    gamma: ArrayLike = 0.99
