"""The function of Brax's PPO that estimates advantages, as of Brax 0.14."""

import jax
import jax.numpy as jnp

from rltriton_jax.estimators.algebra import unless_done
from rltriton_jax.estimators.window import Window
from rltriton_jax.scan.recurrence import Read


def _delta(reward, value, next_value, truncated, terminated, discount):
    delta = reward + discount * jnp.where(terminated, 0.0, next_value) - value
    return jnp.where(truncated, 0.0, delta)


def _coefficients(reward, value, next_value, truncated, terminated, lambda_, discount):
    delta = _delta(reward, value, next_value, truncated, terminated, discount)
    return unless_done(discount * lambda_, terminated, truncated), delta


def _outputs(reward, value, next_value, truncated, terminated, lambda_, discount, x, previous):
    delta = _delta(reward, value, next_value, truncated, terminated, discount)
    return x + value, delta + discount * unless_done(previous, terminated, truncated)


def compute_gae(
    truncation: jax.Array,
    termination: jax.Array,
    rewards: jax.Array,
    values: jax.Array,
    bootstrap_value: jax.Array,
    lambda_: float = 1.0,
    discount: float = 0.99,
) -> tuple[jax.Array, jax.Array]:
    """Brax's generalised advantage estimation, for arrays [T, B].

        delta[t]   = r[t] + discount * V[t+1] - V[t]             V[t+1] = 0 where terminated; 0 where truncated
        x[t]       = delta[t] + discount * lambda_ * x[t+1]      cut after a terminated or truncated step
        vs         = x + V
        advantages = r[t] + discount * vs[t+1] - V[t]            vs[t+1] = 0 where terminated; 0 where truncated

    As in Brax, the advantage is not x: lambda_ does not weigh its last step, and a truncated step has none.
    `rltriton_jax.gae` is the estimator of the paper.

    Args:
      truncation: flags [T, B] holding 0 or 1, of any dtype.
      termination: flags [T, B] holding 0 or 1, of any dtype.
      rewards: [T, B].
      values: V(s_t), [T, B].
      bootstrap_value: V(s_T), [B].
      lambda_: decay of the trace.
      discount: gamma.

    Returns:
      (vs, advantages), both [T, B].

    Gradients: none, as in Brax; both results are stopped.

    Raises:
      ValueError: for shapes that do not fit.
      TypeError: for dtypes other than float32, bfloat16, float16 and float64.

    References:
      Schulman et al. 2016, High-Dimensional Continuous Control Using Generalized Advantage Estimation,
      https://arxiv.org/abs/1506.02438.

    >>> import jax.numpy as jnp
    >>> zeros = jnp.zeros((2, 1))
    >>> vs, advantages = compute_gae(zeros, zeros, jnp.ones((2, 1)), zeros, jnp.zeros(1), discount=0.5)
    >>> print(vs[:, 0])
    [1.5 1. ]
    """
    window = Window("rewards", rewards, 0)
    reads = (
        Read("rewards"),
        window.step("values", values),
        Read("values", 1, window.row("bootstrap_value", bootstrap_value)),
        window.flag("truncation", truncation),
        window.flag("termination", termination),
        window.coefficient("lambda_", lambda_, signed=True),
        window.coefficient("discount", discount, signed=True),
    )
    vs, advantages = window.scan(_coefficients, _outputs, reads, num_outputs=2, reverse=True, implementation=None)
    return jax.lax.stop_gradient(vs), jax.lax.stop_gradient(advantages)
