"""Pieces of algebra that several estimators share; they run in jnp and inside the kernel alike."""

import jax.numpy as jnp


def unless_done(x, terminated, truncated):
    """x, or 0 where the step is the last of its episode."""
    return jnp.where(terminated | truncated, 0.0, x)


def successor_value(next_value, final_value, at_final, terminated):
    """V', the value of the true successor state; 0 where there is none."""
    return jnp.where(terminated, 0.0, jnp.where(at_final, final_value, next_value))


def clipped_ratio(log_rho, clip):
    """min(clip, exp(log_rho)). A select, so that the derivative stays finite where exp overflows."""
    rho = jnp.exp(log_rho)
    return jnp.where(rho > clip, clip, rho)
