"""V-trace."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from rltriton_jax.estimators import masks
from rltriton_jax.estimators.algebra import clipped_ratio, successor_value, td_error, unless_done
from rltriton_jax.estimators.estimate import Estimate, Estimator
from rltriton_jax.estimators.masks import ends, goes_on, if_valid, masked_error, masked_error_given, passing
from rltriton_jax.estimators.window import Window, over_leaves
from rltriton_jax.scan.recurrence import START, Read


class Reads(NamedTuple):
    """What a step reads."""

    reward: Any
    value: Any
    value_ahead: Any
    next_value: Any
    final_value: Any
    at_final: Any
    log_rho: Any
    terminated: Any
    truncated: Any
    zero_at_truncation: Any
    last: Any
    gamma: Any
    lambda_: Any
    clip_rho: Any
    clip_c: Any
    clip_pg_rho: Any


def coefficients(s):
    delta = td_error(s, successor_value(s))
    w = unless_done(s.gamma * s.lambda_ * clipped_ratio(s.log_rho, s.clip_c), s)
    return w, clipped_ratio(s.log_rho, s.clip_rho) * delta


def outputs(s, x, entering):
    """Inside an episode and the window V' is V[t+1], and so r + gamma * q' - V is delta + gamma * lambda_ * x[t+1]."""
    ahead = s.gamma * s.lambda_ * unless_done(entering, s)
    return clipped_ratio(s.log_rho, s.clip_pg_rho) * (td_error(s, successor_value(s)) + ahead), x + s.value


def outputs_with_next_values(s, x, entering):
    """V' and V[t+1] may be values of two networks."""
    goes_on = s.value_ahead + s.lambda_ * entering
    corrected = jnp.where(s.terminated | s.truncated | s.last, successor_value(s), goes_on)
    return clipped_ratio(s.log_rho, s.clip_pg_rho) * td_error(s, corrected), x + s.value


class MaskedReads(NamedTuple):
    """What a step reads where steps may be left out."""

    reward: Any
    value: Any
    value_ahead: Any
    next_value: Any
    final_value: Any
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
    clip_rho: Any
    clip_c: Any
    clip_pg_rho: Any


def _masked_weight(s):
    return passing(s, s.gamma * s.lambda_ * clipped_ratio(s.log_rho, s.clip_c))


def masked_coefficients(s):
    return _masked_weight(s), if_valid(s, clipped_ratio(s.log_rho, s.clip_rho) * masked_error(s))


def masked_outputs(s, x, entering):
    error = masked_error(s) + s.gamma * s.lambda_ * jnp.where(ends(s), 0.0, entering)
    return if_valid(s, clipped_ratio(s.log_rho, s.clip_pg_rho) * error), if_valid(s, x + s.value)


def masked_coefficients_given(s):
    return _masked_weight(s), if_valid(s, clipped_ratio(s.log_rho, s.clip_rho) * masked_error_given(s))


def masked_outputs_given(s, x, entering):
    corrected = jnp.where(goes_on(s), s.value_ahead + s.lambda_ * entering, jnp.where(s.terminated, 0.0, s.next_value))
    error = s.reward + s.gamma * corrected - s.value
    return if_valid(s, clipped_ratio(s.log_rho, s.clip_pg_rho) * error), if_valid(s, x + s.value)


