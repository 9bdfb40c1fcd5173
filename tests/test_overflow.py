"""Composites of weights overflow where states do not: a state of 0 is 0 after an infinite weight, never after NaN."""

import numpy as np
import pytest

import rltriton_jax as rtj

IMPLEMENTATIONS = [
    *("chunked_scan", "associative_scan", "scan", "interpret"),
    pytest.param("triton", marks=pytest.mark.gpu),
]


def one(steps, where, rows=2):
    x = np.zeros((steps, rows), np.float32)
    x[where] = 1
    return x


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_state_of_0_survives_weights_whose_product_overflows(reverse, rows, implementation):
    late = slice(950, None) if not reverse else slice(50)
    got = rtj.linear_recurrence(
        np.full((1000, rows), 1.5, np.float32), one(1000, late, rows), reverse=reverse, implementation=implementation
    )
    ages = np.clip(np.arange(1, 1001) - 950, 0, None)
    want = (1.5**ages - 1) / 0.5
    np.testing.assert_allclose(got, np.tile((want[::-1] if reverse else want)[:, None], rows), rtol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("sign", [1, -1])
def test_signs_and_cuts_among_weights_whose_product_overflows(sign, implementation, rng):
    """Between cuts there are inputs, or weights whose product overflows; a state that overflows itself may be NaN."""
    shape = 3000, 3
    cut = rng.random(shape) < 0.02
    segments = np.cumsum(cut, axis=0)
    grows = np.take_along_axis(rng.random(shape) < 0.7, segments, axis=0)
    weights = sign * np.exp(np.where(grows, rng.normal(1, 2, shape), rng.normal(0, 0.1, shape))).astype("float32")
    weights[cut] = 0
    inputs = np.where(grows | (rng.random(shape) > 0.01), 0, rng.normal(size=shape)).astype("float32")
    want = np.zeros(shape)
    state = np.zeros(shape[1], np.float32)
    for t in range(shape[0]):
        state = want[t] = weights[t] * state + inputs[t]
    log_weights = np.log(np.abs(np.where(cut, 1, weights)))
    assert np.bincount(segments[:, 0], log_weights[:, 0]).max() > np.log(np.finfo(np.float32).max)
    got = rtj.linear_recurrence(weights, inputs, implementation=implementation)
    np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_estimators_of_growing_weights_stay_finite(implementation, rng):
    returns = rtj.discounted_returns(one(1000, slice(40)), gamma=1.5, implementation=implementation)
    np.testing.assert_allclose(returns[0], (1.5**40 - 1) / 0.5, rtol=1e-5)
    log_rhos, nothing = rng.normal(2, 3, (256, 2)).astype("float32"), np.zeros((256, 2), np.float32)
    for function, successors in ((rtj.vtrace, {"bootstrap_value": 0.0}), (rtj.retrace, {"next_state_values": nothing})):
        got, want = (
            function(one(256, slice(8)), nothing, log_rhos, **successors, gamma=1.0, clip_c=np.inf, implementation=i)
            for i in (implementation, "scan")
        )
        assert np.isfinite(got.targets).all()
        np.testing.assert_allclose(got.targets, want.targets, rtol=1e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_0_wins_over_an_infinite_weight_and_never_over_nan(implementation):
    weights = np.array([1, np.inf, 2, np.inf, 0, -np.inf, np.nan, 1, 0, 1], np.float32)
    inputs = np.array([0, 0, 1, 0, 0, 0, 0, 1, 2, 0], np.float32)
    got = rtj.linear_recurrence(weights, inputs, implementation=implementation)
    np.testing.assert_array_equal(got, [0, 0, 1, np.inf, 0, 0, np.nan, np.nan, 2, 2])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_ratio_that_overflows_meets_a_state_of_0_alike(implementation):
    log_rhos = np.array([[100.0], [-1], [100], [0]], np.float32)
    rewards = np.array([[1.0], [0], [0], [0]], np.float32)
    got = rtj.vtrace(
        rewards,
        np.zeros((4, 1), np.float32),
        log_rhos,
        bootstrap_value=0.0,
        clip_c=np.inf,
        implementation=implementation,
    )
    np.testing.assert_array_equal(np.asarray(got.targets)[:, 0], [1, 0, 0, 0])
