"""Generalised advantage estimation."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.typing import ArrayLike

from rltriton_jax.estimators import masks
from rltriton_jax.estimators.algebra import successor_value, td_error, unless_done
from rltriton_jax.estimators.estimate import Estimate, Estimator
from rltriton_jax.estimators.window import Window, over_leaves
from rltriton_jax.scan.recurrence import Read


class Reads(NamedTuple):
    """What a step reads."""

    reward: Any
    value: Any
    next_value: Any
    final_value: Any
    at_final: Any
    terminated: Any
    truncated: Any
    zero_at_truncation: Any
    gamma: Any
    lambda_: Any


def coefficients(s):
    delta = td_error(s, successor_value(s))
    return unless_done(s.gamma * s.lambda_, s), delta


def outputs(s, x, entering):
    return x, x + s.value


@over_leaves("rewards", options=("on_truncation",))
def gae(
    rewards: Any,
    values: Any,
    terminated: Any = None,
    truncated: Any = None,
    *,
    bootstrap_value: Any = None,
    next_values: Any = None,
    final_values: Any = None,
    gamma: Any = 0.99,
    lambda_: Any = 0.95,
    on_truncation: str = "bootstrap",
    valid: Any = None,
    segment_ids: Any = None,
    time_axis: int = 0,
    implementation: str | None = None,
) -> Estimate:
    """Generalised advantage estimation.

        delta[t] = r[t] + gamma * V'[t] - V[t]          V'[t] = 0 where terminated
        A[t]     = delta[t] + gamma * lambda_ * A[t+1]  cut after a terminated or truncated step
        targets  = A + V

    V'[t] is V of the true successor of step t: `next_values[t]`; or `values[t+1]` inside the window and
    `bootstrap_value` at its end, and then `final_values[t]` where step t is truncated and not terminated.

    Args:
      rewards: [T, *batch], or a pytree of such arrays.
      values: V(s_t), [T, *batch]; or T + 1 steps, the last being V(s_T), and then no `bootstrap_value`.
      terminated: flags [T, *batch] holding 0 or 1; 1 at the last step of an episode that ended by itself. Flags that
        mark the first step of an episode (CleanRL, SB3, PureJaxRL's recurrent learner) go through
        `rtj.boundaries.dones_from_starts` first.
      truncated: flags like `terminated`; 1 at the last step of an episode that was cut short. `terminated` wins where
        both are set. Needs `next_values` or `final_values`, unless `on_truncation="mask"`.
        Where the environment resets within that step (Gymnasium's SAME_STEP mode, Gymnax, Brax), `values[t+1]` belongs
        to the next episode: pass `final_values`. Where it resets one step later (Gymnasium's default, NEXT_STEP),
        `values[t+1]` is V of the final observation: `rtj.boundaries.next_step_autoreset` makes all these arguments.
      bootstrap_value: V(s_T), [*batch] or a scalar; an explicit 0 is fine.
      next_values: V of the true successor at every step, [T, *batch].
      final_values: V of the true final observation, [T, *batch], read only at truncated steps.
      gamma: discount. A scalar, or an array that broadcasts against [T, *batch]: [N], [T, 1], [T, N].
      lambda_: like `gamma`. 0 is one-step TD, 1 is the Monte-Carlo return minus V.
      on_truncation: "bootstrap", or "mask" to set delta to 0 at truncated steps that are not terminated.
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
      `Estimate(advantages, targets)`, each of the shape of `rewards` in the promoted dtype of the float inputs.

    Gradients: to any order, in every float argument, `gamma` and `lambda_` included; none is stopped.

    Raises:
      ValueError: for shapes that do not fit, no or two sources of successor values, `truncated` without a final value,
        `final_values` without `truncated`, and, where they can be seen, flags that are not 0 or 1 and a negative
        `gamma` or `lambda_`. Traced flags are checked under `jax.experimental.checkify`.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Schulman et al. 2016, High-Dimensional Continuous Control Using Generalized Advantage Estimation,
      https://arxiv.org/abs/1506.02438.

    >>> import jax.numpy as jnp, rltriton_jax as rtj
    >>> advantages, targets = rtj.gae(
    ...     jnp.array([1.0, 2.0, 3.0]), jnp.zeros(3), bootstrap_value=0.0, gamma=1.0, lambda_=1.0
    ... )
    >>> print(advantages)
    [6. 5. 3.]
    """
    window = Window("rewards", rewards, time_axis, edge="bootstrap_value")
    source = window.successor(
        values, bootstrap_value, next_values, final_values, truncated, on_truncation=on_truncation
    )
    mask = window.mask(valid, segment_ids, reverse=True, on_truncation=on_truncation)
    flags = {"terminated": window.flag("terminated", terminated), "truncated": window.flag("truncated", truncated)}
    weights = {"gamma": window.coefficient("gamma", gamma), "lambda_": window.coefficient("lambda_", lambda_)}
    if mask:
        given = next_values is not None
        return Estimate(
            *masks.estimate(window, source, mask, flags, **weights, given=given, implementation=implementation)
        )
    reads = Reads(
        reward=Read("rewards"),
        zero_at_truncation=window.flag("truncated", truncated if on_truncation == "mask" else None),
        **source,
        **flags,
        **weights,
    )
    return Estimate(
        *window.scan(reads, coefficients, outputs, reverse=True, finite_weights=True, implementation=implementation)
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GAE(Estimator):
    """`gae` with its hyperparameters: `GAE(gamma=0.99, lambda_=0.95)(rewards, values, ...)`.

    Attributes:
      gamma, lambda_: as in `gae`; the leaves of this pytree.
    """

    function = gae
    gamma: ArrayLike = 0.99
    lambda_: ArrayLike = 0.95
