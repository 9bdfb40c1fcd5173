"""The settings of a training run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """PPO with one shared set of hyperparameters for the classic-control environments."""

    env: str = "CartPole-v1"
    steps: int = 500_000
    num_envs: int = 16
    num_steps: int = 128
    seed: int = 0
    estimator: str = "gae"
    implementation: str | None = None
    gamma: float = 0.99
    lambda_: float = 0.95
    learning_rate: float = 1e-3
    epochs: int = 4
    minibatches: int = 8
    clip: float = 0.2
    entropy: float = 0.005
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    eval_episodes: int = 128

    @property
    def num_updates(self) -> int:
        return max(1, self.steps // (self.num_envs * self.num_steps))
