"""The drop-ins against their originals: signatures, results, gradients, and rlax's own tests."""

import contextlib
import inspect
import os
import re
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rltriton_jax as rtj
from rltriton_jax import compat

STEPS = 23
RLAX = [
    "discounted_returns",
    "general_off_policy_returns_from_action_values",
    "general_off_policy_returns_from_q_and_v",
    "importance_corrected_td_errors",
    "lambda_returns",
    "leaky_vtrace",
    "leaky_vtrace_td_error_and_advantage",
    "n_step_bootstrapped_returns",
    "retrace",
    "truncated_generalized_advantage_estimation",
    "vtrace",
    "vtrace_td_error_and_advantage",
]


@pytest.fixture(scope="module")
def rlax():
    """Everything of rlax by one name; it does not export all of its functions, nor bear strict promotion."""
    pytest.importorskip("rlax")
    from rlax._src import multistep, value_learning, vtrace

    with jax.numpy_dtype_promotion("standard"):
        yield SimpleNamespace(**vars(multistep) | vars(vtrace) | {"retrace": value_learning.retrace})


def sequence(name, rng):
    """A random argument by its name in rlax."""
    length = STEPS
    if name == "values":
        length += 1
    if name.startswith("a_t"):
        return rng.integers(0, 5, size=length)
    if name == "sample_mask":
        return rng.random(length) < 0.7
    if name == "discount_t":
        return (0.95 * (rng.random(length) > 0.15)).astype("float32")
    if name.startswith("rho"):
        return np.exp(0.5 * rng.normal(size=length)).astype("float32")
    if name in ("mu_t", "c_t"):
        return rng.uniform(0.1, 1, size=length).astype("float32")
    if name == "pi_t":
        return rng.dirichlet(np.ones(5), size=length).astype("float32")
    return rng.normal(size=length).astype("float32")


def arguments(name, rng, *, per_step):
    """Random arguments of an rlax function; lambdas per step, or not."""
    of_actions = name in ("retrace", "general_off_policy_returns_from_action_values")
    out = {}
    for key in inspect.signature(getattr(compat.rlax, name)).parameters:
        if key == "stop_target_gradients" or key == "eps":
            continue
        if key.startswith("lambda"):
            out[key] = rng.uniform(0.3, 1, size=STEPS).astype("float32") if per_step else 0.9
        elif key.startswith("alpha"):
            out[key] = 0.7
        elif key.startswith("clip"):
            out[key] = 1.3
        elif key == "n":
            out[key] = 4
        elif key == "sample_mask":
            out[key] = sequence(key, rng) if per_step else None
        elif key.startswith("q_t") and of_actions:
            out[key] = rng.normal(size=(STEPS, 5)).astype("float32")
        else:
            out[key] = sequence(key, rng)
    if name == "general_off_policy_returns_from_q_and_v":
        out["q_t"], out["c_t"] = out["q_t"][:-1], out["c_t"][:-1]
    return out


def moving(kwargs):
    """The arguments that are differentiated: float sequences and alpha."""
    return {k: v for k, v in kwargs.items() if k.startswith("alpha") or getattr(v, "dtype", None) == np.float32}


def value_and_gradient(function, kwargs, weights):
    def loss(floats):
        results = jax.tree.leaves(function(**{**kwargs, **floats}))
        return sum(jnp.vdot(w, r) for w, r in zip(weights, results)), tuple(results)

    (_, results), gradient = jax.value_and_grad(loss, has_aux=True)(moving(kwargs))
    return results, gradient


def assert_same(got, want):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(w).max())))


@pytest.mark.parametrize("name", RLAX)
def test_signatures_are_rlaxs(name, rlax):
    ours, theirs = (inspect.signature(f).parameters for f in (getattr(compat.rlax, name), getattr(rlax, name)))
    assert [(p.name, p.default, p.kind) for p in ours.values()] == [
        (p.name, p.default, p.kind) for p in theirs.values()
    ]


@pytest.mark.parametrize("per_step", [False, True], ids=["scalars", "per step"])
@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("name", RLAX)
def test_results_and_gradients_are_rlaxs(name, stop, per_step, rlax, rng):
    kwargs = arguments(name, rng, per_step=per_step)
    weights = rng.normal(size=(3, STEPS)).astype("float32")
    both = [partial(getattr(m, name), stop_target_gradients=stop) for m in (compat.rlax, rlax)]
    got, want = (value_and_gradient(f, kwargs, weights) for f in both)
    assert_same(got, want)


