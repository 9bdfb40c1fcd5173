"""Pieces of algebra that several estimators share; they run in jnp and inside the kernel alike."""

import jax.numpy as jnp


def unless_done(x, s):
    """x, or 0 where the step is the last of its episode."""
    return jnp.where(s.terminated | s.truncated, 0.0, x)


def successor_value(s):
    """V', the value of the true successor state; 0 where there is none."""
    return jnp.where(s.terminated, 0.0, jnp.where(s.at_final, s.final_value, s.next_value))


def td_error(s, successor):
    """What the reward and the successor's value exceed V by; 0 at a truncated step if that is asked for."""
    return jnp.where(s.zero_at_truncation & ~s.terminated, 0.0, s.reward + s.gamma * successor - s.value)


def clipped_ratio(log_rho, clip):
    """min(clip, exp(log_rho)). A select, so that the derivative stays finite where exp overflows."""
    rho = jnp.exp(log_rho)
    return jnp.where(rho > clip, clip, rho)
