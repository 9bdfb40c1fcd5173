"""Derivatives: against finite differences to order 2, and against the unrolled loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, ESTIMATORS, FLOATS, MASKED, arguments, outputs, primitives
from jax.interpreters import partial_eval
from jax.test_util import check_grads

import rltriton_jax as rtj
from rltriton_jax.scan.derivatives import _cotangents, cotangents_p


def split(case, kwargs):
    floats = {k: jnp.asarray(v) for k, v in kwargs.items() if k in FLOATS or k in case.hyperparameters}
    return floats, {k: v for k, v in kwargs.items() if k not in floats}


@pytest.mark.parametrize("case", [*CASES, *MASKED], ids=str)
def test_every_float_argument_to_order_2_in_both_modes(case, rng):
    with jax.enable_x64(True):
        kwargs = arguments(case, rng, 4, (2,), dtype="float64")
        if "log_rhos" in kwargs:  # away from the clips' kinks
            kwargs["log_rhos"] = np.where(rng.random((4, 2)) < 0.5, -0.5, 1.5)
        floats, fixed = split(case, kwargs)
        check_grads(lambda f: outputs(case.function(**f, **fixed)), (floats,), order=2, modes=("fwd", "rev"))


@pytest.mark.parametrize("hyper", ["batch", "step", "both"])
@pytest.mark.parametrize("case", [c for c in ESTIMATORS if c.hyperparameters], ids=lambda c: c.name)
def test_hyperparameters_of_every_shape(case, hyper, rng):
    with jax.enable_x64(True):
        kwargs = arguments(case, rng, 4, (2,), dtype="float64", hyper=hyper)
        floats = {k: jnp.asarray(kwargs.pop(k)) for k in case.hyperparameters}
        check_grads(lambda f: outputs(case.function(**f, **kwargs)), (floats,), order=2, modes=("fwd", "rev"))


def test_third_order_of_gamma_matches_the_polynomial():
    third = jax.grad(jax.grad(jax.grad(lambda g: rtj.discounted_returns(jnp.ones(6), gamma=g)[0])))
    np.testing.assert_allclose(third(0.5), sum(k * (k - 1) * (k - 2) * 0.5 ** (k - 3) for k in range(6)), rtol=1e-5)


@pytest.mark.parametrize("transform", [jax.jacfwd, jax.jacrev, jax.hessian], ids=lambda t: t.__name__)
def test_jacobians_and_hessians_of_the_hyperparameters(transform, rng):
    r, v = rng.normal(size=(2, 6)).astype("float32")

    def loop(g):
        advantage = 0.0
        for t in reversed(range(6)):
            advantage = r[t] + g[0] * (v[t + 1] if t < 5 else 0.0) - v[t] + g[0] * g[1] * advantage
        return advantage

    at = jnp.array([0.9, 0.8])
    got = transform(lambda g: rtj.gae(r, v, gamma=g[0], lambda_=g[1], bootstrap_value=0.0).advantages[0])(at)
    np.testing.assert_allclose(got, transform(loop)(at), rtol=1e-4, atol=1e-5)


def test_checkpoint_and_grad_under_vmap_and_vmap_under_grad(rng):
    r, v = rng.normal(size=(2, 4, 6, 3)).astype("float32")
    loss = lambda r, v, g: jnp.sum(rtj.gae(r, v, gamma=g, bootstrap_value=0.0).advantages ** 2)
    plain = jax.vmap(jax.grad(loss, 2), (0, 0, None))(r, v, 0.9)
    saved = jax.vmap(jax.grad(jax.checkpoint(loss), 2), (0, 0, None))(r, v, 0.9)
    np.testing.assert_allclose(plain, saved, rtol=1e-6)
    outer = jax.grad(lambda g: jnp.sum(jax.vmap(loss, (0, 0, None))(r, v, g)))(0.9)
    np.testing.assert_allclose(jnp.sum(plain), outer, rtol=1e-5)


@pytest.mark.parametrize("function", [jax.grad, jax.jacrev], ids=lambda f: f.__name__)
def test_a_gradient_batched_in_some_of_what_moves(function, rng):
    """Of rewards that are batched and values that are not, as `jax.vmap` gives it and as a loop does."""
    r, v = rng.normal(size=(4, 6, 3)).astype("float32"), rng.normal(size=(6, 3)).astype("float32")

    def of(r, v):
        advantages = rtj.gae(r, v, bootstrap_value=0.0).advantages
        return jnp.sum(advantages**2) if function is jax.grad else advantages

    gradient = function(of, (0, 1))
    batched = jax.vmap(gradient, (0, None))(r, v)
    one_by_one = [gradient(x, v) for x in r]
    jax.tree.map(lambda a, *b: np.testing.assert_allclose(a, np.stack(b), atol=1e-5), batched, *one_by_one)


def test_the_scan_is_linear_in_its_inputs_and_its_initial_state(rng):
    w, u = rng.normal(size=(2, 5, 3)).astype("float32")
    seed = rng.normal(size=3).astype("float32")
    for reverse in (False, True):
        f = lambda u, s, reverse=reverse: rtj.linear_recurrence(w, u, initial=s, reverse=reverse)
        ct = rng.normal(size=(5, 3)).astype("float32")
        du, ds = jax.linear_transpose(f, u, seed)(ct)
        np.testing.assert_allclose(np.sum(ct * f(u, seed)), np.sum(du * u) + np.sum(ds * seed), rtol=1e-4, atol=1e-5)


SCANS = ("affine_scan", "differential", "cotangents")


def scans_in(jaxpr):
    return [e for e in primitives(jaxpr) if e.primitive.name in SCANS]


def test_the_backward_pass_is_one_scan_in_the_other_direction(rng):
    """By definition, and on a CPU one loop whose results are the gradients."""
    r, v = rng.normal(size=(2, 6, 3)).astype("float32")

    pullback = jax.vjp(lambda r, v: rtj.gae(r, v, bootstrap_value=0.0).advantages, r, v)[1]
    (scan,) = scans_in(jax.make_jaxpr(pullback)(r).jaxpr)
    assert scan.primitive is cotangents_p and scan.params["moving"] == ("rewards", "values")
    operands = [jnp.zeros(x.aval.shape, x.aval.dtype) for x in scan.invars]
    (inner,) = scans_in(jax.make_jaxpr(functools.partial(_cotangents, **scan.params))(*operands).jaxpr)
    assert not inner.params["recurrence"].reverse
    assert jax.jit(pullback).lower(r).as_text().count("stablehlo.while") == 1


@pytest.mark.parametrize("case", [*CASES, *MASKED], ids=str)
def test_arguments_along_time_alone_to_order_2(case, rng):
    """On a CPU one loop writes all of their cotangents; where one is summed, as a hyperparameter's is, it does not."""
    with jax.enable_x64(True):
        kwargs = arguments(case, rng, 4, (2,), dtype="float64")
        if "log_rhos" in kwargs:  # away from the clips' kinks
            kwargs["log_rhos"] = np.where(rng.random((4, 2)) < 0.5, -0.5, 1.5)
        floats = {k: jnp.asarray(v) for k, v in kwargs.items() if k in FLOATS}
        fixed = {k: v for k, v in kwargs.items() if k not in FLOATS}
        check_grads(lambda f: outputs(case.function(**f, **fixed)), (floats,), order=2, modes=("rev",))


