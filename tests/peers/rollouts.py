"""The ten inputs that every peer's definition and our adapter to it are compared on."""

from dataclasses import dataclass

import numpy as np

SIZES = ((1, 1), (7, 5), (33, 2), (31, 31), (128, 3))
"""Steps and environments; 31 by 31 is what goes through unnoticed when the axes are taken for each other."""

INPUTS = [
    (*size, gamma, lambda_)
    for size, pairs in zip(SIZES, (((0.99, 0.95), (1, 1)), ((0.9, 0), (1, 0.5)), ((0, 0.9), (0.99, 1)),
                                   ((0.97, 0.9), (1, 0)), ((0.99, 0.95), (0.999, 1))), strict=True)
    for gamma, lambda_ in pairs
]  # fmt: skip
"""Steps, environments, gamma, lambda."""


@dataclass
class Rollout:
    """Time-major arrays [T, N] of episodes that an environment resets within the step."""

    gamma: float
    lambda_: float
    rewards: np.ndarray
    values: np.ndarray
    next_values: np.ndarray
    """V of the true successor: values[t + 1] inside an episode, V of the final observation at a truncated step."""
    terminated: np.ndarray
    truncated: np.ndarray
    log_rhos: np.ndarray

    @property
    def done(self):
        return self.terminated | self.truncated

    @property
    def bootstrap_value(self):
        """V(s_T); where the last step ends its episode nothing may depend on it."""
        return self.next_values[-1]


def rollout(steps, envs, gamma, lambda_):
    rng = np.random.default_rng([steps, envs, int(1000 * gamma), int(1000 * lambda_)])
    shape = (steps, envs)
    rewards, values, next_values = rng.normal(size=(3, *shape)).astype("float32")
    kind = rng.choice(3, p=(0.76, 0.12, 0.12), size=shape)
    done = kind > 0
    next_values[:-1] = np.where(done[:-1], next_values[:-1], values[1:])
    log_rhos = (0.7 * rng.normal(size=shape)).astype("float32")
    return Rollout(float(gamma), float(lambda_), rewards, values, next_values, kind == 1, kind == 2, log_rhos)


EPISODES = rollout(31, 31, 0.97, 0.9)
"""One with all kinds of ends, for what a naive call would give."""


def float64(*arrays):
    return [np.asarray(x, "float64") for x in arrays]


def assert_same(got, want):
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(w).max(initial=0)))


def assert_different(got, want):
    assert got.shape == want.shape and np.abs(np.asarray(got) - np.asarray(want)).max() > 0.1
