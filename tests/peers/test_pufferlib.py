"""PufferLib: advantages of segments [S, H] by V-trace's clips and GAE's lambda, with rewards and dones one step later.

rewards[t] is for the action of step t - 1, and dones[t] says that step t begins an episode. Nothing follows the last
step, whose advantage is 0. There are two rules: the ratio weighs the whole error, or its reward alone.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from peers.rollouts import EPISODES, INPUTS, assert_different, assert_same, float64, rollout

import rltriton_jax as rtj

CLIPS = {"rho_clip": 1.5, "c_clip": 1.1}


def one_step_earlier(values, rewards, dones, importance):
    """What belongs to each action: all but the last step's, whose value follows the window."""
    return values[:, :-1], rewards[:, 1:], dones[:, 1:], importance[:, :-1], values[:, -1]


def with_the_last_step(advantages):
    return jnp.pad(advantages, ((0, 0), (0, 1)))


def adapter(values, rewards, dones, importance, gamma, lambda_, rho_clip, c_clip):
    values, rewards, dones, importance, last = one_step_earlier(values, rewards, dones, importance)
    estimate = rtj.vtrace(
        rewards, values, jnp.log(importance), dones, bootstrap_value=last, gamma=gamma, lambda_=lambda_,
        clip_rho=rho_clip, clip_c=c_clip, time_axis=1,
    )  # fmt: skip
    return with_the_last_step(estimate.targets - values)


def adapter_to_weighted_rewards(values, rewards, dones, importance, gamma, lambda_, rho_clip, c_clip):
    values, rewards, dones, importance, last = one_step_earlier(values, rewards, dones, importance)
    estimate = rtj.gae(
        rewards * jnp.minimum(importance, rho_clip), values, dones, bootstrap_value=last, gamma=gamma,
        lambda_=lambda_ * jnp.minimum(importance, c_clip), time_axis=1,
    )  # fmt: skip
    return with_the_last_step(estimate.advantages)


def definition(values, rewards, dones, importance, gamma, lambda_, rho_clip, c_clip, rewards_alone=False):
    v, r, rho = float64(values, rewards, importance)
    advantages, ahead = np.zeros_like(v), np.zeros(len(v))
    for t in reversed(range(v.shape[1] - 1)):
        goes_on = ~dones[:, t + 1]
        clipped = np.minimum(rho[:, t], rho_clip)
        if rewards_alone:
            delta = clipped * r[:, t + 1] + gamma * goes_on * v[:, t + 1] - v[:, t]
        else:
            delta = clipped * (r[:, t + 1] + gamma * goes_on * v[:, t + 1] - v[:, t])
        ahead = delta + gamma * lambda_ * np.minimum(rho[:, t], c_clip) * goes_on * ahead
        advantages[:, t] = ahead
    return advantages


def segments(r):
    """The rollout and one step after it, in PufferLib's order; it knows no truncations."""
    later = lambda x: np.concatenate([np.zeros_like(x[:1]), x]).T
    values = np.concatenate([r.values, r.bootstrap_value[None]]).T
    return values, later(r.rewards), later(r.done), np.exp(later(r.log_rhos)[:, ::-1])


@pytest.mark.parametrize("size", INPUTS, ids=str)
@pytest.mark.parametrize("rewards_alone", [False, True], ids=["the ratio weighs errors", "it weighs rewards"])
def test_advantages_are_pufferlibs(size, rewards_alone):
    r = rollout(*size)
    args = *segments(r), r.gamma, r.lambda_
    function = adapter_to_weighted_rewards if rewards_alone else adapter
    assert_same([function(*args, **CLIPS)], [definition(*args, **CLIPS, rewards_alone=rewards_alone)])


def test_rewards_and_dones_as_they_lie_belong_to_other_actions():
    r = EPISODES
    values, rewards, dones, importance = segments(r)
    naive = rtj.vtrace(
        rewards, values, jnp.log(importance), dones, bootstrap_value=values[:, -1], gamma=r.gamma, lambda_=r.lambda_,
        clip_rho=1.5, clip_c=1.1, time_axis=1,
    )  # fmt: skip
    assert_different(naive.targets - values, definition(*segments(r), r.gamma, r.lambda_, **CLIPS))


def test_dones_alone_moved_leave_the_rewards_behind():
    r = EPISODES
    values, rewards, dones, importance = segments(r)
    naive = adapter(values, np.roll(rewards, 1, axis=1), dones, importance, r.gamma, r.lambda_, **CLIPS)
    assert_different(naive, definition(*segments(r), r.gamma, r.lambda_, **CLIPS))


def test_vtraces_own_advantages_are_not_pufferlibs():
    """Those weigh r + gamma * target - V by the ratio; PufferLib takes the targets' distance from V."""
    r = EPISODES
    values, rewards, dones, importance, last = one_step_earlier(*segments(r))
    naive = rtj.vtrace(
        rewards, values, jnp.log(importance), dones, bootstrap_value=last, gamma=r.gamma, lambda_=r.lambda_,
        clip_rho=1.5, clip_c=1.1, time_axis=1,
    )  # fmt: skip
    assert_different(with_the_last_step(naive.advantages), definition(*segments(r), r.gamma, r.lambda_, **CLIPS))
