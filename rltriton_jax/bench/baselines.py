"""GAE as learners have it today, time-major: by hand, or by rlax. What the bench times and the trainer can run."""

import jax
import jax.numpy as jnp


def reverse_scan_gae(rewards, values, done, last_value, gamma, lambda_, *, unroll: int = 1):
    """The reverse `lax.scan` that learners in the style of PureJaxRL write; `done` holds floats."""

    def step(carry, row):
        advantage, following = carry
        reward, value, done = row
        delta = reward + gamma * following * (1 - done) - value
        advantage = delta + gamma * lambda_ * (1 - done) * advantage
        return (advantage, value), advantage

    start = (jnp.zeros_like(last_value), last_value)
    return jax.lax.scan(step, start, (rewards, values, done), reverse=True, unroll=unroll)[1]


def rlax_gae(library, rewards, values, done, last_value, gamma, lambda_):
    """rlax's GAE over a batch; `library` is rlax, or what takes its place."""

    def one(rewards, discounts, values):
        return library.truncated_generalized_advantage_estimation(rewards, discounts, lambda_, values)

    values = jnp.concatenate([values, last_value[None]])
    return jax.vmap(one, 1, 1)(rewards, gamma * (1 - done), values)