@over_leaves("rewards", options=("on_truncation",))
def vtrace(
    rewards: Any,
    values: Any,
    log_rhos: Any,
    terminated: Any = None,
    truncated: Any = None,
    *,
    bootstrap_value: Any = None,
    next_values: Any = None,
    final_values: Any = None,
    gamma: Any = 0.99,
    lambda_: Any = 1.0,
    clip_rho: Any = 1.0,
    clip_c: Any = 1.0,
    clip_pg_rho: Any = 1.0,
    on_truncation: str = "bootstrap",
    valid: Any = None,
    segment_ids: Any = None,
    time_axis: int = 0,
    implementation: str | None = None,
) -> Estimate:
    """V-trace targets and policy-gradient advantages for off-policy actor-critics.

        rho        = exp(log_rhos)
        delta[t]   = r[t] + gamma * V'[t] - V[t]                       V'[t] = 0 where terminated
        x[t]       = min(clip_rho, rho[t]) * delta[t] + gamma * lambda_ * min(clip_c, rho[t]) * x[t+1]
        targets    = x + V
        advantages = min(clip_pg_rho, rho) * (r[t] + gamma * q'[t] - V[t])

    x[t+1] counts as 0 after a terminated or truncated step. V'[t] is V of the true successor: `next_values[t]`; or
    `values[t+1]` inside the window and `bootstrap_value` at its end, and then `final_values[t]` where step t is
    truncated and not terminated. q'[t] is (1 - lambda_) * V[t+1] + lambda_ * targets[t+1] where the episode goes on
    inside the window, else V'[t]. On-policy (log_rhos = 0), with values of one network, this is `gae`.

    Args:
      rewards: [T, *batch], or a pytree of such arrays.
      values: V(s_t), [T, *batch]; or T + 1 steps, the last being V(s_T), and then no `bootstrap_value`.
      log_rhos: log pi(a_t|s_t) - log mu(a_t|s_t), [T, *batch]: target policy over behaviour policy.
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
      lambda_: decay of the trace, like `gamma`; the original paper has 1.
      clip_rho: the paper's rho-bar, on delta; sets which policy the fixed point belongs to.
      clip_c: the paper's c-bar, on the trace; sets how fast it contracts. Infinity counts as the largest number.
      clip_pg_rho: the clip of the policy-gradient weight.
      on_truncation: "bootstrap", or "mask" to set delta and the advantage to 0 at truncated, not terminated steps.
      valid: flags [T, *batch]; 0 where a step is not there. The result is that of the sequence without such steps, put
        back, and 0 at them. No data is read there, and no hyperparameter applies; flags, ids and `final_values` are: an
        end that is flagged there ends its sequence there. What a step needs of the valid one after it, V and with
        `next_values` whether there is one, is carried to it in the same pass of the kernel; by scans that come first on
        other implementations, on several devices, and for rows of thousands of steps.
      segment_ids: integers [T, *batch]. A sequence ends where they change: terminated, unless `truncated`; with
        `next_values` its trace is cut only. No id has a meaning of its own: padding with the id of its sequence hands
        the bootstrap on, padding with another ends it.
      time_axis: the axis of time in the per-step arrays.
      implementation: None (chosen by platform when lowering), "triton", "chunked_scan", "associative_scan", "scan" or
        "interpret".

    Returns:
      `Estimate(advantages, targets)`, each of the shape of `rewards` in the promoted dtype of the float inputs.

    Gradients: to any order, in every float argument, `log_rhos` and the hyperparameters included; none is stopped.

    Raises:
      ValueError: for shapes that do not fit, no or two sources of successor values, `truncated` without a final value,
        `final_values` without `truncated`, and, where they can be seen, flags that are not 0 or 1 and a negative
        hyperparameter. Traced flags are checked under `jax.experimental.checkify`.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Espeholt et al. 2018, IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
      Architectures, https://arxiv.org/abs/1802.01561.

    >>> import jax.numpy as jnp, rltriton_jax as rtj
    >>> advantages, targets = rtj.vtrace(
    ...     jnp.ones(2), jnp.zeros(2), jnp.log(jnp.full(2, 0.5)), bootstrap_value=0.0, gamma=1.0
    ... )
    >>> print(targets)
    [0.75 0.5 ]
    """
    window = Window("rewards", rewards, time_axis, edge="bootstrap_value")
    one_network = next_values is None
    source = window.successor(
        values, bootstrap_value, next_values, final_values, truncated, on_truncation=on_truncation
    )
    mask = window.mask(valid, segment_ids, reverse=True, on_truncation=on_truncation)
    log_rho = window.step("log_rhos", log_rhos)
    flags = {"terminated": window.flag("terminated", terminated), "truncated": window.flag("truncated", truncated)}
    weights = {
        "gamma": window.coefficient("gamma", gamma),
        "lambda_": window.coefficient("lambda_", lambda_),
        "clip_rho": window.coefficient("clip_rho", clip_rho, clip=True),
        "clip_c": window.coefficient("clip_c", clip_c, clip=True, weight=True),
        "clip_pg_rho": window.coefficient("clip_pg_rho", clip_pg_rho, clip=True),
    }
    options: Any = {"reverse": True, "finite_weights": True, "implementation": implementation}
    if mask:
        return Estimate(*_masked(window, source, log_rho, mask, flags, weights, one_network, options))
    reads = Reads(
        reward=Read("rewards"),
        value_ahead=Read() if one_network else Read("values", 1),
        log_rho=log_rho,
        zero_at_truncation=window.flag("truncated", truncated if on_truncation == "mask" else None),
        last=Read(kind="flag") if one_network else START,
        **source,
        **flags,
        **weights,
    )
    return Estimate(*window.scan(reads, coefficients, outputs if one_network else outputs_with_next_values, **options))


def _masked(window, source, log_rho, mask, flags, weights, one_network, options):
    ahead, followed, next_value = Read(), Read(kind="flag"), source["next_value"]
    if one_network:
        next_value = masks.values_ahead(window, source, mask, flags)
    else:
        followed = masks.followed(window, mask, flags)
        ahead = Read("values", 1)
        if window.skips:
            ahead = masks.held(window, source["value"], mask, masks.nothing(flags), "values ahead")
    reads = MaskedReads(
        reward=Read(window.name),
        value=source["value"],
        value_ahead=ahead,
        next_value=next_value,
        final_value=source["final_value"],
        log_rho=log_rho,
        followed=followed,
        **flags,
        **mask,
        **weights,
    )
    if one_network:
        return window.scan(reads, masked_coefficients, masked_outputs, **options)
    return window.scan(reads, masked_coefficients_given, masked_outputs_given, **options)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class VTrace(Estimator):
    """`vtrace` with its hyperparameters: `VTrace(gamma=0.99)(rewards, values, log_rhos, ...)`.

    Attributes:
      gamma, lambda_, clip_rho, clip_c, clip_pg_rho: as in `vtrace`; the leaves of this pytree.
    """

    function = vtrace
    gamma: ArrayLike = 0.99
    lambda_: ArrayLike = 1.0
    clip_rho: ArrayLike = 1.0
    clip_c: ArrayLike = 1.0
    clip_pg_rho: ArrayLike = 1.0
