"""Actor and critic, and the policy's distribution."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.initializers import constant, orthogonal


class ActorCritic(nn.Module):
    """Two towers of two tanh layers: the policy's parameters and V(s).

    `num_actions` logits for a discrete policy; for a continuous one the means, and a log standard deviation that does
    not depend on the state.
    """

    num_actions: int
    continuous: bool
    width: int = 64

    @nn.compact
    def __call__(self, observation):
        x = observation.astype(jnp.float32)

        def tower(size, scale):
            h = x
            for _ in range(2):
                h = nn.tanh(nn.Dense(self.width, kernel_init=orthogonal(2**0.5))(h))
            return nn.Dense(size, kernel_init=orthogonal(scale))(h)

        policy = tower(self.num_actions, 0.01)
        if self.continuous:
            log_std = self.param("log_std", constant(0.0), (self.num_actions,))
            policy = jnp.concatenate([policy, jnp.broadcast_to(log_std, policy.shape)], -1)
        return policy, tower(1, 1.0)[..., 0]


def _normal(policy):
    return jnp.split(policy, 2, axis=-1)


def sample(key, policy, continuous: bool):
    if not continuous:
        return jax.random.categorical(key, policy)
    mean, log_std = _normal(policy)
    return mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)


def mode(policy, continuous: bool):
    return _normal(policy)[0] if continuous else jnp.argmax(policy, -1)


def log_prob(policy, action, continuous: bool):
    if not continuous:
        return jnp.take_along_axis(nn.log_softmax(policy), action[..., None], -1)[..., 0]
    mean, log_std = _normal(policy)
    return jnp.sum(jax.scipy.stats.norm.logpdf(action, mean, jnp.exp(log_std)), -1)


def entropy(policy, continuous: bool):
    if not continuous:
        return -jnp.sum(nn.softmax(policy) * nn.log_softmax(policy), -1)
    return jnp.sum(_normal(policy)[1] + 0.5 * jnp.log(2 * jnp.pi * jnp.e), -1)
