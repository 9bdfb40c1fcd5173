"""The function of tunix's PPO that estimates advantages, as of tunix 0.1.7."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rltriton_jax.estimators.arguments import of_arrays
from rltriton_jax.estimators.masks import LatestReads, handing_on, if_valid, latest, latest_before
from rltriton_jax.estimators.window import Window
from rltriton_jax.scan.recurrence import Read


class Reads(NamedTuple):
    """What a step reads."""

    reward: Any
    value: Any
    next_value: Any
    valid: Any
    gamma: Any
    gae_lambda: Any


def coefficients(s):
    delta = s.reward + s.gamma * s.next_value - s.value
    return handing_on(s, s.gamma * s.gae_lambda), if_valid(s, delta)


def outputs(s, x, entering):
    return x, x + s.value


def _window(rewards_or_values, name: str) -> Window:
    """A window over [B, T] whose results have JAX's default float dtype, in which tunix carries, at the least."""
    window = Window(name, rewards_or_values, 1)
    window.data.append(np.zeros(0, jnp.result_type(float)))
    return window


def _whitened(x, present):
    """As in tunix: with 1e-8 beside the count and the variance, whose n / (n - 1) is infinite for n = 1."""
    n = jnp.sum(present, dtype=x.dtype)
    centred = x - jnp.sum(x, where=present) / (n + 1e-8)
    variance = jnp.sum(jnp.square(centred), where=present) / (n + 1e-8) * (n / (n - 1))
    return centred * jax.lax.rsqrt(variance + 1e-8)


@of_arrays()
def compute_gae_advantages(
    rewards: jax.Array,
    values: jax.Array,
    completion_mask: jax.Array,
    gamma: float,
    gae_lambda: float,
) -> tuple[jax.Array, jax.Array]:
    """Tunix's generalised advantage estimation over completions [B, T], whose advantages are whitened.

        delta[t] = r[t] + gamma * V' - V[t]                V' = V of the next step in the mask; 0 after the last one
        A[t]     = delta[t] + gamma * gae_lambda * A[t+1]  A[t] = A[t+1] where the mask is 0
        returns  = A + V                                   also where the mask is 0
        advantages = (A - mean) / sqrt(variance + 1e-8)    over all steps in the mask, with Bessel's correction

    As in tunix, with one step in the mask the advantages are NaN (0/0 in the variance), and with none they are 0.
    Values and rewards outside the mask have no say in other steps, be they NaN, which tunix spreads.
    `rltriton_jax.gae(valid=...)` is 0 outside the mask, and does not whiten.

    Tunix's learner finds its estimator by name, so that importing this one is not enough:

        from tunix.rl import function_registry

        function_registry.register_advantage_estimator("gae")(compute_gae_advantages)

    Args:
      rewards: [B, T].
      values: V(s_t), [B, T].
      completion_mask: flags [B, T] holding 0 or 1, of any dtype; 0 where a step is not there, at the end or in between.
      gamma: discount; a scalar, or [B].
      gae_lambda: decay of the trace; a scalar, or [B].

    Returns:
      (advantages, returns), both [B, T], in JAX's default float dtype also where rewards and values have 16 bits.

    Gradients: of both results in every argument but the mask, to any order; none is stopped.

    Raises:
      ValueError: for shapes that do not fit and, where it can be seen, a mask that holds other numbers than 0 and 1.
      TypeError: for what is no array of numbers.

    References:
      Schulman et al. 2016, High-Dimensional Continuous Control Using Generalized Advantage Estimation,
      https://arxiv.org/abs/1506.02438.

    >>> import jax.numpy as jnp
    >>> rewards, mask = jnp.array([[1.0, 9.0, 2.0, 9.0]]), jnp.array([[1, 0, 1, 0]])
    >>> advantages, returns = compute_gae_advantages(rewards, jnp.zeros((1, 4)), mask, gamma=0.5, gae_lambda=1.0)
    >>> print(returns)
    [[2. 2. 2. 0.]]
    """
    if jnp.ndim(rewards) != 2:
        raise ValueError(f"rewards has shape {jnp.shape(rewards)}; pass an array [B, T], one row a completion.")
    window = _window(rewards, "rewards")
    value = window.step("values", values)
    valid = window.flag("completion_mask", completion_mask)
    gamma_read = window.coefficient("gamma", gamma, signed=True)
    lambda_read = window.coefficient("gae_lambda", gae_lambda, signed=True)

    ahead = _window(values, "values")
    held = LatestReads(Read("values"), ahead.flag("completion_mask", completion_mask))
    (following,) = ahead.scan(held, latest, latest_before, reverse=True, finite_weights=True, implementation=None)

    reads = Reads(
        reward=Read("rewards"),
        value=value,
        next_value=window.step("next_value", following),
        valid=valid,
        gamma=gamma_read,
        gae_lambda=lambda_read,
    )
    advantages, returns = window.scan(reads, coefficients, outputs, reverse=True, implementation=None)
    return _whitened(advantages, jnp.asarray(completion_mask).astype(bool)), returns
