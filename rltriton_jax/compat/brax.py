"""The function of Brax's PPO that estimates advantages, and a wrapper that keeps final observations; Brax 0.14."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rltriton_jax.estimators.algebra import unless_done
from rltriton_jax.estimators.arguments import of_arrays
from rltriton_jax.estimators.window import Window
from rltriton_jax.scan.recurrence import Read


class Reads(NamedTuple):
    """What a step reads."""

    reward: Any
    value: Any
    next_value: Any
    truncated: Any
    terminated: Any
    lambda_: Any
    discount: Any


def _delta(s):
    delta = s.reward + s.discount * jnp.where(s.terminated, 0.0, s.next_value) - s.value
    return jnp.where(s.truncated, 0.0, delta)


def coefficients(s):
    return unless_done(s.discount * s.lambda_, s), _delta(s)


def outputs(s, x, entering):
    return x + s.value, _delta(s) + s.discount * unless_done(entering, s)


@of_arrays("truncation", "termination")
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
    reads = Reads(
        reward=Read("rewards"),
        value=window.step("values", values),
        next_value=Read("values", 1, window.one_step("bootstrap_value", bootstrap_value)),
        truncated=window.flag("truncation", truncation),
        terminated=window.flag("termination", termination),
        lambda_=window.coefficient("lambda_", lambda_, signed=True),
        discount=window.coefficient("discount", discount, signed=True),
    )
    vs, advantages = window.scan(reads, coefficients, outputs, reverse=True, implementation=None)
    return jax.lax.stop_gradient(vs), jax.lax.stop_gradient(advantages)


def keep_final_observation(env: Any) -> Any:
    """Wraps a Brax environment so that `state.info["final_obs"]` is the observation that each step led to.

    AutoResetWrapper overwrites `obs` with the next episode's first observation wherever an episode ended. This wrapper
    goes between EpisodeWrapper and AutoResetWrapper, and what it put in `info` stays the ended episode's own last:

        from brax.envs.wrappers import training

        env = training.VmapWrapper(env)
        env = training.EpisodeWrapper(env, episode_length=1000, action_repeat=1)
        env = keep_final_observation(env)
        env = training.AutoResetWrapper(env)

    What `rltriton_jax.gae` and the others ask for is then, after each step:

        truncated    = state.info["truncation"] > 0
        terminated   = (state.done > 0) & ~truncated
        final_values = V(state.info["final_obs"])

    Args:
      env: a Brax environment, or a wrapped one, whose `obs` may be a pytree.

    Returns:
      The wrapped environment. Where no episode ended `info["final_obs"]` is `obs`.

    Raises:
      ImportError: Brax's own, where Brax is not installed.
    """
    # Only here, as Brax is optional and slow to import.
    from brax.envs.base import Wrapper

    class KeepFinalObservation(Wrapper):
        def reset(self, rng):
            return self._kept(self.env.reset(rng))

        def step(self, state, action):
            return self._kept(self.env.step(state, action))

        def _kept(self, state):
            return state.replace(info={**state.info, "final_obs": state.obs})

    return KeepFinalObservation(env)
