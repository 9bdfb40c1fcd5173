"""TorchRL: arrays [*batch, T, features] with state and next-state values, and done that contains terminated.

terminated takes the next value away, done cuts the trace, so that a truncated step keeps its own next value.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from peers.rollouts import EPISODES, INPUTS, assert_different, assert_same, float64, rollout

import rltriton_jax as rtj

TIME = -2


def gae(gamma, lmbda, state_value, next_state_value, reward, done, terminated):
    truncated = done & ~terminated
    return rtj.gae(
        reward, state_value, terminated, truncated, next_values=next_state_value, gamma=gamma, lambda_=lmbda,
        time_axis=TIME,
    )  # fmt: skip


def td_lambda_returns(gamma, lmbda, next_state_value, reward, done, terminated):
    truncated = done & ~terminated
    return rtj.lambda_returns(
        reward, None, terminated, truncated, next_values=next_state_value, gamma=gamma, lambda_=lmbda, time_axis=TIME
    )


def vtrace(gamma, log_pi, log_mu, state_value, next_state_value, reward, done, terminated, rho_thresh, c_thresh):
    """One threshold clips the ratio of the errors and that of the advantages; no lambda."""
    truncated = done & ~terminated
    return rtj.vtrace(
        reward, state_value, log_pi - log_mu, terminated, truncated, next_values=next_state_value, gamma=gamma,
        clip_rho=rho_thresh, clip_c=c_thresh, clip_pg_rho=rho_thresh, time_axis=TIME,
    )  # fmt: skip


def reward2go(reward, done, gamma):
    return rtj.discounted_returns(reward, done, gamma=gamma, time_axis=TIME)


class Definitions:
    """Loops over [T, N] in float64, with gamma and lambda of every step: those of step t weigh what t + 1 hands on."""

    def __init__(self, r, gamma, lambda_):
        self.gamma, self.lambda_ = (
            np.broadcast_to(np.asarray(x, "float64"), r.rewards.shape) for x in (gamma, lambda_)
        )
        self.r, self.v, self.next_v, self.rho = float64(r.rewards, r.values, r.next_values, np.exp(r.log_rhos))
        self.terminated, self.done = r.terminated, r.done
        self.next_v = np.where(self.terminated, 0, self.next_v)

    def back(self, step):
        out, ahead = np.zeros_like(self.r), np.zeros_like(self.r[0])
        for t in reversed(range(len(out))):
            out[t] = ahead = step(t, np.where(self.done[t], 0, ahead))
        return out

    def gae(self):
        delta = self.r + self.gamma * self.next_v - self.v
        advantages = self.back(lambda t, ahead: delta[t] + self.gamma[t] * self.lambda_[t] * ahead)
        return advantages, advantages + self.v

    def td_lambda_returns(self):
        last = self.done.copy()
        last[-1] = True

        def step(t, ahead):
            mixed = (1 - self.lambda_[t]) * self.next_v[t] + self.lambda_[t] * ahead
            return self.r[t] + self.gamma[t] * np.where(last[t], self.next_v[t], mixed)

        return self.back(step)

    def vtrace(self, rho_thresh, c_thresh):
        rho, c = np.minimum(self.rho, rho_thresh), np.minimum(self.rho, c_thresh)
        delta = rho * (self.r + self.gamma * self.next_v - self.v)
        targets = self.v + self.back(lambda t, ahead: delta[t] + self.gamma[t] * c[t] * ahead)
        following = np.where(self.terminated, 0, np.concatenate([targets[1:], self.next_v[-1:]]))
        return rho * (self.r + self.gamma * following - self.v), targets

    def reward2go(self):
        return self.back(lambda t, ahead: self.r[t] + self.gamma[t] * ahead)


def placed(x):
    """[T, N] as TorchRL has it: a batch of N, T steps, one feature."""
    return jnp.asarray(x).T[..., None]


def back(*results):
    return [np.asarray(x)[..., 0].T for x in results]


def successors(r):
    return placed(r.next_values), placed(r.rewards), placed(r.done), placed(r.terminated)


@pytest.mark.parametrize("per_step", [False, True], ids=["scalars", "tensors"])
@pytest.mark.parametrize("size", INPUTS, ids=str)
def test_gae_and_td_lambda_are_torchrls(size, per_step):
    """With gamma as a tensor each of its entries belongs to its own step, which TorchRL calls rolling."""
    r = rollout(*size)
    gamma, lambda_ = r.gamma, r.lambda_
    if per_step:
        gamma, lambda_ = np.random.default_rng(0).uniform(0.5, 1, size=(2, *r.rewards.shape)).astype("float32")
    want = Definitions(r, gamma, lambda_)
    if per_step:
        gamma, lambda_ = placed(gamma), placed(lambda_)
    assert_same(back(*gae(gamma, lambda_, placed(r.values), *successors(r))), want.gae())
    assert_same(back(td_lambda_returns(gamma, lambda_, *successors(r))), [want.td_lambda_returns()])


@pytest.mark.parametrize("size", INPUTS, ids=str)
def test_vtrace_is_torchrls_but_for_the_advantages_of_truncated_steps(size):
    """There TorchRL takes the next row's target, which is another episode's, and we the step's own next value."""
    r = rollout(*size)
    got = vtrace(
        r.gamma, placed(r.log_rhos), jnp.zeros_like(placed(r.log_rhos)), placed(r.values), *successors(r), 1.5, 1.1
    )
    advantages, targets = back(*got)
    want, want_targets = Definitions(r, r.gamma, 1).vtrace(1.5, 1.1)
    cut = r.truncated & (np.arange(len(r.rewards)) < len(r.rewards) - 1)[:, None]
    own = np.minimum(np.exp(r.log_rhos), 1.5) * (r.rewards + r.gamma * r.next_values - r.values)
    assert_same([advantages, targets], [np.where(cut, own, want), want_targets])
    if cut.sum() > 1 and r.gamma > 0:
        assert_different(advantages[cut], want[cut])