def test_a_tangent_needs_no_state_unless_a_weight_moves(rng):
    """What the tangent of `rewards` alone needs is the bare scan; that of gamma needs the primal state too."""
    r, v = rng.normal(size=(2, 6, 3)).astype("float32")

    def scans_for(tangent, x):
        jaxpr = partial_eval.dce_jaxpr(jax.make_jaxpr(tangent)(x).jaxpr, [True])[0]
        return [e.primitive.name for e in scans_in(jaxpr)]

    of_rewards = lambda dr: jax.jvp(lambda r: rtj.gae(r, v, bootstrap_value=0.0).advantages, (r,), (dr,))[1]
    of_gamma = lambda dg: jax.jvp(lambda g: rtj.gae(r, v, gamma=g, bootstrap_value=0.0).advantages, (0.9,), (dg,))[1]
    assert scans_for(of_rewards, r) == ["differential"]
    assert scans_for(of_gamma, 1.0) == ["affine_scan", "differential"]


@pytest.mark.parametrize("transform", [jax.grad, jax.jacfwd], ids=lambda t: t.__name__)
@pytest.mark.parametrize(
    "case", [c for c in ESTIMATORS if {"terminated", "done"} & {*c.optional}], ids=lambda c: c.name
)
def test_float_flags_beside_what_is_differentiated_have_gradients_of_0(case, transform, rng):
    kwargs = arguments(case, rng, 5, (2,))
    flags = [k for k in kwargs if k in ("terminated", "truncated", "done")]
    kwargs |= {k: kwargs[k].astype("float32") for k in flags}
    floats = {k: jnp.asarray(v) for k, v in kwargs.items() if not isinstance(v, str)}
    options = {k: v for k, v in kwargs.items() if isinstance(v, str)}
    gradients = transform(lambda f: sum(jnp.sum(o) for o in outputs(case.function(**f, **options))))(floats)
    assert all(not np.any(gradients[k]) for k in flags) and np.any(gradients[case.required[0]])


def test_gradients_of_low_precision_arguments_keep_their_dtype(rng):
    r, v = (jnp.asarray(x, jnp.bfloat16) for x in rng.normal(size=(2, 6, 3)))
    gr, gv, gg = jax.grad(lambda r, v, g: jnp.sum(rtj.gae(r, v, gamma=g, bootstrap_value=0.0).advantages), (0, 1, 2))(
        r, v, jnp.float32(0.9)
    )
    assert (gr.dtype, gv.dtype, gg.dtype) == (jnp.bfloat16, jnp.bfloat16, jnp.float32)
