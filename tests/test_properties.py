"""Hypothesis over shapes, flags, layouts and values."""

import jax
import numpy as np
import pytest
from cases import CASES, FLAGS, LAYOUTS, MASKED, arguments, check, laid_out, outputs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rltriton_jax as rtj

RELAXED = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@RELAXED
@given(
    case=st.sampled_from([*CASES, *MASKED]), steps=st.integers(1, 9), rows=st.integers(1, 4),
    layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_any_window_matches_the_reference(case, steps, rows, layout, seed):
    check(case, arguments(case, np.random.default_rng(seed), steps, (rows, 2)), layout, "float32", "scan")


@pytest.mark.nightly
@pytest.mark.parametrize("steps", [1, 2, 9, 33])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_ten_thousand_windows_match_the_reference(case, steps):
    """Sixteen of them a call, of all kinds of flags, in all layouts, on all implementations in turn."""
    for seed in range(160):
        rng = np.random.default_rng(seed)
        kwargs = arguments(case, rng, steps, (4, 4), flags_kind=FLAGS[seed % len(FLAGS)])
        check(case, kwargs, LAYOUTS[seed % 3], "float32", ("chunked_scan", "associative_scan", "scan")[seed // 3 % 3])


@RELAXED
@given(steps=st.integers(2, 12), split=st.integers(1, 11), seed=st.integers(0, 2**32 - 1))
def test_a_recurrence_may_be_cut_anywhere_and_carried_over(steps, split, seed):
    split = min(split, steps - 1)
    w, u = np.random.default_rng(seed).normal(size=(2, steps, 2)).astype("float32")
    head = rtj.linear_recurrence(w[:split], u[:split], implementation="scan")
    tail = rtj.linear_recurrence(w[split:], u[split:], initial=head[-1], implementation="scan")
    whole = rtj.linear_recurrence(w, u, implementation="scan")
    np.testing.assert_array_equal(np.concatenate([head, tail]), whole)


@RELAXED
@given(case=st.sampled_from([*CASES, *MASKED]), layout=st.sampled_from(LAYOUTS), seed=st.integers(0, 2**32 - 1))
def test_layout_changes_nothing(case, layout, seed):
    kwargs = arguments(case, np.random.default_rng(seed), 6, (2, 3))
    placed, axis = laid_out(kwargs, layout)
    for a, b in zip(
        outputs(case.function(**placed, time_axis=axis, implementation="scan")),
        outputs(case.function(**kwargs, implementation="scan")),
    ):
        np.testing.assert_allclose(np.moveaxis(np.asarray(a), axis, 0), b, rtol=1e-6, atol=1e-6)


@RELAXED
@given(seed=st.integers(0, 2**32 - 1), flags=st.lists(st.booleans(), min_size=8, max_size=8))
def test_reversing_time_turns_the_forward_scan_into_the_backward_one(seed, flags):
    u = np.random.default_rng(seed).normal(size=(8, 2)).astype("float32")
    w = np.where(np.array(flags)[:, None], 0, 0.9).astype("float32")
    forward = rtj.linear_recurrence(w, u, implementation="scan")
    backward = rtj.linear_recurrence(w[::-1], u[::-1], reverse=True, implementation="scan")
    np.testing.assert_array_equal(forward, backward[::-1])
    assert jax.tree.structure(forward) == jax.tree.structure(backward)
