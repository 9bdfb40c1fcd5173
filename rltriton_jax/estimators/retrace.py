"""Retrace(lambda)."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rltriton_jax.estimators import masks
from rltriton_jax.estimators.algebra import clipped_ratio
from rltriton_jax.estimators.estimate import Estimate, Estimator
from rltriton_jax.estimators.masks import counted, ends, goes_on, held_behind, if_valid, passing
from rltriton_jax.estimators.window import Window, over_leaves
from rltriton_jax.scan.recurrence import START, Read


class Reads(NamedTuple):
    """What a step reads."""

    reward: Any
    q: Any
    q_ahead: Any
    next_state_value: Any
    log_rho: Any
    log_rho_ahead: Any
    terminated: Any
    truncated: Any
    last: Any
    gamma: Any
    lambda_: Any
    clip_c: Any
    clip_rho: Any


def coefficients(s):
    cut = s.terminated | s.truncated | s.last
    c_ahead = clipped_ratio(jnp.where(cut, 0.0, s.log_rho_ahead), s.clip_c)
    u = s.reward + s.gamma * jnp.where(s.terminated, 0.0, s.next_state_value) - s.q
    return jnp.where(cut, 0.0, s.gamma * s.lambda_ * c_ahead), u


def outputs(s, x, entering):
    goes_on = s.q_ahead + entering
    successor = jnp.where(s.terminated | s.truncated | s.last, s.next_state_value, goes_on)
    error = s.reward + s.gamma * jnp.where(s.terminated, 0.0, successor) - s.q
    return clipped_ratio(s.log_rho, s.clip_rho) * error, x + s.q


class MaskedReads(NamedTuple):
    """What a step reads where steps may be left out; `target` are the targets, once they are known."""

    reward: Any
    q: Any
    next_state_value: Any
    target: Any
    log_rho: Any
    terminated: Any
    truncated: Any
    valid: Any
    segment: Any
    entering_segment: Any
    at_start: Any
    followed: Any
    gamma: Any
    lambda_: Any
    clip_c: Any
    clip_rho: Any


def _error(s, successor):
    return s.reward + s.gamma * jnp.where(s.terminated, 0.0, successor) - s.q


def masked_coefficients(s):
    """The state is c * x, since the step that it enters does not know the ratio of the valid step ahead."""
    c = clipped_ratio(s.log_rho, s.clip_c)
    error = _error(s, s.next_state_value)
    return passing(s, c * s.gamma * s.lambda_), if_valid(s, counted(c, error))


def masked_targets(s, x, entering):
    error = _error(s, s.next_state_value) + s.gamma * s.lambda_ * jnp.where(ends(s), 0.0, entering)
    return (if_valid(s, error + s.q),)


def masked_holding(s):
    return passing(s, 0.0), if_valid(s, s.target)


def masked_advantages(s, x, entering):
    error = _error(s, jnp.where(goes_on(s), entering, s.next_state_value))
    return (if_valid(s, clipped_ratio(s.log_rho, s.clip_rho) * error),)


@over_leaves("rewards")
def retrace(
    rewards: Any,
    q_values: Any,
    log_rhos: Any,
    terminated: Any = None,
    truncated: Any = None,
    *,
    next_state_values: Any = None,
    next_q_values: Any = None,
    next_target_probs: Any = None,
    gamma: Any = 0.99,
    lambda_: Any = 1.0,
    clip_c: Any = 1.0,
    clip_rho: Any = 1.0,
    valid: Any = None,
    segment_ids: Any = None,
    time_axis: int = 0,
    implementation: str | None = None,
) -> Estimate:
    """Retrace(lambda) targets for action values, and importance-weighted advantages.

        EQ[t]      = sum_a pi(a|s') Q(s', a), s' the true successor of step t
        x[t]       = r[t] + gamma * EQ[t] - Q[t] + gamma * lambda_ * min(clip_c, rho[t+1]) * x[t+1]
        targets    = x + Q
        advantages = min(clip_rho, rho[t]) * (r[t] + gamma * Q'[t] - Q[t])

    rho = exp(log_rhos). EQ counts as 0 where terminated; x[t+1] counts as 0 after a terminated or truncated step
    and at the window's end. Q'[t] is targets[t+1] where the episode goes on inside the window, else EQ[t].

    Args:
      rewards: [T, *batch], or a pytree of such arrays.
      q_values: Q(s_t, a_t), [T, *batch].
      log_rhos: log pi(a_t|s_t) - log mu(a_t|s_t), [T, *batch]; target t uses the ratio of step t + 1.
      terminated: flags [T, *batch] holding 0 or 1; 1 at the last step of an episode that ended by itself. Flags that
        mark the first step of an episode (CleanRL, SB3, PureJaxRL's recurrent learner) go through
        `rtj.boundaries.dones_from_starts` first.
      truncated: flags like `terminated`; 1 at the last step of an episode that was cut short. `terminated` wins where
        both are set. Its true successor is in `info` where the environment resets within that step (Gymnasium's
        SAME_STEP mode, Gymnax, Brax), and in the next step where it resets one step later (Gymnasium's default,
        NEXT_STEP; the reset step is to be left out of the loss).
      next_state_values: EQ itself, [T, *batch]; or pass both of the next two.
      next_q_values: Q(s', .) of the true successor, [T, *batch, A].
      next_target_probs: pi(.|s') of the true successor, [T, *batch, A]; an action of probability 0 is left out,
        whatever its Q.
      gamma: discount. A scalar, or an array that broadcasts against [T, *batch]: [N], [T, 1], [T, N].
      lambda_: decay of the trace, like `gamma`.
      clip_c: the clip of the trace's ratio; the paper has 1. Infinity counts as the largest number.
      clip_rho: the clip of the advantages' ratio.
      valid: flags [T, *batch]; 0 where a step is not there. The result is that of the sequence without such steps, put
        back, and 0 at them. No data is read there, and no hyperparameter applies; flags and ids are: an end that is
        flagged there ends its sequence there. Targets are one scan; advantages take another one, to which the targets,
        and whether a valid step follows, are carried.
      segment_ids: integers [T, *batch]. A sequence ends where they change: its trace is cut there, and the successor's
        value still counts. No id has a meaning of its own.
      time_axis: the axis of time in the per-step arrays.
      implementation: None (chosen by platform when lowering), "triton", "chunked_scan", "associative_scan", "scan" or
        "interpret".

    Returns:
      `Estimate(advantages, targets)`, each of the shape of `rewards` in the promoted dtype of the float inputs.

    Gradients: to any order, in every float argument, `log_rhos` and the hyperparameters included; none is stopped.

    Raises:
      ValueError: for shapes that do not fit, unless exactly one source of successor values is given, and, where they
        can be seen, for flags that are not 0 or 1 and a negative hyperparameter. Traced flags are checked under
        `jax.experimental.checkify`.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Munos et al. 2016, Safe and Efficient Off-Policy Reinforcement Learning, https://arxiv.org/abs/1606.02647.

    >>> import jax.numpy as jnp, rltriton_jax as rtj
    >>> advantages, targets = rtj.retrace(
    ...     jnp.ones(2), jnp.zeros(2), jnp.zeros(2), next_state_values=jnp.array([2.0, 3.0]), gamma=1.0
    ... )
    >>> print(targets, advantages)
    [7. 4.] [5. 4.]
    """
    window = Window("rewards", rewards, time_axis)
    pair = (next_q_values, next_target_probs)
    if (next_state_values is None) == all(p is None for p in pair) or (pair[0] is None) != (pair[1] is None):
        given = [n for n, p in zip(("next_q_values", "next_target_probs"), pair, strict=True) if p is not None]
        raise ValueError(
            "retrace needs the successor's expected value once: pass next_state_values [T, *batch], or both "
            f"next_q_values and next_target_probs [T, *batch, A]; rewards has shape {window.shape}, and given were "
            f"{', '.join(given + ['next_state_values'] * (next_state_values is not None)) or 'none of them'}."
        )
    if next_state_values is None:
        next_state_value = window.expectation("next_q_values", next_q_values, "next_target_probs", next_target_probs)
    else:
        next_state_value = window.step("next_state_values", next_state_values)
    q = window.step("q_values", q_values)
    log_rho = window.step("log_rhos", log_rhos)
    mask = window.mask(valid, segment_ids, reverse=True)
    flags = {"terminated": window.flag("terminated", terminated), "truncated": window.flag("truncated", truncated)}
    common = {
        "reward": Read("rewards"),
        "q": q,
        "next_state_value": next_state_value,
        "log_rho": log_rho,
        "gamma": window.coefficient("gamma", gamma),
        "lambda_": window.coefficient("lambda_", lambda_),
        "clip_c": window.coefficient("clip_c", clip_c, clip=True, weight=True),
        "clip_rho": window.coefficient("clip_rho", clip_rho, clip=True),
        **flags,
        **mask,
    }
    options: Any = {"reverse": True, "finite_weights": True, "implementation": implementation}
    if mask:
        if window.per_step("clip_c"):  # that of the step which a ratio is carried to
            common["clip_c"] = held_behind(window, common["clip_c"], mask, "clip_c behind", **options)
        reads = MaskedReads(target=Read(), followed=Read(kind="flag"), **common)
        (targets,) = window.scan(reads, masked_coefficients, masked_targets, **options)
        window.operands["targets"] = targets
        reads = reads._replace(target=Read("targets"), followed=masks.followed(window, mask, flags))
        (advantages,) = window.scan(reads, masked_holding, masked_advantages, **options)
        return Estimate(advantages, targets)
    reads = Reads(q_ahead=Read(q.operand, 1), log_rho_ahead=Read(log_rho.operand, 1), last=START, **common)
    return Estimate(*window.scan(reads, coefficients, outputs, **options))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Retrace(Estimator):
    """`retrace` with its hyperparameters: `Retrace(lambda_=0.9)(rewards, q_values, log_rhos, ...)`.

    Attributes:
      gamma, lambda_, clip_c, clip_rho: as in `retrace`; the leaves of this pytree.
    """

    function = retrace
    gamma: ArrayLike = 0.99
    lambda_: ArrayLike = 1.0
    clip_c: ArrayLike = 1.0
    clip_rho: ArrayLike = 1.0
