"""Windows of no steps, and of no environments: every derivative has its shape and is 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, ESTIMATORS, arguments, outputs


def floats_and_function(case, rng, steps, batch, implementation=None):
    kwargs = arguments(case, rng, steps, batch)
    floats = {k: jnp.asarray(v) for k, v in kwargs.items() if getattr(v, "dtype", None) == np.float32}
    fixed = {k: v for k, v in kwargs.items() if k not in floats}
    return floats, lambda x: outputs(case.function(**x, **fixed, implementation=implementation))


def total(tree):
    return sum(jnp.sum(x) for x in jax.tree.leaves(tree))


def assert_nothing(got, like):
    """Zeros of the shapes and dtypes of `like`."""
    for g, x in zip(jax.tree.leaves(got), jax.tree.leaves(like), strict=True):
        assert g.shape == x.shape and g.dtype == x.dtype and not np.any(g)


@pytest.mark.parametrize(
    ("steps", "batch"),
    [(0, (2,)), (0, ()), (3, (0,)), (0, (0,))],
    ids=["no steps", "no steps of one environment", "no environments", "neither"],
)
@pytest.mark.parametrize("implementation", ["scan", "chunked_scan", "associative_scan", "interpret"])
@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
def test_an_empty_window_has_empty_results_and_gradients_of_0(case, steps, batch, implementation, rng):
    floats, f = floats_and_function(case, rng, steps, batch, implementation)
    for x in f(floats):
        assert x.shape == (steps, *batch) and x.dtype == jnp.float32
    assert_nothing(jax.grad(lambda x: total(f(x)))(floats), floats)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_derivative_of_an_empty_window_is_0(case, rng):
    floats, f = floats_and_function(case, rng, 0, (2,))
    ones = jax.tree.map(jnp.ones_like, floats)
    gradient = jax.grad(lambda x: total(f(x)))
    assert_nothing(jax.jvp(f, (floats,), (ones,))[1], f(floats))
    assert_nothing(jax.jit(gradient)(floats), floats)
    assert_nothing(jax.jvp(gradient, (floats,), (ones,))[1], floats)
    assert_nothing(jax.grad(lambda x: total(gradient(x)))(floats), floats)
    two = jax.tree.map(lambda x: jnp.stack([x, x]), floats)
    assert_nothing(jax.vmap(gradient)(two), two)
    assert_nothing(jax.vmap(f)(two), [jnp.stack([x, x]) for x in f(floats)])