@pytest.mark.parametrize("size", INPUTS, ids=str)
def test_reward_to_go_is_torchrls(size):
    r = rollout(*size)
    assert_same(back(reward2go(placed(r.rewards), placed(r.done), r.gamma)), [Definitions(r, r.gamma, 1).reward2go()])


def test_reward_to_go_of_ones():
    done = jnp.zeros((1, 10, 1), bool).at[0, jnp.array([3, 7])].set(True)
    want = [3.940399, 2.9701, 1.99, 1, 3.940399, 2.9701, 1.99, 1, 1.99, 1]
    np.testing.assert_allclose(reward2go(jnp.ones((1, 10, 1)), done, 0.99)[0, :, 0], want, rtol=1e-6)


def test_done_alone_takes_truncations_for_terminations():
    r, (next_value, reward, done, _) = EPISODES, successors(EPISODES)
    naive = gae(r.gamma, r.lambda_, placed(r.values), next_value, reward, done, done)
    assert_different(back(naive.advantages)[0], Definitions(r, r.gamma, r.lambda_).gae()[0])


def test_terminated_alone_lets_the_next_episode_in():
    r, (next_value, reward, _, terminated) = EPISODES, successors(EPISODES)
    naive = gae(r.gamma, r.lambda_, placed(r.values), next_value, reward, terminated, terminated)
    assert_different(back(naive.advantages)[0], Definitions(r, r.gamma, r.lambda_).gae()[0])


def test_gammas_moved_by_a_step_are_others():
    """A trace by cumulated products of the gammas weighs step t + 1 by that of step t, not by its own."""
    r = EPISODES
    gammas = np.random.default_rng(0).uniform(0.5, 1, size=r.rewards.shape).astype("float32")
    naive = gae(placed(np.roll(gammas, -1, 0)), r.lambda_, placed(r.values), *successors(r))
    assert_different(back(naive.advantages)[0], Definitions(r, gammas, r.lambda_).gae()[0])


def test_thresholds_that_only_clip_the_errors_give_other_advantages():
    r = EPISODES
    naive = rtj.vtrace(
        r.rewards, r.values, r.log_rhos, r.terminated, r.truncated, next_values=r.next_values, gamma=r.gamma,
        clip_rho=1.5, clip_c=1.1,
    )  # fmt: skip
    assert_different(naive.advantages, Definitions(r, r.gamma, 1).vtrace(1.5, 1.1)[0])
