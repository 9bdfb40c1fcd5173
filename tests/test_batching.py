"""vmap equals a loop, moves the batch axis and not the data, and keeps what is not batched as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ESTIMATORS, MASKED, SUMS, arguments, outputs, primitives

import rltriton_jax as rtj


@pytest.mark.parametrize("case", [*ESTIMATORS, SUMS, *MASKED], ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_vmap_over_any_axis_is_a_loop(case, axis, rng):
    rows = [arguments(case, rng, 6, (2,)) for _ in range(3)]
    options = dict(case.options)
    arrays = [{k: v for k, v in r.items() if k not in options and np.ndim(v) >= 1} for r in rows]
    rest = {k: v for k, v in rows[0].items() if k not in arrays[0]}
    at = {k: (axis if axis < 0 or v.ndim >= axis else 0) for k, v in arrays[0].items()}
    stacked = {k: np.stack([a[k] for a in arrays], at[k]) for k in arrays[0]}
    mapped = jax.vmap(lambda a: outputs(case.function(**a, **rest)), in_axes=(at,))(stacked)
    for i, a in enumerate(arrays):
        for got, want in zip(mapped, outputs(case.function(**a, **rest))):
            np.testing.assert_allclose(got[i], want, rtol=1e-6, atol=1e-6)


def test_nested_vmap_with_operands_that_are_not_batched(rng):
    r = rng.normal(size=(3, 2, 6)).astype("float32")
    v = rng.normal(size=(2, 6)).astype("float32")
    estimate = lambda r, v, g: rtj.gae(r, v, gamma=g, bootstrap_value=0.0).advantages
    nested = jax.vmap(jax.vmap(jax.vmap(estimate, (None, None, 0)), (0, 0, None)), (0, None, None))
    gammas = jnp.array([0.8, 0.9])
    got = nested(r, v, gammas)
    for i in range(3):
        for j in range(2):
            for k in range(2):
                np.testing.assert_allclose(got[i, j, k], estimate(r[i, j], v[j], gammas[k]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_vmap_moves_nothing_where_the_operands_agree_on_the_axis(axis, rng):
    x = rng.normal(size=(4, 5, 6)).astype("float32")
    jaxpr = jax.make_jaxpr(jax.vmap(lambda x: rtj.gae(x, x, bootstrap_value=0.0).advantages, axis, axis))(x).jaxpr
    names = [e.primitive.name for e in primitives(jaxpr)]
    assert names.count("affine_scan") == 1 and "transpose" not in names


def test_a_sweep_reads_one_rollout(rng):
    """Every operand but the hyperparameter keeps size 1 along the sweep."""
    r, v = rng.normal(size=(2, 5, 3)).astype("float32")
    sweep = jax.vmap(lambda e: e(r, v, bootstrap_value=0.0).advantages, (rtj.GAE(0, None),))
    (scan,) = [e for e in primitives(jax.make_jaxpr(sweep)(rtj.GAE(jnp.linspace(0.9, 0.99, 32), 0.9)).jaxpr)
               if e.primitive.name == "affine_scan"]  # fmt: skip
    shapes = dict(zip(scan.params["recurrence"].operands, (i.aval.shape for i in scan.invars)))
    assert shapes["rewards"] == (1, 5, 3) and shapes["gamma"] == (32, 1, 1)


@pytest.mark.parametrize("implementation", ["associative_scan", "scan", "interpret"])
@pytest.mark.parametrize("case", [*ESTIMATORS, SUMS], ids=str)
def test_vmap_over_one_argument_alone_is_a_loop(case, implementation, rng):
    """Each float argument in turn: what does not depend on it keeps its size, and must still meet what does."""
    kwargs = {**arguments(case, rng, 5, (2,)), "implementation": implementation}
    for name, x in kwargs.items():
        if getattr(x, "dtype", None) != np.float32:
            continue
        one = lambda x, name=name: outputs(case.function(**{**kwargs, name: x}))
        several = np.stack([x, 0.9 * x, 0.8 * x])
        for got, *want in zip(jax.vmap(one)(several), *(one(x) for x in several), strict=True):
            np.testing.assert_allclose(got, np.stack(want), rtol=1e-5, atol=1e-5, err_msg=name)


def test_vmap_of_a_jitted_and_jit_of_a_vmapped_estimator_agree(rng):
    r, v = rng.normal(size=(2, 4, 6)).astype("float32")
    f = lambda r, v: rtj.gae(r, v, bootstrap_value=0.0).advantages
    np.testing.assert_allclose(jax.vmap(jax.jit(f))(r, v), jax.jit(jax.vmap(f))(r, v), rtol=1e-6)
