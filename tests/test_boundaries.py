"""Episode boundaries: known figures, and garbage that must stay on its side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, FLOATS, arguments, outputs

import rltriton_jax as rtj


def a(*x):
    return np.array(x, np.float32)


ONE = {"gamma": 1.0, "lambda_": 1.0}
OPEN = {"clip_rho": np.inf, "clip_c": np.inf}

FIGURES = {
    "gae": (rtj.gae(a(1, 2, 3), a(0, 0, 0), bootstrap_value=0.0, **ONE).advantages, [6, 5, 3]),
    "gae with values": (rtj.gae(a(1, 2, 3), a(1, 1, 1), bootstrap_value=0.0, **ONE).advantages, [5, 4, 2]),
    "gae bootstrapped": (rtj.gae(a(1, 2, 3), a(0, 0, 0), bootstrap_value=2.0, **ONE).advantages, [8, 7, 5]),
    "gae terminated": (rtj.gae(a(1, 2, 3), a(0, 0, 0), a(0, 1, 0), bootstrap_value=0.0, **ONE).advantages, [3, 2, 3]),
    "gae, two environments": (
        rtj.gae(a([1, 1], [2, 2]), a([0, 0], [0, 0]), bootstrap_value=a(0, 5), **ONE).advantages, [[3, 8], [2, 7]]),
    "gae truncated": (
        rtj.gae(a(0, 0, 0, 0), a(1, 1, 1, 1, 10), None, a(0, 0, 1, 0), final_values=a(9, 9, 1, 9), gamma=0.9,
                lambda_=1.0).advantages, [-0.271, -0.19, -0.1, 8]),
    "gae terminated before a bootstrap": (
        rtj.gae(a(0, 0, 0, 0), a(1, 1, 1, 1, 10), a(0, 0, 1, 0), gamma=0.9, lambda_=1.0).advantages, [-1, -1, -1, 8]),
    "gae across an automatic reset": (
        rtj.gae(a(1, 0, 0, 0.5, 0, 0), a(1, 2, 3, 1, 1.5, 2), None, a(0, 0, 1, 0, 0, 1),
                next_values=a(2, 3, 4, 1.5, 2, 1), gamma=0.9, lambda_=1.0).advantages,
        [2.916, 1.24, 0.6, 0.229, -0.69, -1.1]),
    "gae, both flags: terminated wins": (
        rtj.gae(a(1, 2), a(0, 0), a(0, 1), a(0, 1), next_values=a(0, 7), **ONE).advantages, [3, 2]),
    "gae, window bootstrap counted once": (
        rtj.gae(a(1, 2, 3), a(0.5, 0.25, -0.5), bootstrap_value=2.0, gamma=0.9, lambda_=0.8).advantages,
        [4.40852, 5.116, 5.3]),
    "gae per step": (
        rtj.gae(a(1, 2, 3, 4), a(1, -1, 0.5, 2), None, a(0, 1, 0, 0), next_values=a(-1, 6, 2, 5),
                gamma=a(0.9, 0.5, 0.8, 1.0), lambda_=a(0.7, 1.0, 0.3, 0.9)).advantages, [2.88, 6, 5.78, 7]),
    "vtrace": (rtj.vtrace(a(1, 1), a(0, 0), a(0, 0), gamma=1.0, bootstrap_value=0.0).targets, [2, 1]),
    "vtrace bootstrapped": (rtj.vtrace(a(1, 1), a(0, 0), a(0, 0), bootstrap_value=0.5, gamma=1.0).targets, [2.5, 1.5]),
    "vtrace terminated": (
        rtj.vtrace(a(1, 1), a(0, 0), a(0, 0), a(1, 0), bootstrap_value=0.0, gamma=1.0).targets, [1, 1]),
    "vtrace off-policy": (
        rtj.vtrace(a(1, 1), a(0, 0), np.log(a(0.5, 0.5)), bootstrap_value=0.0, gamma=1.0).targets, [0.75, 0.5]),
    "vtrace, last row bootstraps from V(s_T)": (
        rtj.vtrace(a(1, 1), a(2, 5), a(0, 0), bootstrap_value=-1.0, gamma=0.9).targets, [1.09, 0.1]),
    "vtrace, a target network's values": (
        rtj.vtrace(a(0, 0), a(0, 0), a(0, 0), next_values=a(1, 0), gamma=1.0).advantages, [0, 0]),
    "vtrace, a target network's values where the window and an episode end": (
        rtj.vtrace(a(1, 2, 3), a(1, 5, 2), a(0, 0, 0), None, a(0, 1, 0), next_values=a(9, 7, 4), gamma=1.0,
                   lambda_=0.5).advantages, [7, 4, 5]),
    "vtrace, lambda in the advantage": (
        rtj.vtrace(a(1, 2, 0), a(1, 3, -2), np.log(a(0.5, 2, 0.8)), bootstrap_value=4.0, gamma=0.9,
                   lambda_=0.5).advantages, [1.1736, -0.784, 4.48]),
    "vtrace, three clips of their own": (
        rtj.vtrace(a(1, 1), a(1, 1), np.log(a(4, 3)), bootstrap_value=2.0, gamma=0.9, clip_rho=2.0, clip_c=0.5,
                   clip_pg_rho=3.5).advantages, [14.49, 5.4]),
    "retrace": (rtj.retrace(a(1, 1), a(0, 0), a(0, 0), next_state_values=a(2, 3), gamma=1.0).targets, [7, 4]),
    "retrace advantages": (
        rtj.retrace(a(1, 1), a(0, 0), a(0, 0), next_state_values=a(2, 3), gamma=1.0).advantages, [5, 4]),
    "retrace terminated": (
        rtj.retrace(a(1, 1), a(0, 0), a(0, 0), a(1, 0), next_state_values=a(2, 3), gamma=1.0).targets, [1, 4]),
    "retrace truncated": (
        rtj.retrace(a(1, 1), a(0, 0), a(0, 0), None, a(0, 1), next_state_values=a(5, 5), gamma=1.0).targets, [12, 6]),
    "retrace takes the ratio of the step ahead": (
        rtj.retrace(a(1, 1), a(0, 0), np.log(a(0.25, 0.5)), next_state_values=a(2, 3), gamma=1.0).targets, [5, 4]),
    "lambda_returns, 0": (rtj.lambda_returns(a(1, 2), next_values=a(3, 4), gamma=1.0, lambda_=0.0), [4, 6]),
    "lambda_returns, 1/2": (rtj.lambda_returns(a(1, 2), next_values=a(3, 4), gamma=1.0, lambda_=0.5), [5.5, 6]),
    "lambda_returns terminated": (
        rtj.lambda_returns(a(1, 2), None, a(1, 0), next_values=a(3, 4), gamma=1.0, lambda_=0.5), [1, 6]),
    "discounted_returns": (rtj.discounted_returns(a(1, 2), gamma=0.9), [2.8, 2]),
    "discounted_returns done": (rtj.discounted_returns(a(1, 2), a(1, 0), gamma=0.9), [1, 2]),
    "reward to go": (
        rtj.discounted_returns(np.ones(10, np.float32), np.isin(np.arange(10), (3, 7))),
        [3.940399, 2.9701, 1.99, 1, 3.940399, 2.9701, 1.99, 1, 1.99, 1]),
    "discounted_returns, a bootstrap per environment": (
        rtj.discounted_returns(a([1, 2, 3], [4, 5, 6], [7, 8, 9]), bootstrap_value=a(10, 20, 30), gamma=0.5),
        [[6, 9, 12], [10, 14, 18], [12, 18, 24]]),
    "eligibility_traces": (rtj.eligibility_traces(a(1, 2, 3), **ONE), [1, 3, 6]),
    "eligibility_traces done": (
        rtj.eligibility_traces(a(1, 2, 3), a(0, 1, 0), gamma=1.0, lambda_=0.9), [1, 2.9, 3]),
    "eligibility_traces seeded": (rtj.eligibility_traces(a(1, 2), initial=2.0, **ONE), [3, 5]),
    "eligibility_traces decay of the step before": (
        rtj.eligibility_traces(a(1, 2, 4, 8), gamma=a(0.9, 0.5, 0.8, 1), lambda_=a(0.7, 1, 0.3, 0.9)),
        [1, 2.63, 5.315, 9.2756]),
    "prefix sum, ends": (rtj.episodic_prefix_sum(a(1, 2, 3, 4), a(0, 0, 1, 0)), [1, 3, 6, 4]),
    "prefix sum, starts": (
        rtj.episodic_prefix_sum(a(1, 2, 3, 4), a(0, 0, 1, 0), boundary="starts_at"), [1, 3, 3, 7]),
    "prefix sum, ends at first": (rtj.episodic_prefix_sum(a(5, 2, 3), a(1, 0, 0)), [5, 2, 5]),
    "prefix sum, starts at first": (
        rtj.episodic_prefix_sum(a(5, 2, 3), a(1, 0, 0), boundary="starts_at"), [5, 7, 10]),
    "prefix sum seeded, ends": (rtj.episodic_prefix_sum(a(1, 2), a(1, 0), initial=10.0), [11, 2]),
    "prefix sum seeded, starts": (
        rtj.episodic_prefix_sum(a(1, 2), a(1, 0), initial=10.0, boundary="starts_at"), [1, 3]),
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_figures_that_were_derived_by_hand(name):
    got, want = FIGURES[name]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("lambda_", "first", "second"),
    [
        (1.0, [-1.45118, -4.4557, 2.5396, 0.5249, -0.49], [3, 2, 1, 0, -4.9]),
        (0.7, [-0.676979, -5.248167, 2.4846, 0.6704, -0.49], [2.2899, 1.73, 1, 0, -4.9]),
        (0.4, [0.567319, -6.042125, 2.34312, 0.81596, -0.49], [1.7256, 1.46, 1, 0, -4.9]),
    ],
)
def test_gae_with_a_discount_per_step_has_the_figures_that_rlax_tests(lambda_, first, second):
    rewards = a([0, 0, 1, 0, -0.5], [0, 0, 0, 0, 1])
    values = a([1, 4, -3, -2, -1, -1], [-3, -2, -1, 0, 5, -1])
    discounts = a([0.99] * 5, [0.9, 0.9, 0.9, 0, 0.9])
    got = rtj.gae(rewards, values, gamma=discounts, lambda_=lambda_, time_axis=1).advantages
    np.testing.assert_allclose(got, [first, second], rtol=1e-4, atol=1e-5)


def test_returns_with_a_discount_per_step_have_the_figures_that_rlax_tests():
    rewards, discounts, following = a(1, 0, -1, 0, 1), a(0.5, 0.9, 1, 0.5, 0.8), a(3, 1, 5, -5, 3)
    mixed = rtj.lambda_returns(rewards, next_values=following, gamma=discounts, lambda_=0.75)
    np.testing.assert_allclose(mixed, [1.6460547, 0.7228125, 0.7375, 0.65, 3.4], rtol=1e-5)
    plain = rtj.discounted_returns(rewards, bootstrap_value=3.0, gamma=discounts)
    np.testing.assert_allclose(plain, [1.315, 0.63, 0.7, 1.7, 3.4], rtol=1e-5)


def test_per_environment_endings_in_one_batch():
    terminated = np.zeros((5, 4), bool)
    terminated[0, 1] = terminated[4, 2] = True
    terminated[:, 3] = True
    advantages = rtj.gae(
        np.ones((5, 4), np.float32), np.full((5, 4), 0.5, np.float32), terminated, bootstrap_value=2.0,
        gamma=a(1, 0.9, 0.9, 0.9), lambda_=a(1, 0.8, 0, 0.8),
    ).advantages  # fmt: skip
    want = [[6.5, 0.5, 0.95, 0.5], [5.5, 2.9849504, 0.95, 0.5], [4.5, 2.82632, 0.95, 0.5], [3.5, 2.606, 0.95, 0.5],
            [2.5, 2.3, 0.5, 0.5]]  # fmt: skip
    np.testing.assert_allclose(advantages, want, rtol=1e-5)


def test_thousands_of_terminations_stay_finite(rng):
    terminated = rng.random((4096, 2)) < 0.05
    assert jnp.isfinite(
        rtj.gae(np.ones((4096, 2), np.float32), np.ones((4096, 2), np.float32), terminated, bootstrap_value=0.0).targets
    ).all()


def poisoned(case, kwargs, cut, garbage):
    """Garbage wherever the formulas do not look: all later steps, and V' of the terminated step `cut`."""
    out = dict(kwargs)
    for name in FLOATS & out.keys():
        x = np.array(out[name])
        if name in ("bootstrap_value",):
            x[:] = garbage
        elif name != "initial":
            x[cut + 1 :] = garbage
            if name in ("next_values", "final_values", "next_state_values", "next_q_values", "next_target_probs"):
                x[cut] = garbage
        out[name] = x
    return out


