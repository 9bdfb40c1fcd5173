"""RLlib: V-trace of arrays [T, B] with discounts that are 0 where terminated, and of episodes made longer by a step.

The step that is put after each episode holds V of its final observation and no reward. It carries the flag that ends
a truncated episode, one step later than the step that was truncated, and a mask leaves it out of the loss. What is
wanted on the other steps is V-trace of each episode alone, with that V (0 where terminated) as its bootstrap.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from peers.rollouts import EPISODES, INPUTS, assert_different, assert_same, float64, rollout

import rltriton_jax as rtj

CLIPS = {"clip_rho": 1.5, "clip_pg_rho": 1.2}


def adapter(rewards, values, log_rhos, discounts, bootstrap_values):
    return rtj.vtrace(
        rewards, values, log_rhos, discounts == 0, bootstrap_value=bootstrap_values, gamma=discounts, **CLIPS
    )


def adapter_to_longer_episodes(rewards, values, log_rhos, terminateds, loss_mask, gamma):
    """A step ends its episode if a step that is not there comes next, whose value is the next one's."""
    last = jnp.append(~loss_mask[1:], True)
    return rtj.vtrace(
        rewards, values, log_rhos, terminateds & loss_mask, last, next_values=jnp.append(values[1:], values[-1:]),
        gamma=gamma, **CLIPS,
    )  # fmt: skip


def definition(rewards, values, log_rhos, discounts, bootstrap_values):
    r, v, rho, discounts, bootstrap = float64(rewards, values, np.exp(log_rhos), discounts, bootstrap_values)
    targets, advantages = np.zeros_like(r), np.zeros_like(r)
    error, next_value, next_target = np.zeros_like(bootstrap), bootstrap, bootstrap
    for t in reversed(range(len(r))):
        delta = np.minimum(rho[t], CLIPS["clip_rho"]) * (r[t] + discounts[t] * next_value - v[t])
        error = delta + discounts[t] * np.minimum(rho[t], 1) * error
        targets[t] = v[t] + error
        advantages[t] = np.minimum(rho[t], CLIPS["clip_pg_rho"]) * (r[t] + discounts[t] * next_target - v[t])
        next_value, next_target = v[t], targets[t]
    return advantages, targets


@pytest.mark.parametrize("size", INPUTS, ids=str)
def test_advantages_and_targets_are_rllibs(size):
    """RLlib knows no truncation here, so these episodes have none."""
    r = rollout(*size)
    args = r.rewards, r.values, r.log_rhos, np.where(r.terminated, 0, r.gamma).astype("float32"), r.bootstrap_value
    assert_same(adapter(*args), definition(*args))


def longer_episodes(r):
    """The rollout's environments one after another, as RLlib lays its episodes, and the mask of the real steps."""
    ends = r.done.copy()
    ends[-1] = True
    columns = []
    for r_, v, next_v, log_rho, terminated, end in zip(
        r.rewards.T.flat, r.values.T.flat, r.next_values.T.flat, r.log_rhos.T.flat, r.terminated.T.flat, ends.T.flat
    ):
        columns.append((r_, v, log_rho, terminated, True))
        if end:
            columns.append((0.0, next_v, log_rho, True, False))
    rewards, values, log_rhos, terminateds, mask = (np.array(x) for x in zip(*columns))
    return *(x.astype("float32") for x in (rewards, values, log_rhos)), terminateds, mask


def each_episode_alone(rewards, values, log_rhos, terminateds, mask, gamma):
    results, start = [], 0
    for extra in np.flatnonzero(~mask):
        steps = slice(start, extra)
        discounts = np.where(terminateds[steps], 0, gamma)
        results.append(definition(rewards[steps], values[steps], log_rhos[steps], discounts, values[extra]))
        start = extra + 1
    return [np.concatenate(x) for x in zip(*results)]


@pytest.mark.parametrize("size", INPUTS, ids=str)
def test_longer_episodes_give_what_each_gives_alone(size):
    r = rollout(*size)
    stream = longer_episodes(r)
    mask = stream[-1]
    got = adapter_to_longer_episodes(*stream, r.gamma)
    assert_same([np.asarray(x)[mask] for x in got], each_episode_alone(*stream, r.gamma))


def test_the_flags_as_they_lie_take_a_truncated_episodes_bootstrap_away_again():
    """With the extra step as a step of the episode its own error, 0 - V, comes back through the trace."""
    r = EPISODES
    rewards, values, log_rhos, terminateds, mask = longer_episodes(r)
    discounts = np.where(terminateds, 0, r.gamma).astype("float32")
    naive = adapter(rewards, values, log_rhos, discounts, np.float32(0))
    _, targets = each_episode_alone(rewards, values, log_rhos, terminateds, mask, r.gamma)
    assert_different(np.asarray(naive.targets)[mask], targets)


def test_without_the_ends_one_episode_reaches_into_the_next():
    r = EPISODES
    rewards, values, log_rhos, terminateds, mask = longer_episodes(r)
    naive = adapter_to_longer_episodes(rewards, values, log_rhos, terminateds, np.ones_like(mask), r.gamma)
    advantages, _ = each_episode_alone(rewards, values, log_rhos, terminateds, mask, r.gamma)
    assert_different(np.asarray(naive.advantages)[mask], advantages)
