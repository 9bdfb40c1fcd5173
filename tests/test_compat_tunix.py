"""The drop-in for tunix's advantages, which skip what a mask leaves out, against its definition and its own figures."""

import inspect
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import primitives

import rltriton_jax as rtj
from rltriton_jax.compat.tunix import compute_gae_advantages

SHAPE = ROWS, STEPS = 5, 23
MASKS = {
    "all": lambda rng: np.ones(SHAPE, bool),
    "padded on the right": lambda rng: np.arange(STEPS) < rng.integers(1, STEPS, size=(ROWS, 1)),
    "padded on the left": lambda rng: np.arange(STEPS) >= rng.integers(1, STEPS, size=(ROWS, 1)),
    "gaps": lambda rng: rng.random(SHAPE) < 0.6,
    "empty rows": lambda rng: (rng.random(SHAPE) < 0.6) & (np.arange(ROWS) % 2 == 1)[:, None],
    "two steps": lambda rng: np.arange(ROWS * STEPS).reshape(SHAPE) % 60 == 30,
    "none": lambda rng: np.zeros(SHAPE, bool),
}


def definition(rewards, values, mask, gamma, gae_lambda, np=np):
    """From the right; a step outside the mask hands on the advantage and the value that come to it."""
    ahead = next_value = np.zeros_like(values[:, 0])
    columns = []
    for t in reversed(range(mask.shape[1])):
        own = rewards[:, t] + gamma * next_value - values[:, t] + gamma * gae_lambda * ahead
        ahead = np.where(mask[:, t], own, ahead)
        next_value = np.where(mask[:, t], values[:, t], next_value)
        columns.append(ahead)
    raw = np.stack(columns[::-1], 1)
    there = raw[mask]
    if not there.size:
        return raw, raw + values
    variance = np.sum(np.square(there - np.mean(there))) / (there.size - 1)
    return (raw - np.mean(there)) / np.sqrt(variance + 1e-8), raw + values


def rollouts(rng, mask="gaps"):
    return *rng.normal(size=(2, *SHAPE)).astype("float32"), MASKS[mask](rng)


def exact(*arrays):
    return [np.asarray(x, "float64") for x in arrays]


def assert_same(got, want):
    for g, w in zip(got, want, strict=True):
        g = np.asarray(g, "float64")
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(w).max())))


def test_the_signature_is_tunixs():
    parameters = inspect.signature(compute_gae_advantages).parameters.values()
    assert [p.name for p in parameters] == ["rewards", "values", "completion_mask", "gamma", "gae_lambda"]
    assert all(p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD for p in parameters)


# The mask of tunix's own test, its random draws rounded to two places, and what tunix 0.1.7 makes of them.
REWARDS = np.array(
    [[0.95, 0.98, 0.33, 0.47, 0.57, 0.17, 0.31, 0.69, 0.75, 0.17],
     [0.99, 0.03, 0.64, 0.56, 0.90, 0.93, 0.83, 0.73, 0.51, 0.03],
     [0.03, 0.96, 0.52, 0.79, 0.55, 0.61, 0.89, 0.75, 0.21, 0.23]], "float32"
)  # fmt: skip
VALUES = np.array(
    [[0.44, 0.53, 0.45, 0.44, 0.90, 0.56, 0.98, 0.84, 0.39, 0.64],
     [0.24, 0.40, 0.81, 0.78, 0.81, 0.71, 0.83, 0.04, 0.81, 0.05],
     [0.48, 0.07, 0.16, 0.74, 0.05, 0.70, 0.78, 0.13, 0.34, 0.13]], "float32"
)  # fmt: skip
MASK = np.array([[1, 1, 1, 1, 1, 0, 0, 0, 0, 0], [1] * 10, [1, 1, 0, 0, 1, 1, 0, 1, 0, 0]])
ADVANTAGES = [
    [1.12768, 0.38333, -0.49445, -0.55551, -1.95016, -1.4718, -1.4718, -1.4718, -1.4718, -1.4718],
    [1.33592, 0.43086, 0.72226, 0.78674, 0.942, 0.68225, -0.27768, 0.34079, -1.85971, -1.50079],
    [-0.37741, 1.15579, 0.54761, 0.54761, 0.54761, -0.86645, -0.57305, -0.57305, -1.4718, -1.4718],
]
RETURNS = [
    [2.23325, 1.80976, 1.12422, 1.0721, 0.57, 0.56, 0.98, 0.84, 0.39, 0.64],
    [2.17691, 1.71255, 2.32357, 2.33805, 2.47516, 2.19597, 1.65376, 1.29041, 0.5424, 0.03],
    [1.23497, 1.88265, 1.55309, 2.13309, 1.44309, 1.1176, 1.4, 0.75, 0.34, 0.13],
]


