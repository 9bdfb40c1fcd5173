"""Environments as the learner sees them: a batch that resets itself, and says how each episode ended."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp


class Environment(Protocol):
    """A batch of environments."""

    @property
    def num_actions(self) -> int:
        """How many discrete actions, or how many dimensions a continuous one has."""
        ...

    @property
    def continuous(self) -> bool: ...

    @property
    def limit(self) -> int:
        """No episode is longer."""
        ...

    def reset(self, keys: jax.Array) -> tuple[jax.Array, Any]:
        """(observation, state), one environment for each key."""
        ...

    def step(self, keys: jax.Array, state: Any, action: jax.Array) -> tuple[Any, ...]:
        """(observation, state, reward, terminated, truncated, final observation).

        Where an episode ended the observation is the next one's first, and the final observation its own last.
        """
        ...


@dataclass(frozen=True)
class GymnaxEnvironment:
    """A Gymnax environment with its parameters."""

    env: Any
    params: Any

    @classmethod
    def make(cls, name: str) -> "GymnaxEnvironment":
        import gymnax

        if name not in gymnax.registered_envs:
            raise ValueError(f"{name} is not known; one of: {', '.join(gymnax.registered_envs)}, or brax/NAME")
        return cls(*gymnax.make(name))

    @property
    def space(self):
        return self.env.action_space(self.params)

    @property
    def continuous(self) -> bool:
        return not hasattr(self.space, "n")

    @property
    def num_actions(self) -> int:
        return math.prod(self.space.shape) if self.continuous else self.space.n

    @property
    def limit(self) -> int:
        return int(self.params.max_steps_in_episode) + 1

    def reset(self, keys):
        obs, state = jax.vmap(self.env.reset, (0, None))(keys, self.params)
        return _flat(obs), state

    def step(self, keys, state, action):
        if self.continuous:
            action = jnp.clip(action, self.space.low, self.space.high).reshape((len(keys), *self.space.shape))
        out = jax.vmap(self.env.step, (0, 0, 0, None))(keys, state, action, self.params)
        obs, state, reward, terminated, truncated, info = out
        return _flat(obs), state, reward.astype(jnp.float32), terminated, truncated, _flat(info["final_observation"])


def _flat(observation):
    return observation.reshape(observation.shape[0], -1)


@dataclass(frozen=True)
class BraxEnvironment:
    """A Brax environment in Brax's own training wrappers, and `keep_final_observation` among them."""

    env: Any
    limit: int = 1000
    continuous: bool = True

    @classmethod
    def make(cls, name: str, limit: int = 1000) -> "BraxEnvironment":
        from brax import envs
        from brax.envs.wrappers import training

        from rltriton_jax.compat.brax import keep_final_observation

        if name not in envs._envs:
            raise ValueError(f"brax/{name} is not known; one of: {', '.join('brax/' + n for n in envs._envs)}")
        env = training.VmapWrapper(envs.get_environment(name))
        env = training.EpisodeWrapper(env, limit, action_repeat=1)
        return cls(training.AutoResetWrapper(keep_final_observation(env)), limit)

    @property
    def num_actions(self) -> int:
        return self.env.action_size

    def reset(self, keys):
        state = self.env.reset(jax.random.key_data(keys))  # Brax takes the old kind of keys
        return state.obs, state

    def step(self, keys, state, action):
        state = self.env.step(state, jnp.clip(action, -1, 1))
        truncated = state.info["truncation"] > 0
        terminated = (state.done > 0) & ~truncated
        return state.obs, state, state.reward, terminated, truncated, state.info["final_obs"]


def make(name: str) -> Environment:
    """The environment of that name: a Gymnax id, or brax/NAME."""
    if name.startswith("brax/"):
        return BraxEnvironment.make(name.removeprefix("brax/"))
    return GymnaxEnvironment.make(name)
