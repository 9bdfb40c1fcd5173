"""One environment is none of another's business, and what a formula leaves out is none of `jax.debug_nans`'s."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, ESTIMATORS, FLOATS, MASKED, PER_STEP, SUMS, arguments, outputs

import rltriton_jax as rtj

IMPLEMENTATIONS = ["scan", "chunked_scan", "associative_scan", "interpret"]
STEPS, ENVIRONMENTS, TOUCHED = 9, 5, 2
OTHERS = np.arange(ENVIRONMENTS) != TOUCHED


def split(case, kwargs):
    floats = {k: jnp.asarray(v) for k, v in kwargs.items() if k in FLOATS or k in case.hyperparameters}
    return floats, {k: v for k, v in kwargs.items() if k not in floats}


def others(x, name=""):
    """The part of an array that belongs to the other environments; what belongs to all is whole."""
    at = 0 if name in ("bootstrap_value", "initial") else 1
    return np.asarray(x) if np.ndim(x) <= at else np.compress(OTHERS, x, axis=at)


def assert_same_bits(got, want, name=""):
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}"), want.view(f"u{want.itemsize}"), err_msg=name)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
def test_what_one_environment_holds_changes_no_bit_of_another(case, implementation, rng):
    """Neither of its outputs, nor of the gradients of a loss on it, those in shared hyperparameters included."""
    kwargs = arguments(case, rng, STEPS, (ENVIRONMENTS,))

    @jax.jit
    def run(floats, fixed):
        def loss(floats):
            results = outputs(case.function(**floats, **fixed, **dict(case.options), implementation=implementation))
            return sum(jnp.sum(x[:, OTHERS] ** 2) for x in results), results

        return jax.grad(loss, has_aux=True)(floats)

    def of(content):
        floats, fixed = split(case, kwargs)
        for name in FLOATS & floats.keys():
            at = (TOUCHED,) if name in ("bootstrap_value", "initial") else (slice(None), TOUCHED)
            floats[name] = floats[name].at[at].set(content)
        return run(floats, {k: v for k, v in fixed.items() if k not in dict(case.options)})

    gradients, results = of(1.0)
    for content in (-3.0, np.nan, np.inf):
        changed_gradients, changed = of(content)
        for x, y in zip(changed, results, strict=True):
            assert_same_bits(others(x), others(y))
        for name, g in gradients.items():
            assert_same_bits(others(changed_gradients[name], name), others(g, name), name)


def with_garbage(case, kwargs):
    """The arguments with NaN in everything that no output depends on, in NumPy as they come from the host."""
    out = {k: np.array(v) if np.ndim(v) else v for k, v in kwargs.items()}
    if "terminated" in out:
        out["terminated"][-1] = True
    terminated, truncated = out.get("terminated"), out.get("truncated")
    if "bootstrap_value" in out:
        out["bootstrap_value"][:] = np.nan
    if "extra_row" in case.optional:
        out["values"][-1] = np.nan
    if "final_values" in out:
        out["final_values"][~truncated | terminated] = np.nan
    for name in {"next_values", "next_state_values", "next_q_values"} & out.keys():
        out[name][terminated] = np.nan
    if "valid" in out:
        for name in PER_STEP & FLOATS & out.keys() - {"final_values"}:
            out[name][:STEPS][~out["valid"]] = np.nan
    if "next_q_values" in out:
        left_out = np.arange(out["next_q_values"].shape[-1]) == 1
        out["next_target_probs"][..., left_out] = 0
        out["next_q_values"][..., left_out] = np.nan
    if "initial" in out and case.options == (("boundary", "starts_at"),):
        out["done"][0] = True
        out["initial"][:] = np.nan
    if case.name == "linear_recurrence":
        first = STEPS - 1 if dict(case.options)["reverse"] else 0
        out["weights"] = np.full((STEPS, 1), 0.9, np.float32)
        out["weights"][first] = 0
        out["initial"][:] = np.nan
    return out


GARBAGE = [c for c in CASES if c.name != "eligibility_traces"]  # which leaves out nothing that its arguments hold
GARBAGE = [c for c in GARBAGE if c.name != "episodic_prefix_sum" or c.options]
GARBAGE += MASKED
GARBAGE = [c for c in GARBAGE if c.name != "linear_recurrence" or dict(c.options).get("reverse")]


def first_and_second_derivatives(f, floats):
    """Eagerly, in every float argument."""
    ones = jax.tree.map(jnp.ones_like, floats)
    total = lambda x: sum(jnp.sum(o) for o in f(x))
    squares = lambda x: sum(jnp.sum(g**2) for g in jax.tree.leaves(jax.grad(total)(x)))
    return {
        "jvp": jax.jvp(f, (floats,), (ones,)),
        "gradient": jax.grad(total)(floats),
        "gradient of a jitted function": jax.grad(jax.jit(total))(floats),
        "jitted gradient": jax.jit(jax.grad(total))(floats),
        "reverse over reverse": jax.grad(squares)(floats),
        "forward over reverse": jax.jvp(jax.grad(total), (floats,), (ones,)),
    }


@pytest.mark.parametrize("case", GARBAGE, ids=str)
def test_debug_nans_does_not_see_what_a_formula_leaves_out(case, rng):
    kwargs = with_garbage(case, arguments(case, rng, STEPS, (ENVIRONMENTS,)))
    arrays, fixed = split(case, kwargs)
    f = lambda floats: outputs(case.function(**floats, **fixed))
    with jax.debug_nans(True):
        assert all(jnp.isfinite(x).all() for x in outputs(case.function(**kwargs)))
        f(arrays), jax.jit(f)(arrays)
        if case in ESTIMATORS:
            first_and_second_derivatives(f, arrays)
        else:
            jax.grad(lambda x: sum(jnp.sum(o) for o in f(x)))(arrays)


@pytest.mark.parametrize("implementation", ["scan", "associative_scan", "interpret"])
@pytest.mark.parametrize("case", [GARBAGE[0], SUMS], ids=str)
def test_debug_nans_does_not_see_it_in_other_implementations(case, implementation, rng):
    arrays, fixed = split(case, with_garbage(case, arguments(case, rng, STEPS, (ENVIRONMENTS,))))
    f = lambda floats: outputs(case.function(**floats, **fixed, implementation=implementation))
    with jax.debug_nans(True):
        f(arrays), jax.grad(lambda x: sum(jnp.sum(o) for o in f(x)))(arrays)


@pytest.mark.parametrize("case", [c for c in ESTIMATORS if c not in GARBAGE], ids=lambda c: c.name)
def test_debug_nans_is_silent_on_clean_data(case, rng):
    arrays, fixed = split(case, arguments(case, rng, STEPS, (ENVIRONMENTS,)))
    with jax.debug_nans(True):
        first_and_second_derivatives(lambda x: outputs(case.function(**x, **fixed)), arrays)


@pytest.mark.parametrize("call", [lambda f: f, jax.jit, jax.grad], ids=["eager", "jit", "gradient"])
def test_debug_nans_sees_what_reaches_a_result(call):
    x = np.array([1, np.nan, 2], np.float32)
    f = call(lambda x: rtj.discounted_returns(x, gamma=0.9)[0] ** 2)
    f(np.ones(3, np.float32))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        f(x)