def test_tunixs_own_figures():
    advantages, returns = compute_gae_advantages(REWARDS, VALUES, MASK, gamma=0.9, gae_lambda=0.7)
    np.testing.assert_allclose(advantages, ADVANTAGES, rtol=0, atol=2e-5)
    np.testing.assert_allclose(returns, RETURNS, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("rows", "mean", "variance"), [(1, 2.666667, 4.333333), (2, 6.0, 10.285715)])
def test_tunixs_own_figures_of_a_mean_and_a_variance(rows, mean, variance):
    """With gamma = 0 and no values a step's advantage is its reward."""
    x = np.arange(1, 11, dtype="float32").reshape(2, 5)[:rows]
    mask = np.array([[1, 1, 0, 0, 1], [1] * 5], bool)[:rows]
    advantages, _ = compute_gae_advantages(x, np.zeros_like(x), mask, 0.0, 1.0)
    np.testing.assert_allclose(advantages[mask], (x[mask] - mean) / np.sqrt(variance), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 0.95), (0.9, 0.7), (0.99, 0.0), (0, 1), (1, 1), (-0.5, 0.9)])
@pytest.mark.parametrize("mask", MASKS)
def test_results_are_the_definitions_at_every_position(mask, gamma, gae_lambda, rng):
    rewards, values, there = rollouts(rng, mask)
    want = definition(*exact(rewards, values), there, gamma, gae_lambda)
    assert_same(compute_gae_advantages(rewards, values, there, gamma, gae_lambda), want)


@pytest.mark.parametrize("name", ["associative_scan", "scan", pytest.param("interpret", marks=pytest.mark.interpreter)])
def test_every_implementation_gives_the_definition(name, rng):
    rewards, values, there = rollouts(rng)
    with rtj.default_implementation(name):
        got = compute_gae_advantages(rewards, values, there, 0.9, 0.7)
    assert_same(got, definition(*exact(rewards, values), there, 0.9, 0.7))


def test_long_rows_of_values_far_from_0(rng):
    rewards, values = rng.normal(size=(2, 3, 3000)).astype("float32")
    mask = rng.random((3, 3000)) < 0.8
    got = compute_gae_advantages(rewards, values + 100, mask, 0.99, 0.95)
    assert_same(got, definition(*exact(rewards, values + np.float32(100)), mask, 0.99, 0.95))


def test_small_advantages_are_held_against_the_1e_8(rng):
    rewards, values, mask = rollouts(rng)
    small = np.float32(1e-4) * rewards, np.float32(1e-4) * values
    got = compute_gae_advantages(*small, mask, 0.9, 0.7)
    assert_same(got, definition(*exact(*small), mask, 0.9, 0.7))
    assert np.std(got[0][mask]) < 0.9


def test_hyperparameters_by_row(rng):
    rewards, values, mask = rollouts(rng)
    gamma, gae_lambda = rng.random((2, ROWS)).astype("float32")
    want = definition(*exact(rewards, values), mask, *exact(gamma, gae_lambda))
    assert_same(compute_gae_advantages(rewards, values, mask, gamma, gae_lambda), want)


def test_one_step_in_the_mask_has_no_variance():
    """0/0, as in tunix; the returns are there all the same."""
    mask = np.zeros((2, 3), bool)
    mask[1, 1] = True
    advantages, returns = compute_gae_advantages(np.full((2, 3), 4.0, "f"), np.ones((2, 3), "f"), mask, 0.9, 0.7)
    assert np.all(np.isnan(advantages))
    np.testing.assert_array_equal(returns, [[1, 1, 1], [4, 4, 1]])


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1)])
def test_the_smallest_shapes(shape):
    zeros = np.zeros(shape, "float32")
    for x in compute_gae_advantages(zeros, zeros, zeros, 0.9, 0.7):
        np.testing.assert_array_equal(x, zeros)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(
    ("rewards", "values", "mask"),
    [("float32", "float32", "float32"), ("bfloat16", "bfloat16", "bool"), ("float16", "bfloat16", "int8"),
     ("int32", "float32", "int32"), ("int32", "int32", "uint8")],
)  # fmt: skip
def test_results_have_jaxs_default_float_dtype(rewards, values, mask, x64, rng):
    """In which tunix carries, so that 16 bits widen."""
    r, v, there = rollouts(rng)
    with jax.enable_x64(x64):
        r, v, m = jnp.asarray(3 * r).astype(rewards), jnp.asarray(3 * v).astype(values), jnp.asarray(there).astype(mask)
        got = compute_gae_advantages(r, v, m, 0.9, 0.7)
    assert [(x.dtype, x.weak_type) for x in got] == [("float64" if x64 else "float32", False)] * 2
    want = definition(*exact(r, v), there, 0.9, 0.7)
    assert_same(got, want)
    if x64:
        np.testing.assert_allclose(got[1], want[1], rtol=1e-12, atol=1e-12)


