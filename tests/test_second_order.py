"""Second derivatives, every way round, with garbage wherever the formulas do not look; third ones in spots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, MASKED, arguments, outputs
from hostile import garbage, split

import rltriton_jax as rtj

WAYS = {
    "forward over reverse": lambda f, at, v: jax.jvp(jax.grad(f), (at,), (v,))[1],
    "reverse over forward": lambda f, at, v: jax.grad(lambda a: jax.jvp(f, (a,), (v,))[1])(at),
    "reverse over reverse": lambda f, at, v: jax.grad(lambda a: _dot(jax.grad(f)(a), v))(at),
}


def _dot(a, b):
    return sum(jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), a, b)))


@pytest.mark.parametrize("case", [*(c for c in CASES if c.name != "linear_recurrence"), *MASKED], ids=str)
def test_second_derivatives_agree_every_way_round_and_with_finite_differences_whatever_is_left_out(case, rng):
    with jax.enable_x64(True):
        kwargs = arguments(case, rng, 7, (4,), dtype="float64")
        if "log_rhos" in kwargs:  # away from the clips' kinks, and where exp overflows
            kwargs["log_rhos"] = rng.choice([-1e4, -0.5, 1.5, 1e4], size=(7, 4))
        bad, counted = garbage(case, kwargs, rng)
        clean, fixed = split(case, kwargs)
        bad = split(case, bad)[0]

        def loss(floats):
            results = outputs(case.function(**floats, **fixed))
            return sum(jnp.sum(jnp.where(counted, x, 0) ** 2) for x in results)

        v = {k: jnp.asarray(rng.normal(size=x.shape)) for k, x in clean.items()}
        ways = {name: jax.jit(lambda at, way=way: way(loss, at, v)) for name, way in WAYS.items()}
        step, gradient = 1e-6, jax.jit(jax.grad(loss))
        ahead, behind = (gradient(jax.tree.map(lambda x, d, s=s: x + s * d, clean, v)) for s in (step, -step))
        differences = jax.tree.map(lambda a, b: (a - b) / (2 * step), ahead, behind)
        for name, way in ways.items():
            for floats in (clean, bad):
                for key, got in way(floats).items():
                    np.testing.assert_allclose(got, differences[key], rtol=1e-5, atol=1e-5, err_msg=f"{name}: {key}")


SEEDED = {
    "eligibility traces": lambda z, w: rtj.eligibility_traces(jnp.arange(1.0, 4.0), gamma=w, lambda_=0.9, initial=z),
    "linear recurrence": lambda z, w: rtj.linear_recurrence(jnp.stack([0.9 * w] * 3), jnp.arange(1.0, 4.0), initial=z),
    "backward": lambda z, w: rtj.linear_recurrence(
        jnp.stack([0.9 * w] * 3), jnp.arange(3.0, 0.0, -1.0), initial=z, reverse=True
    ),
}


@pytest.mark.parametrize("implementation", ["chunked_scan", "associative_scan", "scan"])
@pytest.mark.parametrize("name", SEEDED)
def test_derivatives_through_the_initial_state_at_a_weight_of_0(name, implementation):
    """Of z0 w (1 + w + w^2) with w = 0.9 x, at x = 0: 0, then 0.9, then 2 * 0.81."""
    with rtj.default_implementation(implementation):
        first = jax.grad(lambda z, x: SEEDED[name](z, x).sum())
        second, third = jax.grad(first, 1), jax.grad(jax.grad(first, 1), 1)
        np.testing.assert_allclose([first(2.0, 0.0), second(2.0, 0.0), third(2.0, 0.0)], [0, 0.9, 1.62], rtol=1e-6)
        in_reverse = jax.jacrev(jax.jacrev(jax.jacrev(lambda z, x: SEEDED[name](z, x).sum()), 1), 1)
        np.testing.assert_allclose(in_reverse(2.0, 0.0), 1.62, rtol=1e-6)


def test_third_derivatives_of_weights_that_are_0(rng):
    """x[0] is linear in each weight: d3 / dw0 dw1 dw2 of u0 + w0 (u1 + w1 (u2 + w2 u3)) is u3."""
    u = jnp.asarray([1.0, 2.0, 3.0, 5.0])
    f = lambda a, b, c: rtj.linear_recurrence(jnp.stack([a, b, c, 0.0 * a]), u, reverse=True)[0]
    for outer in (jax.jacrev, jax.jacfwd):
        assert outer(jax.grad(jax.grad(f, 0), 1), 2)(0.0, 0.0, 0.0) == 5