BACKWARD = [c for c in CASES if "terminated" in c.optional]


@pytest.mark.parametrize("implementation", [None, "scan"])
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("case", BACKWARD, ids=str)
def test_garbage_after_a_terminated_step_reaches_no_output_and_no_gradient(case, garbage, implementation, rng):
    cut = 4
    kwargs = arguments(case, rng, 9, hyper="scalar")
    kwargs["terminated"][cut] = True
    bad = poisoned(case, kwargs, cut, garbage)
    floats = {k: jnp.asarray(v) for k, v in bad.items() if k in FLOATS or k in case.hyperparameters}
    fixed = {k: v for k, v in bad.items() if k not in floats}

    def loss(floats):
        results = outputs(case.function(**floats, **fixed, implementation=implementation))
        return sum(jnp.sum(x[: cut + 1]) for x in results), results

    gradients, results = jax.grad(loss, has_aux=True)(floats)
    for got, want in zip(results, outputs(case.function(**kwargs, implementation=implementation))):
        np.testing.assert_allclose(got[: cut + 1], want[: cut + 1], rtol=1e-6)
    for name, g in gradients.items():
        assert jnp.isfinite(g).all(), name

    tangents = {k: jnp.ones_like(v) for k, v in floats.items()}
    _, moved = jax.jvp(lambda f: loss(f)[1], (floats,), (tangents,))
    assert all(jnp.isfinite(x[: cut + 1]).all() for x in moved)


