"""Stoix: generalised advantages of batches [B, T] or time-major, from v_tm1, v_t, discount_t and truncation_t.

discount_t is gamma, and 0 where the step terminated; v_t is V of the true successor, the final observation's at a
truncated step; truncation_t cuts the trace and leaves that value in.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from peers.rollouts import EPISODES, INPUTS, assert_different, assert_same, float64, rollout

import rltriton_jax as rtj


def adapter(r_t, discount_t, lambda_, v_tm1, v_t, truncation_t, time_major=False):
    return rtj.gae(
        r_t, v_tm1, discount_t == 0, truncation_t, next_values=v_t, gamma=discount_t, lambda_=lambda_,
        time_axis=0 if time_major else 1,
    )  # fmt: skip


def definition(r_t, discount_t, lambda_, v_tm1, v_t, truncation_t):
    """A[t] = r + discount (v_t + lambda A[t+1], the latter not after a truncation) - v_tm1; time-major."""
    r_t, discount_t, v_tm1, v_t = float64(r_t, discount_t, v_tm1, v_t)
    lambda_ = np.broadcast_to(lambda_, r_t.shape)
    advantages, ahead = np.zeros_like(r_t), 0.0
    for t in reversed(range(len(r_t))):
        ahead = r_t[t] + discount_t[t] * (v_t[t] + lambda_[t] * np.where(truncation_t[t], 0, ahead)) - v_tm1[t]
        advantages[t] = ahead
    return advantages, advantages + v_tm1


def arguments(r):
    discounts = np.where(r.terminated, 0, r.gamma).astype("float32")
    return r.rewards, discounts, r.lambda_, r.values, r.next_values, r.truncated


@pytest.mark.parametrize("time_major", [True, False], ids=["time-major", "batch-major"])
@pytest.mark.parametrize("size", INPUTS, ids=str)
def test_advantages_and_targets_are_stoixs(size, time_major):
    args = arguments(rollout(*size))
    want = definition(*args)
    if time_major:
        assert_same(adapter(*args, time_major=True), want)
    else:
        assert_same(adapter(*(x.T if np.ndim(x) else x for x in args)), [w.T for w in want])


def test_a_lambda_of_every_step_lies_like_the_rewards():
    r = EPISODES
    lambda_ = np.random.default_rng(0).uniform(0.5, 1, size=r.rewards.shape).astype("float32")
    r_t, discount_t, _, *rest = arguments(r)
    want = definition(r_t, discount_t, lambda_, *rest)
    assert_same([x.T for x in adapter(r_t.T, discount_t.T, lambda_.T, *(x.T for x in rest))], want)
    assert_different(adapter(r_t.T, discount_t.T, lambda_, *(x.T for x in rest)).advantages.T, want[0])


def test_standardised_advantages_leave_the_targets_alone():
    r = EPISODES
    advantages, targets = adapter(*arguments(r), time_major=True)
    want, want_targets = definition(*arguments(r))
    standardised = jax.nn.standardize(advantages, axis=(0, 1))
    assert_same([standardised, targets], [(want - want.mean()) / np.sqrt(want.var() + 1e-5), want_targets])
    assert_different(standardised + r.values, want_targets)


def test_the_successor_of_a_truncated_step_is_not_the_next_row():
    """v_tm1 moved by one step holds the next episode's first value there."""
    r = EPISODES
    r_t, discount_t, lambda_, v_tm1, v_t, truncation_t = arguments(r)
    moved = jnp.concatenate([v_tm1[1:], v_t[-1:]])
    naive = adapter(r_t, discount_t, lambda_, v_tm1, moved, truncation_t, time_major=True)
    assert_different(naive.advantages, definition(*arguments(r))[0])


def test_a_truncation_is_no_termination():
    r = EPISODES
    naive = rtj.gae(r.rewards, r.values, r.done, next_values=r.next_values, gamma=r.gamma, lambda_=r.lambda_)
    assert_different(naive.advantages, definition(*arguments(r))[0])


def test_batch_major_arrays_need_their_time_axis():
    """As many steps as environments: nothing but the numbers tells."""
    args = arguments(EPISODES)
    naive = adapter(*(x.T if np.ndim(x) else x for x in args), time_major=True)
    assert_different(naive.advantages.T, definition(*args)[0])
