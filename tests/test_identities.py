"""Identities between the estimators, which hold whatever the reference says."""

import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, ESTIMATORS, arguments, outputs

import rltriton_jax as rtj

CLOSE = {"rtol": 2e-5, "atol": 2e-5}


@pytest.fixture
def window(rng):
    """A window with terminations, truncations and a bootstrap that is not 0."""
    return arguments(CASES[0], rng, 40, (5,))


def test_gae_at_lambda_1_is_the_monte_carlo_return_minus_values(window):
    window["lambda_"] = np.float32(1)
    returns = rtj.discounted_returns(
        window["rewards"], window["terminated"], window["truncated"], bootstrap_value=window["bootstrap_value"],
        final_values=window["final_values"], gamma=window["gamma"],
    )  # fmt: skip
    np.testing.assert_allclose(rtj.gae(**window).advantages, returns - window["values"], **CLOSE)


def test_gae_at_lambda_0_is_the_one_step_error(window):
    window["lambda_"] = np.float32(0)
    following = np.concatenate([window["values"][1:], window["bootstrap_value"][None]])
    following = np.where(window["truncated"], window["final_values"], following)
    delta = window["rewards"] + window["gamma"] * following * ~window["terminated"] - window["values"]
    np.testing.assert_allclose(rtj.gae(**window).advantages, delta, **CLOSE)


def test_gamma_0_leaves_the_reward_minus_the_value(window):
    window["gamma"] = np.float32(0)
    np.testing.assert_array_equal(rtj.gae(**window).advantages, window["rewards"] - window["values"])


def test_vtrace_on_policy_is_gae(window):
    on_policy = rtj.vtrace(log_rhos=np.zeros_like(window["rewards"]), **window)
    for a, b in zip(on_policy, rtj.gae(**window)):
        np.testing.assert_allclose(a, b, **CLOSE)


def test_lambda_returns_minus_values_are_gae(window):
    np.testing.assert_allclose(rtj.lambda_returns(**window), rtj.gae(**window).targets, **CLOSE)


def test_lambda_returns_at_lambda_1_are_discounted_returns(window):
    window["lambda_"] = np.float32(1)
    without = {k: v for k, v in window.items() if k not in ("values", "lambda_")}
    np.testing.assert_allclose(rtj.lambda_returns(**window), rtj.discounted_returns(**without), **CLOSE)


def test_the_trace_scan_is_the_transpose_of_the_gae_scan(window, rng):
    g = rng.normal(size=window["rewards"].shape).astype("float32")
    done = window["terminated"] | window["truncated"]
    coefficients = {"gamma": window["gamma"], "lambda_": window["lambda_"]}
    delta = rtj.gae(**{**window, "lambda_": np.float32(0)}).advantages
    advantages = rtj.gae(**window).advantages
    traces = rtj.eligibility_traces(g, done, **coefficients)
    np.testing.assert_allclose(np.sum(g * advantages, 0), np.sum(delta * traces, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("split", [1, 2, 17, 39])
@pytest.mark.parametrize("case", [c for c in ESTIMATORS if "done" in c.optional], ids=lambda c: c.name)
def test_a_forward_scan_may_be_split_and_carried_over(case, split, rng):
    kwargs = arguments(case, rng, 40, (5,))
    first, name = case.required[0], "done"
    whole = outputs(case.function(**kwargs))[0]
    head = outputs(case.function(**{**kwargs, first: kwargs[first][:split], name: kwargs[name][:split]}))[0]
    state = np.where(kwargs[name][split - 1], 0, head[-1])
    tail = {**kwargs, first: kwargs[first][split:], name: kwargs[name][split:], "initial": state}
    np.testing.assert_allclose(np.concatenate([head, outputs(case.function(**tail))[0]]), whole, **CLOSE)


@pytest.mark.parametrize("split", [1, 2, 17, 39])
def test_gae_may_be_split_when_the_later_part_enters_as_a_return(split, window):
    """The head's last step sees the tail through lambda_: delta there uses V, the trace uses A[split]."""
    window["lambda_"] = np.float32(1)
    whole = rtj.gae(**window).targets
    per_step = ("rewards", "values", "terminated", "truncated", "final_values")
    tail = rtj.gae(**{**window, **{k: window[k][split:] for k in per_step}}).targets
    head = {**window, **{k: window[k][:split] for k in per_step}, "bootstrap_value": tail[0]}
    np.testing.assert_allclose(np.concatenate([rtj.gae(**head).targets, tail]), whole, **CLOSE)


@pytest.mark.parametrize("split", [1, 2, 17, 39])
@pytest.mark.parametrize("reverse", [False, True])
def test_the_bare_recurrence_may_be_split_and_carried_over(split, reverse, rng):
    w, u = rng.normal(size=(2, 40, 5)).astype("float32") * 0.9
    whole = rtj.linear_recurrence(w, u, reverse=reverse)
    if reverse:
        tail = rtj.linear_recurrence(w[split:], u[split:], reverse=True)
        head = rtj.linear_recurrence(w[:split], u[:split], reverse=True, initial=tail[0])
    else:
        head = rtj.linear_recurrence(w[:split], u[:split])
        tail = rtj.linear_recurrence(w[split:], u[split:], initial=head[-1])
    np.testing.assert_allclose(np.concatenate([head, tail]), whole, rtol=1e-4, atol=1e-4)


def test_an_extra_row_of_values_is_a_bootstrap_value(window):
    values = np.concatenate([window["values"], window["bootstrap_value"][None]])
    with_row = {k: v for k, v in window.items() if k != "bootstrap_value"} | {"values": values}
    for a, b in zip(rtj.gae(**with_row), rtj.gae(**window)):
        np.testing.assert_array_equal(a, b)


def test_retrace_takes_the_expectation_or_both_of_its_parts(rng):
    kwargs = arguments(next(c for c in CASES if "next_q_values" in c.optional), rng, 12)
    expected = np.sum(kwargs["next_q_values"] * kwargs["next_target_probs"], -1)
    parts = ("next_q_values", "next_target_probs")
    direct = {k: v for k, v in kwargs.items() if k not in parts} | {"next_state_values": expected}
    for a, b in zip(rtj.retrace(**kwargs), rtj.retrace(**direct)):
        np.testing.assert_allclose(a, b, **CLOSE)


def test_masked_truncation_zeroes_the_error_of_the_step_and_cuts(window):
    masked = {k: v for k, v in window.items() if k != "final_values"} | {"on_truncation": "mask"}
    cut = window["truncated"] & ~window["terminated"]
    advantages = np.asarray(rtj.gae(**masked).advantages)
    assert cut.any() and np.all(advantages[cut] == 0)
    assert jnp.isfinite(advantages).all()