def test_results_have_rlaxs_type(rng, rlax):
    kwargs = arguments("vtrace_td_error_and_advantage", rng, per_step=False)
    got = compat.rlax.vtrace_td_error_and_advantage(**kwargs)
    assert got._fields == rlax.vtrace_td_error_and_advantage(**kwargs)._fields


def test_a_batch_by_vmap_is_one_scan(rng):
    kwargs = {k: np.stack([v] * 3, 1) for k, v in arguments("vtrace", rng, per_step=True).items() if np.ndim(v)}
    batched = jax.vmap(lambda a: compat.rlax.vtrace(**a), 1, 1)
    assert str(jax.make_jaxpr(batched)(kwargs)).count("affine_scan[") == 1
    assert batched(kwargs).shape == (STEPS, 3)


@pytest.mark.parametrize("lambda_", [1.0, 0.6])
def test_the_native_vtrace_with_a_target_network_has_rlaxs_advantages(lambda_, rng):
    """The paper's: inside an episode the corrected target of the next state, not the other network's value of it."""
    k = arguments("vtrace_td_error_and_advantage", rng, per_step=False)
    theirs = compat.rlax.vtrace_td_error_and_advantage(
        k["v_tm1"], k["v_t"], k["r_t"], k["discount_t"], k["rho_tm1"], lambda_, 1.3, 1.7
    )
    ended = k["discount_t"] == 0
    ours = rtj.vtrace(
        k["r_t"], k["v_tm1"], np.log(k["rho_tm1"]), ended, next_values=k["v_t"], gamma=0.95, lambda_=lambda_,
        clip_rho=1.3, clip_pg_rho=1.7,
    )  # fmt: skip
    assert ended.any() and not ended.all()
    assert_same(ours.advantages, theirs.pg_advantage)
    assert_same(ours.targets, theirs.errors + k["v_tm1"])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"r_t": np.zeros((STEPS, 2), "f")}, r"r_t has shape \(23, 2\).*vmap"),
     ({"v_t": np.zeros(9, "f")}, r"v_t has shape \(9,\), but v_tm1 has shape \(23,\)"),
     ({"lambda_": np.zeros(4, "f")}, r"lambda_ has shape \(4,\), but v_tm1 has shape \(23,\)")],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_named(change, message, rng):
    with pytest.raises(ValueError, match=message):
        compat.rlax.vtrace(**{**arguments("vtrace", rng, per_step=False), **change})


def test_a_mask_that_is_no_flag_is_an_error(rng):
    """rlax takes booleans alone; 0.5 would otherwise count as True."""
    kwargs = arguments("vtrace", rng, per_step=True)
    with pytest.raises(ValueError, match=r"sample_mask has shape \(23,\) and holds 0.5"):
        compat.rlax.vtrace(**{**kwargs, "sample_mask": np.where(kwargs["sample_mask"], 1.0, 0.5)})


def test_integer_rewards_do_not_round_lambda():
    rewards, ones, values = np.array([1, 1, 1]), np.ones(3, "f"), np.array([5.0, 6.0, 7.0], "f")
    returns = compat.rlax.n_step_bootstrapped_returns(rewards, ones, values, 3, 0.5)
    q = compat.rlax.vtrace_td_error_and_advantage(values, values, rewards, ones, ones, 0.5).q_estimate
    np.testing.assert_array_equal(returns, [7.5, 8, 8])
    np.testing.assert_array_equal(q, [7.75, 8.5, 8])