@pytest.mark.parametrize("case", [c for c in CASES if "done" in c.optional and not c.options], ids=str)
def test_garbage_of_an_earlier_episode_reaches_no_later_output(case, rng):
    kwargs = arguments(case, rng, 9)
    kwargs["done"][4] = True
    bad = {**kwargs, case.required[0]: np.array(kwargs[case.required[0]]), "initial": np.full(3, np.nan, np.float32)}
    bad[case.required[0]][:5] = np.nan
    (got,), (want,) = outputs(case.function(**bad)), outputs(case.function(**kwargs))
    np.testing.assert_allclose(got[5:], want[5:], rtol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(outputs(case.function(**{**bad, case.required[0]: x}))[0][5:]))
    assert jnp.isfinite(gradient(jnp.asarray(bad[case.required[0]]))).all()


def test_a_zero_weight_cuts_in_the_bare_recurrence(rng):
    w, u = rng.normal(size=(2, 8, 3)).astype("float32")
    w[4], u[5:] = 0, np.nan
    out = rtj.linear_recurrence(w, u, reverse=True)
    assert jnp.isfinite(out[:5]).all()
    gradients = jax.grad(lambda *wu: jnp.sum(rtj.linear_recurrence(*wu, reverse=True)[:5]), (0, 1))(w, u)
    assert all(jnp.isfinite(g).all() for g in gradients)


