"""Garbage in another episode changes no bit; NaN in an episode's own data is seen, alike on every implementation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, FLOATS, MASKED, arguments, outputs
from hostile import garbage, split
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PLAIN = ("chunked_scan", "associative_scan", "scan")
WINDOWED = [*(c for c in CASES if c.name != "linear_recurrence"), *MASKED]
ROWS = 16


@functools.cache
def results_and_derivatives(name, implementation):
    """A program of all float arguments, flags and the outputs that count: these outputs and all first derivatives."""
    case = next(c for c in WINDOWED if str(c) == name)

    def run(floats, flags, counted):
        def call(floats):
            results = outputs(case.function(**floats, **flags, **dict(case.options), implementation=implementation))
            return [jnp.where(counted, x, 0) for x in results]

        results, pullback = jax.vjp(call, floats)
        (gradient,) = pullback(
            [jnp.where(counted, jnp.cos(jnp.arange(counted.size).reshape(counted.shape)), 0)] * len(results)
        )
        ones = {k: jnp.ones_like(x) for k, x in floats.items()}
        return results, gradient, jax.jvp(call, (floats,), (ones,))[1]

    return jax.jit(run)


def check(case, implementation, steps, seed):
    rng = np.random.default_rng(seed)
    kwargs = arguments(case, rng, steps, (ROWS,))
    bad, counted = garbage(case, kwargs, rng)
    run = results_and_derivatives(str(case), implementation)
    want, got = ([*jax.tree.leaves(run(*split_flags(case, a), counted))] for a in (kwargs, bad))
    for w, g in zip(want, got, strict=True):
        np.testing.assert_array_equal(g, w)


def split_flags(case, kwargs):
    floats, rest = split(case, kwargs)
    return floats, {k: v for k, v in rest.items() if not isinstance(v, str)}


@pytest.mark.parametrize("implementation", PLAIN)
@pytest.mark.parametrize("case", WINDOWED, ids=str)
@settings(deadline=None, max_examples=6, suppress_health_check=list(HealthCheck), database=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_the_formulas_leave_out_changes_no_bit(case, implementation, seed):
    """Each example holds sixteen environments."""
    check(case, implementation, 9, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("steps", [1, 2, 9, 33])
@pytest.mark.parametrize("case", WINDOWED, ids=str)
def test_what_the_formulas_leave_out_changes_no_bit_in_ten_thousand_environments(case, steps):
    for seed in range(10_000 // ROWS // 4 + 1):
        for implementation in PLAIN:
            check(case, implementation, steps, seed)


@pytest.mark.interpreter
@pytest.mark.parametrize("case", WINDOWED, ids=str)
def test_what_the_formulas_leave_out_changes_no_bit_in_the_kernel(case, rng):
    kwargs = arguments(case, rng, 9, (ROWS,))
    bad, counted = garbage(case, kwargs, rng)
    want, got = (outputs(case.function(**a, implementation="interpret")) for a in (kwargs, bad))
    for w, g in zip(want, got, strict=True):
        np.testing.assert_array_equal(np.asarray(g)[counted], np.asarray(w)[counted])


@pytest.mark.interpreter
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_nan_in_the_data_reaches_the_same_outputs_on_every_implementation(case, rng):
    kwargs = arguments(case, rng, 33, (ROWS,))
    for name in sorted(FLOATS & kwargs.keys()):
        x = np.array(kwargs[name])
        x[rng.random(x.shape) < (0.1 if x.ndim > 1 else 0.5)] = np.nan
        results = [
            outputs(case.function(**{**kwargs, name: x}, implementation=i)) for i in ("scan", *PLAIN[:2], "interpret")
        ]
        assert name == "final_values" or any(np.isnan(x).any() for x in results[0]), name
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(np.isnan(a), np.isnan(b), err_msg=name)