def test_more_steps_than_there_are_cost_nothing(rng):
    rewards, discounts, values = rng.normal(size=(3, 4)).astype("float32")
    of = partial(compat.rlax.n_step_bootstrapped_returns, rewards, discounts, values, lambda_t=0.5)
    np.testing.assert_array_equal(of(2**63), of(4))
    want = compat.rlax.lambda_returns(rewards, discounts, values, 0.5)
    np.testing.assert_allclose(of(4), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("library", ["rlax", "brax"])
def test_a_sum_in_bfloat16_does_not_stick_at_256(library):
    """There 256 + 1 is 256; the sum is carried in float32."""
    ones, zeros = jnp.ones((600, 1), "bfloat16"), jnp.zeros((600, 1), "bfloat16")
    if library == "rlax":
        sums = jax.vmap(compat.rlax.discounted_returns, 1, 1)(ones, ones, zeros)
    else:
        sums, _ = compat.brax.compute_gae(zeros, zeros, ones, zeros, zeros[0], discount=1.0)
    assert sums.dtype == "bfloat16" and sums[0, 0] == 600


@contextlib.contextmanager
def unchecked():
    """rlax with its assertions off: they refuse integers, which its arithmetic promotes."""
    chex = pytest.importorskip("chex")
    chex.disable_asserts()
    try:
        yield
    finally:
        chex.enable_asserts()


def numbers(name, value):
    """Is it an argument whose dtype takes part in the arithmetic?"""
    return name not in ("n", "sample_mask") and not name.startswith("a_t") and value is not None


def in_dtype(value, dtype):
    return jnp.full(value.shape, 0.5) if dtype == "weak" else jnp.asarray(value).astype(dtype)


def mixtures(kwargs, dtypes):
    """All sequences in one dtype but one argument, which has another, is weakly typed or, a scalar, an array."""
    for base in dtypes:
        sequences = {k: in_dtype(v, base) for k, v in kwargs.items() if numbers(k, v) and np.ndim(v)}
        for name in (k for k, v in kwargs.items() if numbers(k, v)):
            for other in (*dtypes, "int32", "bool", "weak"):
                if other != "weak" or np.ndim(kwargs[name]) == 1:
                    yield {**kwargs, **sequences, name: in_dtype(kwargs[name], other)}


def result_dtypes(function, kwargs):
    results = jax.eval_shape(lambda: function(**kwargs))
    return [(x.dtype, x.weak_type) for x in jax.tree.leaves(results)]


@pytest.mark.parametrize("dtypes", [("bfloat16", "float16", "float32"), ("float32", "float64")], ids="-".join)
@pytest.mark.parametrize("name", RLAX)
def test_dtypes_are_rlaxs(name, dtypes, rlax, rng):
    """For each argument in each dtype; where rlax's scan refuses a mixture, those that promoted arguments have."""
    theirs, ours = getattr(rlax, name), getattr(compat.rlax, name)
    with jax.enable_x64("float64" in dtypes), unchecked():
        for kwargs in mixtures(arguments(name, rng, per_step=False), dtypes):
            try:
                want = result_dtypes(theirs, kwargs)
            except TypeError:
                promoted = jnp.result_type(*(v for k, v in kwargs.items() if numbers(k, v)))
                arrays = {k: v.astype(promoted) for k, v in kwargs.items() if numbers(k, v) and np.ndim(v)}
                want = result_dtypes(theirs, {**kwargs, **arrays})
            with jax.numpy_dtype_promotion("strict"):
                got = result_dtypes(ours, kwargs)
            assert got == want, {k: getattr(v, "dtype", type(v)) for k, v in kwargs.items()}


@pytest.mark.parametrize(
    ("dtype", "rewards"),
    [("float32", "int32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("bfloat16", "int32"),
     ("float16", "float16"), ("float64", "float32")],
)  # fmt: skip
@pytest.mark.parametrize("name", RLAX)
def test_mixed_dtypes_give_rlaxs_numbers_rounded_once(name, dtype, rewards, rlax, rng):
    """Against rlax in float64, so that nothing but the result is rounded to 16 bits, nor lambda to integers."""
    kwargs = arguments(name, rng, per_step=False)
    with jax.enable_x64(dtype == "float64"):
        arrays = {k: in_dtype(v, dtype) for k, v in kwargs.items() if numbers(k, v) and np.ndim(v)}
        kwargs = {k: np.asarray(v) if np.ndim(v) else v for k, v in {**kwargs, **arrays}.items()}
        kwargs["r_t"] = np.asarray(in_dtype(3 * kwargs["r_t"], rewards))
        got = jax.tree.leaves(getattr(compat.rlax, name)(**kwargs))
    with jax.enable_x64(True):
        exact = {k: v.astype("float64") if k in {*arrays, "r_t"} else v for k, v in kwargs.items()}
        want = jax.tree.leaves(getattr(rlax, name)(**exact))
    for g, w in zip(got, want, strict=True):
        error = np.abs(np.asarray(g, "float64") - w)
        rounded, carried = (float(jnp.finfo(d).eps) for d in (g.dtype, jnp.promote_types(dtype, "float32")))
        assert np.all(error <= rounded / 2 * np.abs(w) + 16 * carried * np.abs(w).max())


PATCH = """
import rlax._src.multistep, rlax._src.value_learning, rlax._src.vtrace
from rltriton_jax.compat import rlax as ours
for module in (rlax._src.multistep, rlax._src.value_learning, rlax._src.vtrace):
    for name in {names}:
        if hasattr(module, name):
            setattr(module, name, getattr(ours, name))
"""


@pytest.mark.slow
def test_rlaxs_own_tests_pass_on_the_drop_ins(tmp_path, rlax):
    (tmp_path / "patched_rlax.py").write_text(PATCH.format(names=RLAX))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "patched_rlax", "-p", "no:cacheprovider", "--pyargs"]
    command += ["rlax._src.multistep_test", "rlax._src.vtrace_test"]
    learners = ("TDLambda", "SarsaLambda", "QLambda", "Retrace", "RetraceContinuous")
    command += [f"rlax._src.value_learning_test::{name}Test" for name in learners]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_ADDOPTS": ""}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=600)
    assert result.returncode == 0, result.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", result.stdout).group(1)) >= 77


@pytest.fixture(scope="module")
def brax_losses():
    return pytest.importorskip("brax.training.agents.ppo.losses", reason="brax is not installed")


def brax_arguments(rng):
    truncation = (rng.random((STEPS, 4)) < 0.15).astype("float32")
    termination = (rng.random((STEPS, 4)) < 0.15).astype("float32")
    rewards, values = rng.normal(size=(2, STEPS, 4)).astype("float32")
    return truncation, termination, rewards, values, rng.normal(size=4).astype("float32")


def test_the_signature_is_braxs(brax_losses):
    ours, theirs = (
        inspect.signature(f).parameters.values() for f in (compat.brax.compute_gae, brax_losses.compute_gae)
    )
    assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs]


