"""rl-triton: arrays [N, T] with float flags.

Its bootstrap values [N, T] are 0 but at truncated steps and at the end. Its V-trace clips the ratio of advantages as
that of errors, and has no lambda. Its prefix sum's flags mark the first step of a segment, its traces' flags the last.
"""

import dataclasses

import numpy as np
import pytest
from peers.rollouts import EPISODES, INPUTS, assert_different, assert_same, float64, rollout

import rltriton_jax as rtj


def compute_gae(rewards, values, terminateds, truncateds, bootstrap_values, gamma, lambda_):
    return rtj.gae(
        rewards, values, terminateds, truncateds, bootstrap_value=bootstrap_values[:, -1],
        final_values=bootstrap_values, gamma=gamma, lambda_=lambda_, time_axis=1,
    ).advantages  # fmt: skip


def compute_vtrace(log_pi_target, log_pi_behavior, values, rewards, dones, last_value, gamma, rho_bar, c_bar):
    return rtj.vtrace(
        rewards, values, log_pi_target - log_pi_behavior, dones, bootstrap_value=last_value, gamma=gamma,
        clip_rho=rho_bar, clip_c=c_bar, clip_pg_rho=rho_bar, time_axis=1,
    )  # fmt: skip


def compute_discounted_returns(rewards, terminateds, truncateds, bootstrap_values, gamma):
    return rtj.discounted_returns(
        rewards, terminateds, truncateds, bootstrap_value=bootstrap_values[:, -1], final_values=bootstrap_values,
        gamma=gamma, time_axis=1,
    )  # fmt: skip


def compute_eligibility_traces(gradients, dones, gamma, lambda_, seed_values):
    return rtj.eligibility_traces(gradients, dones, gamma=gamma, lambda_=lambda_, initial=seed_values, time_axis=1)


def compute_episodic_prefix_sum(inputs, dones, seed_values):
    return rtj.episodic_prefix_sum(inputs, dones, boundary="starts_at", initial=seed_values, time_axis=1)


class Definitions:
    """Loops over the columns of [N, T] in float64."""

    def __init__(self, rewards, values, terminateds, truncateds, bootstrap_values, gamma, lambda_):
        self.r, self.v, bootstrap = float64(rewards, values, bootstrap_values)
        self.gamma, self.lambda_ = gamma, lambda_
        self.done = (terminateds + truncateds) > 0
        self.truncated = truncateds > 0
        self.bootstrap = np.where(terminateds > 0, 0, bootstrap)
        self.steps = self.r.shape[1]

    def back(self, step):
        out, ahead = np.zeros_like(self.r), np.zeros(len(self.r))
        for t in reversed(range(self.steps)):
            out[:, t] = ahead = step(t, np.where(self.done[:, t], 0, ahead))
        return out

    def gae(self):
        next_v = np.pad(self.v[:, 1:], ((0, 0), (0, 1)))
        next_v = np.where(self.done, 0, next_v) + self.bootstrap
        delta = self.r + self.gamma * next_v - self.v
        return self.back(lambda t, ahead: delta[:, t] + self.gamma * self.lambda_ * ahead)

    def discounted_returns(self):
        return self.back(lambda t, ahead: self.r[:, t] + self.gamma * (ahead + self.bootstrap[:, t]))

    def vtrace(self, log_rhos, rho_bar, c_bar):
        rho, c = (np.minimum(np.exp(np.asarray(log_rhos, "float64")), clip) for clip in (rho_bar, c_bar))
        following = lambda x: np.where(self.done, 0, np.pad(x[:, 1:], ((0, 0), (0, 1)))) + self.bootstrap
        delta = rho * (self.r + self.gamma * following(self.v) - self.v)
        targets = self.v + self.back(lambda t, ahead: delta[:, t] + self.gamma * c[:, t] * ahead)
        return rho * (self.r + self.gamma * following(targets) - self.v), targets


def terminating(r):
    """The rollout with terminations in place of truncations."""
    return dataclasses.replace(r, terminated=r.done, truncated=np.zeros_like(r.done))


def forward(inputs, weights, seed):
    """z[t] = inputs[t] + weights[t] z[t-1]."""
    out, before = np.zeros(inputs.shape), seed
    for t in range(inputs.shape[1]):
        out[:, t] = before = inputs[:, t] + weights[:, t] * before
    return out


def arguments(r):
    """In its order and layout: values of truncated steps, and of the last one unless it terminated."""
    said = r.truncated.copy()
    said[-1] |= ~r.terminated[-1]
    arrays = (r.rewards, r.values, r.terminated, r.truncated, np.where(said, r.next_values, 0))
    return *(np.ascontiguousarray(x.T, "float32") for x in arrays), r.gamma, r.lambda_


