"""Dicts of agents, reward heads, and estimators as pytrees."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rltriton_jax as rtj


def test_a_dict_of_agents_is_estimated_leaf_by_leaf(rng):
    r = {k: rng.normal(size=(6, 2)).astype("float32") for k in ("alice", "bob")}
    v = {k: rng.normal(size=(6, 2)).astype("float32") for k in ("alice", "bob")}
    done = rng.random((6, 2)) < 0.3
    got = rtj.gae(r, v, done, gamma={"alice": 0.9, "bob": 0.5}, bootstrap_value=0.0)
    assert isinstance(got, rtj.Estimate) and set(got.advantages) == {"alice", "bob"}
    for name, gamma in (("alice", 0.9), ("bob", 0.5)):
        want = rtj.gae(r[name], v[name], done, gamma=gamma, bootstrap_value=0.0)
        np.testing.assert_array_equal(got.advantages[name], want.advantages)
        np.testing.assert_array_equal(got.targets[name], want.targets)


def test_a_named_tuple_of_reward_heads_keeps_its_structure(rng):
    class Heads(NamedTuple):
        extrinsic: np.ndarray
        intrinsic: list[np.ndarray]

    heads = [rng.normal(size=(6, n)).astype("float32") for n in (1, 3)]
    got = rtj.discounted_returns(Heads(heads[0], heads))
    assert isinstance(got, Heads) and [g.shape for g in jax.tree.leaves(got)] == [(6, 1), (6, 1), (6, 3)]


OBJECTS = [
    (rtj.GAE, rtj.gae, 2, {"gamma": 0.9, "lambda_": 0.8}),
    (rtj.VTrace, rtj.vtrace, 3, {"gamma": 0.9, "lambda_": 0.8, "clip_rho": 1.2, "clip_c": 1.1, "clip_pg_rho": 1.3}),
    (rtj.LambdaReturns, rtj.lambda_returns, 2, {"gamma": 0.9, "lambda_": 0.8}),
    (rtj.DiscountedReturns, rtj.discounted_returns, 1, {"gamma": 0.9}),
    (rtj.EligibilityTraces, rtj.eligibility_traces, 1, {"gamma": 0.9, "lambda_": 0.8}),
    (rtj.EpisodicPrefixSum, rtj.episodic_prefix_sum, 1, {}),
]


@pytest.mark.parametrize(("kind", "function", "count", "hyper"), OBJECTS, ids=lambda x: getattr(x, "__name__", ""))
def test_an_object_is_its_function_with_hyperparameters_as_leaves(kind, function, count, hyper, rng):
    arrays = rng.normal(size=(count, 5, 2)).astype("float32")
    ahead = {"bootstrap_value": 0.0} if count > 1 else {}
    estimator = kind(**hyper)
    assert jax.tree.leaves(estimator) == list(hyper.values())
    for a, b in zip(jax.tree.leaves(estimator(*arrays, **ahead)), jax.tree.leaves(function(*arrays, **ahead, **hyper))):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(AttributeError):
        estimator.gamma = 1.0


def test_retrace_as_an_object(rng):
    r, q, rho, v = rng.normal(size=(4, 5, 2)).astype("float32")
    got = rtj.Retrace(lambda_=0.7)(r, q, rho, next_state_values=v)
    np.testing.assert_array_equal(got.targets, rtj.retrace(r, q, rho, next_state_values=v, lambda_=0.7).targets)


def test_gamma_is_learned_by_gradient_descent():
    rewards = jnp.ones((10, 1))
    target = rtj.discounted_returns(rewards, gamma=0.9)
    loss = lambda e: jnp.mean((e(rewards) - target) ** 2)
    estimator = rtj.DiscountedReturns(gamma=jnp.float32(0.7))
    for _ in range(300):
        estimator = jax.tree.map(lambda p, g: p - 0.003 * g, estimator, jax.grad(loss)(estimator))
    assert abs(float(estimator.gamma) - 0.9) < 1e-3