@pytest.mark.parametrize("options", [{}, {"lambda_": 0.9, "discount": 0.97}])
def test_results_are_braxs_both_flags_at_once_included(options, brax_losses, rng):
    args = brax_arguments(rng)
    assert_same(compat.brax.compute_gae(*args, **options), brax_losses.compute_gae(*args, **options))


@pytest.mark.parametrize("flags", ["float32", "int32", "bool"])
@pytest.mark.parametrize(
    ("rewards", "values"),
    [("float32", "float32"), ("int32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16"),
     ("float16", "float16"), ("int32", "bfloat16")],
)  # fmt: skip
def test_dtypes_are_braxs_and_flags_have_no_say(rewards, values, flags, brax_losses, rng):
    """Brax's scan takes no mixtures, nor flags of a wider dtype: what it has for promoted data."""
    truncation, termination, r, v, last = brax_arguments(rng)
    dtypes = (flags, flags, rewards, values, values)
    args = [jnp.asarray(x).astype(d) for x, d in zip((truncation, termination, 3 * r, v, last), dtypes)]
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*args[2:])
        assert brax_losses.compute_gae(*(x.astype(dtype) for x in args))[0].dtype == dtype
        exact = brax_losses.compute_gae(*(x.astype("float32") for x in args), 0.9, 0.97)
    for got, want in zip(compat.brax.compute_gae(*args, 0.9, 0.97), exact, strict=True):
        assert got.dtype == dtype
        error = np.abs(np.asarray(got, "float32") - want)
        assert np.all(error <= float(jnp.finfo(dtype).eps) / 2 * np.abs(want) + 2e-6 * np.abs(want).max())


def test_braxs_targets_are_stopped(rng):
    truncation, termination, rewards, values, last = brax_arguments(rng)
    loss = lambda v: sum(jnp.sum(x) for x in compat.brax.compute_gae(truncation, termination, rewards, v, last))
    assert not np.any(jax.grad(loss)(values))
