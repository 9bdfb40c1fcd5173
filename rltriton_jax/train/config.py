"""The settings of a training run."""

from dataclasses import dataclass, field
from typing import Any


def _setting(default: Any, help: str, **limits: float) -> Any:
    """A field with what `train --help` says of it, and its limits: `least`, `above` and `most`."""
    return field(default=default, metadata={"help": help, **limits})


@dataclass(frozen=True)
class Config:
    """PPO with one shared set of hyperparameters for the classic-control environments; each is an option of `train`."""

    env: str = _setting("CartPole-v1", "a Gymnax environment, or brax/NAME")
    steps: int = _setting(500_000, "environment steps, rounded down to whole rollouts", least=1)
    num_envs: int = _setting(16, "parallel environments", least=1)
    num_steps: int = _setting(128, "steps of each in a rollout", least=1)
    seed: int = _setting(0, "of everything random", least=0, most=2**32 - 1)
    estimator: str = _setting("gae", "where advantages come from")
    implementation: str | None = _setting(None, "of the estimator's scan; left out, the platform's own")
    gamma: float = _setting(0.99, "discount", least=0, most=1)
    lambda_: float = _setting(0.95, "decay of the estimator's traces", least=0, most=1)
    learning_rate: float = _setting(1e-3, "Adam's at the start; it falls to 0 linearly", least=0)
    epochs: int = _setting(4, "passes through each rollout", least=1)
    minibatches: int = _setting(8, "parts of a rollout, one gradient step each", least=1)
    clip: float = _setting(0.2, "how far from 1 a policy's ratio is followed", least=0)
    entropy: float = _setting(0.005, "weight of the entropy bonus", least=0)
    value_weight: float = _setting(0.5, "weight of the critic's loss", least=0)
    max_grad_norm: float = _setting(0.5, "gradients are scaled down to this norm", above=0)
    eval_episodes: int = _setting(128, "episodes of the evaluation after training", least=1)

    @property
    def rollout(self) -> int:
        """Environment steps in each update."""
        return self.num_envs * self.num_steps

    @property
    def num_updates(self) -> int:
        return max(1, self.steps // self.rollout)