def test_a_large_log_ratio_leaves_the_gradient_finite():
    log_rhos = a(200, -200, 0.5, 90)
    for clip in (1.0, 2.0):
        loss = lambda lr, clip=clip: sum(
            map(jnp.sum, rtj.vtrace(a(1, 2, 3, 4), a(1, 0, 1, 2), lr, clip_rho=clip, bootstrap_value=0.0))
        )
        assert jnp.isfinite(jax.grad(loss)(log_rhos)).all()


def test_an_action_of_probability_zero_is_left_out_whatever_its_value():
    q = a([1, -np.inf], [2, np.nan])
    got = rtj.retrace(a(1, 1), a(0, 0), a(0, 0), next_q_values=q, next_target_probs=a([1, 0], [1, 0]), gamma=1.0)
    want = rtj.retrace(a(1, 1), a(0, 0), a(0, 0), next_state_values=a(1, 2), gamma=1.0)
    np.testing.assert_array_equal(got.targets, want.targets)


def test_an_action_left_out_takes_and_gives_no_gradient():
    q, probs = a([1, -np.inf], [2, np.nan]), a([1, 0], [1, 0])

    def loss(q, probs):
        return jnp.sum(rtj.retrace(a(1, 1), a(0, 0), a(0, 0), next_q_values=q, next_target_probs=probs).targets)

    for gradient in jax.grad(loss, (0, 1))(q, probs):
        assert jnp.isfinite(gradient).all() and (gradient[:, 0] != 0).all() and (gradient[:, 1] == 0).all()