def test_what_is_behind_the_mask_is_not_read(rng):
    """Tunix multiplies it by 0, so that NaN there is NaN in all advantages."""
    rewards, values, mask = rollouts(rng)
    weights = np.where(mask, rng.normal(size=SHAPE), 0).astype("float32")

    def loss(rewards, values, gamma, gae_lambda):
        advantages, returns = compute_gae_advantages(rewards, values, mask, gamma, gae_lambda)
        return jnp.vdot(weights, advantages) + jnp.sum(returns, where=mask), (advantages, returns)

    of = jax.value_and_grad(loss, argnums=range(4), has_aux=True)
    (_, (want, want_returns)), want_gradients = of(rewards, values, np.float32(0.9), np.float32(0.7))
    for garbage in (np.nan, np.inf):
        behind = (np.where(mask, x, np.float32(garbage)) for x in (rewards, values))
        (_, (advantages, returns)), gradients = of(*behind, np.float32(0.9), np.float32(0.7))
        np.testing.assert_array_equal(advantages, want)
        np.testing.assert_array_equal(returns[mask], want_returns[mask])
        assert_same(gradients, want_gradients)


@pytest.mark.parametrize("mask", ["all", "gaps", "empty rows", "padded on the right", "none"])
def test_gradients_are_the_definitions(mask, rng):
    rewards, values, there = rollouts(rng, mask)
    weights = rng.normal(size=(2, *SHAPE)).astype("float32")

    def loss(estimate, inputs):
        rewards, values, gamma, gae_lambda = inputs
        results = estimate(rewards, values, there, gamma, gae_lambda)
        return sum(jnp.vdot(w, x) for w, x in zip(weights, results, strict=True))

    inputs = (rewards, values, np.float32(0.9), np.float32(0.7))
    both = (compute_gae_advantages, partial(definition, np=jnp))
    got, want = (jax.grad(partial(loss, estimate))(inputs) for estimate in both)
    assert_same(got, want)


def test_jit_and_vmap(rng):
    rewards, values = rng.normal(size=(2, 3, *SHAPE)).astype("float32")
    mask = rng.random((3, *SHAPE)) < 0.6
    gammas = np.array([0.5, 0.9, 1.0], "float32")
    got = jax.jit(jax.vmap(partial(compute_gae_advantages, gae_lambda=0.7)))(rewards, values, mask, gammas)
    for i in range(3):
        want = definition(*exact(rewards[i], values[i]), mask[i], float(gammas[i]), 0.7)
        assert_same([x[i] for x in got], want)


def test_it_is_two_scans_and_moves_nothing(rng):
    jaxpr = jax.make_jaxpr(partial(compute_gae_advantages, gamma=0.9, gae_lambda=0.7))(*rollouts(rng)).jaxpr
    names = [equation.primitive.name for equation in primitives(jaxpr)]
    assert names.count("affine_scan") == 2 and "transpose" not in names and "scan" not in names


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [({"rewards": REWARDS[0]}, ValueError, r"rewards has shape \(10,\); pass an array \[B, T\]"),
     ({"values": VALUES[:, 1:]}, ValueError, r"values has shape \(3, 9\), but rewards has shape \(3, 10\)"),
     ({"completion_mask": MASK[:1]}, ValueError, r"completion_mask has shape \(1, 10\), .* one flag per step"),
     ({"completion_mask": MASK / 2}, ValueError, r"completion_mask has shape \(3, 10\) and holds 0.5"),
     ({"completion_mask": None}, ValueError, "completion_mask is None; completion_mask is required"),
     ({"gamma": np.ones(4)}, ValueError, r"gamma has shape \(4,\), but rewards has shape \(3, 10\)"),
     ({"rewards": REWARDS.astype(object)}, TypeError, "rewards has dtype object"),
     ({"lam": 0.7}, TypeError, r"has no argument lam.* takes \(rewards, values, completion_mask, gamma, gae_lambda\)")],
)  # fmt: skip
def test_wrong_calls_are_refused_by_name(change, error, message):
    call = {"rewards": REWARDS, "values": VALUES, "completion_mask": MASK, "gamma": 0.9, "gae_lambda": 0.7}
    with pytest.raises(error, match=message):
        compute_gae_advantages(**{**call, **change})
