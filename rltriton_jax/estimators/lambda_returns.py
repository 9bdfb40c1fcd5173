"""TD(lambda) returns."""

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
    lambda_: Any


def coefficients(s):
    cut = s.terminated | s.truncated | s.last
    bootstrap = jnp.where(cut, 1.0, 1.0 - s.lambda_)
    u = s.reward + s.gamma * bootstrap * successor_value(s)
    return jnp.where(cut, 0.0, s.gamma * s.lambda_), u


@over_leaves("rewards")
def lambda_returns(
    rewards: Any,
    values: Any = None,
    terminated: Any = None,
    truncated: Any = None,
    *,
    bootstrap_value: Any = None,
    next_values: Any = None,
    final_values: Any = None,
    gamma: Any = 0.99,
    lambda_: Any = 0.95,
    valid: Any = None,
    segment_ids: Any = None,
    time_axis: int = 0,
    implementation: str | None = None,
) -> Any:
    """TD(lambda) returns.

        G[t] = r[t] + gamma * ((1 - lambda_) * V'[t] + lambda_ * G[t+1])    where the episode goes on in the window
        G[t] = r[t] + gamma * V'[t]                                         where truncated, and at the window's end
        G[t] = r[t]                                                         where terminated

    V'[t] is V of the true successor of step t: `next_values[t]`; or `values[t+1]` inside the window and
    `bootstrap_value` at its end, and then `final_values[t]` where step t is truncated and not terminated.

    Args:
      rewards: [T, *batch], or a pytree of such arrays.
      values: V(s_t), [T, *batch], of which `values[1:]` counts; or T + 1 steps, the last being V(s_T), and then no
        `bootstrap_value`. May be left out beside `next_values`.
      terminated: flags [T, *batch] holding 0 or 1; 1 at the last step of an episode that ended by itself. Flags that
        mark the first step of an episode (CleanRL, SB3, PureJaxRL's recurrent learner) go through
        `rtj.boundaries.dones_from_starts` first.
      truncated: flags like `terminated`; 1 at the last step of an episode that was cut short. `terminated` wins where
        both are set. Needs `next_values` or `final_values`.
        Where the environment resets within that step (Gymnasium's SAME_STEP mode, Gymnax, Brax), `values[t+1]` belongs
        to the next episode: pass `final_values`. Where it resets one step later (Gymnasium's default, NEXT_STEP),
        `values[t+1]` is V of the final observation: `rtj.boundaries.next_step_autoreset` makes all these arguments.
      bootstrap_value: V(s_T), [*batch] or a scalar; an explicit 0 is fine.
      next_values: V of the true successor at every step, [T, *batch].
      final_values: V of the true final observation, [T, *batch], read only at truncated steps.
      gamma: discount. A scalar, or an array that broadcasts against [T, *batch]: [N], [T, 1], [T, N].
      lambda_: like `gamma`. 0 is the one-step target, 1 the Monte-Carlo return.
      valid: flags [T, *batch]; 0 where a step is not there. The result is that of the sequence without such steps, put
        back, and 0 at them. No data is read there, and neither `gamma` nor `lambda_` applies; flags, ids and
        `final_values` are: an end that is flagged there ends its sequence there.
      segment_ids: integers [T, *batch]. A sequence ends where they change: terminated, unless `truncated`; with
        `next_values` its trace is cut only. No id has a meaning of its own: padding with the id of its sequence hands
        the bootstrap on, padding with another ends it.
      time_axis: the axis of time in the per-step arrays.
      implementation: None (chosen by platform when lowering), "triton", "chunked_scan", "associative_scan", "scan" or
        "interpret".

    Returns:
      G, of the shape of `rewards` in the promoted dtype of the float inputs.

    Gradients: to any order, in every float argument, `gamma` and `lambda_` included; none is stopped.

    Raises:
      ValueError: for shapes that do not fit, no or two sources of successor values, `truncated` without a final value,
        `final_values` without `truncated`, and, where they can be seen, flags that are not 0 or 1 and a negative
        `gamma` or `lambda_`. Traced flags are checked under `jax.experimental.checkify`.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Sutton and Barto 2018, Reinforcement Learning: An Introduction, chapter 12,
      http://incompleteideas.net/book/the-book-2nd.html.

    >>> import jax.numpy as jnp, rltriton_jax as rtj
    >>> print(rtj.lambda_returns(jnp.array([1.0, 2.0]), next_values=jnp.array([3.0, 4.0]), gamma=1.0, lambda_=0.5))
    [5.5 6. ]
    """
    window = Window("rewards", rewards, time_axis, edge="bootstrap_value")
    source = window.successor(values, bootstrap_value, next_values, final_values, truncated, values_required=False)
    mask = window.mask(valid, segment_ids, reverse=True)
    flags = {"terminated": window.flag("terminated", terminated), "truncated": window.flag("truncated", truncated)}
    weights = {"gamma": window.coefficient("gamma", gamma), "lambda_": window.coefficient("lambda_", lambda_)}
    options: Any = {"reverse": True, "finite_weights": True, "implementation": implementation}
    if mask and next_values is not None:
        reads = masks.Reads(
            reward=Read("rewards"),
            value=Read(),
            next_value=source["next_value"],
            bootstrap=Read(),
            final_value=Read(),
            followed=masks.followed(window, mask, flags),
            **flags,
            **mask,
            **weights,
        )
        return window.scan(reads, masks.returns_given, masks.return_alone, **options)[0]
    if mask:
        return masks.estimate(window, source, mask, flags, **weights, given=False, implementation=implementation)[1]
    del source["value"]
    reads = Reads(reward=Read("rewards"), last=START, **source, **flags, **weights)
    return window.scan(reads, coefficients, **options)[0]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LambdaReturns(Estimator):
    """`lambda_returns` with its hyperparameters: `LambdaReturns(lambda_=0.9)(rewards, values, ...)`.

    Attributes:
      gamma, lambda_: as in `lambda_returns`; the leaves of this pytree.
    """

    function = lambda_returns
    gamma: ArrayLike = 0.99
    lambda_: ArrayLike = 0.95