@pytest.mark.parametrize("size", INPUTS, ids=str)
def test_advantages_and_discounted_returns_are_rl_tritons(size):
    args = rewards, _, terminateds, truncateds, bootstrap_values, gamma, _ = arguments(rollout(*size))
    definitions = Definitions(*args)
    returns = compute_discounted_returns(rewards, terminateds, truncateds, bootstrap_values, gamma)
    assert_same([compute_gae(*args), returns], [definitions.gae(), definitions.discounted_returns()])


@pytest.mark.parametrize("size", INPUTS, ids=str)
def test_vtrace_is_rl_tritons(size):
    """Episodes that terminate."""
    r = terminating(rollout(*size))
    args = rewards, values, dones, _, bootstrap_values, gamma, _ = arguments(r)
    log_rhos = r.log_rhos.T
    got = compute_vtrace(log_rhos, 0 * log_rhos, values, rewards, dones, bootstrap_values[:, -1], gamma, 1.5, 1.1)
    assert_same(got, Definitions(*args).vtrace(log_rhos, 1.5, 1.1))


@pytest.mark.parametrize("size", INPUTS, ids=str)
def test_forward_scans_are_rl_tritons(size):
    r = rollout(*size)
    inputs, seed, dones = r.rewards.T, r.values[0], r.done.T.astype("float32")
    decay = r.gamma * r.lambda_ * (1 - np.pad(dones[:, :-1], ((0, 0), (1, 0))))
    traces = compute_eligibility_traces(inputs, dones, r.gamma, r.lambda_, seed)
    sums = compute_episodic_prefix_sum(inputs, dones, seed)
    assert_same([traces, sums], [forward(inputs, decay, seed), forward(inputs, 1 - dones, seed)])


def test_figures_of_its_own():
    ones, zeros = np.ones((1, 3), "float32"), np.zeros((1, 3), "float32")
    rewards, bootstrap = np.array([[1, 2, 3]], "float32"), np.array([[0, 0, 2]], "float32")
    for values, flags, said, want in (
        (zeros, zeros, zeros, [6, 5, 3]), (ones, zeros, zeros, [5, 4, 2]), (zeros, zeros, bootstrap, [8, 7, 5]),
        (zeros, np.array([[0, 1, 0]], "float32"), zeros, [3, 2, 3]),
    ):  # fmt: skip
        np.testing.assert_array_equal(compute_gae(rewards, values, flags, zeros, said, 1.0, 1.0)[0], want)
    flags = np.array([[0, 0, 1, 0]], "float32")
    sums = compute_episodic_prefix_sum(np.array([[1, 2, 3, 4]], "float32"), flags, np.zeros(1, "float32"))
    np.testing.assert_array_equal(sums[0], [1, 3, 3, 7])


def test_bootstrap_values_are_not_next_values():
    """They are 0 wherever the next row's value is the right one."""
    rewards, values, terminateds, truncateds, bootstrap_values, gamma, lambda_ = args = arguments(EPISODES)
    naive = rtj.gae(
        rewards, values, terminateds, truncateds, next_values=bootstrap_values, gamma=gamma, lambda_=lambda_,
        time_axis=1,
    )  # fmt: skip
    assert_different(naive.advantages, Definitions(*args).gae())


def test_rows_are_environments():
    """As many as steps, so that nothing but the numbers tells."""
    rewards, values, terminateds, _, bootstrap_values, gamma, lambda_ = args = arguments(EPISODES)
    naive = rtj.gae(rewards, values, terminateds, bootstrap_value=bootstrap_values[:, -1], gamma=gamma, lambda_=lambda_)
    assert_different(naive.advantages, Definitions(*args).gae())


def test_vtraces_default_clip_of_the_advantages_is_another():
    r = terminating(EPISODES)
    rewards, values, dones, _, bootstrap_values, gamma, _ = args = arguments(r)
    naive = rtj.vtrace(
        rewards, values, r.log_rhos.T, dones, bootstrap_value=bootstrap_values[:, -1], gamma=gamma, clip_rho=1.5,
        clip_c=1.1, time_axis=1,
    )  # fmt: skip
    assert_different(naive.advantages, Definitions(*args).vtrace(r.log_rhos.T, 1.5, 1.1)[0])


def test_a_prefix_sums_flags_mark_first_steps():
    inputs, dones, seed = EPISODES.rewards.T, EPISODES.done.T, EPISODES.values[0]
    naive = rtj.episodic_prefix_sum(inputs, dones, initial=seed, time_axis=1)
    assert_different(naive, forward(inputs, 1.0 - dones, seed))
