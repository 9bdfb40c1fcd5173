"""verl: advantages of responses [B, T] that are padded on the right, whitened over the tokens that are there.

Values of padding are whatever the critic gave. verl skips masked tokens wherever they are; the call below is for
padding alone, in which a response's last token ends it. Masked tokens inside a response it cannot express.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from peers.rollouts import INPUTS, assert_different, assert_same, float64

import rltriton_jax as rtj


def adapter(token_level_rewards, values, response_mask, gamma, lam):
    """Advantages before they are whitened, and returns; what stands at padding means nothing."""
    followed = jnp.pad(response_mask[:, 1:], ((0, 0), (0, 1))).astype(bool)
    last = response_mask.astype(bool) & ~followed
    return rtj.gae(token_level_rewards, values, last, bootstrap_value=0.0, gamma=gamma, lambda_=lam, time_axis=1)


@jax.jit
def whitened(x, mask):
    return (x - jnp.mean(x, where=mask)) / jnp.sqrt(jnp.var(x, where=mask, ddof=1) + 1e-8)


def definition(token_level_rewards, values, response_mask, gamma, lam):
    """From the right; a masked token hands on the next one's value and advantage as they are."""
    r, v = float64(token_level_rewards, values)
    advantages = np.zeros_like(r)
    for i in range(len(r)):
        next_value = ahead = 0.0
        for t in reversed(range(r.shape[1])):
            if response_mask[i, t]:
                ahead = r[i, t] + gamma * next_value - v[i, t] + gamma * lam * ahead
                next_value = v[i, t]
            advantages[i, t] = ahead
    return advantages, advantages + v


def responses(steps, rows, gamma, lam):
    rng = np.random.default_rng([steps, rows, int(100 * lam)])
    rows += 2
    lengths = rng.integers(1, steps + 1, size=rows)
    lengths[0] = steps
    mask = np.arange(steps) < lengths[:, None]
    rewards, values = rng.normal(size=(2, rows, steps)).astype("float32")
    return np.where(mask, rewards, 0), np.where(mask, values, 100 * values), mask, float(gamma), float(lam)


@pytest.mark.parametrize("size", INPUTS, ids=str)
def test_advantages_and_returns_are_verls_where_a_token_is(size):
    rewards, values, mask, gamma, lam = responses(*size)
    want, want_returns = definition(rewards, values, mask, gamma, lam)
    advantages, returns = adapter(rewards, values, jnp.asarray(mask, "int32"), gamma, lam)
    there = want[mask]
    normal = (there - there.mean()) / np.sqrt(there.var(ddof=1) + 1e-8)
    got = whitened(advantages, mask)
    assert_same([np.asarray(x)[mask] for x in (advantages, returns, got)], [there, want_returns[mask], normal])


EXAMPLE = responses(31, 31, 1, 0.95)


def test_a_flag_at_the_first_padding_is_one_token_late():
    """The last token would bootstrap from what the critic says of padding."""
    rewards, values, mask, gamma, lam = EXAMPLE
    naive = rtj.gae(rewards, values, ~mask, bootstrap_value=0.0, gamma=gamma, lambda_=lam, time_axis=1)
    assert_different(np.asarray(naive.advantages)[mask], definition(*EXAMPLE)[0][mask])


def test_without_the_mask_padding_counts():
    rewards, values, mask, gamma, lam = EXAMPLE
    naive = rtj.gae(rewards, values, bootstrap_value=0.0, gamma=gamma, lambda_=lam, time_axis=1)
    assert_different(np.asarray(naive.advantages)[mask], definition(*EXAMPLE)[0][mask])


def test_whitening_over_padding_too_gives_other_advantages():
    rewards, values, mask, gamma, lam = EXAMPLE
    want = definition(*EXAMPLE)[0][mask]
    naive = whitened(adapter(rewards, values, jnp.asarray(mask), gamma, lam).advantages, np.ones_like(mask))
    assert_different(np.asarray(naive)[mask], (want - want.mean()) / np.sqrt(want.var(ddof=1) + 1e-8))
