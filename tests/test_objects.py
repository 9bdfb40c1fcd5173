"""Estimator objects as functions: under `jax.jit` and the like, compared, hashed, exported."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers")

import rltriton_jax as rtj
from rltriton_jax.estimators.estimate import Estimator

OBJECTS = (
    rtj.GAE, rtj.VTrace, rtj.Retrace, rtj.LambdaReturns, rtj.DiscountedReturns, rtj.EligibilityTraces,
    rtj.EpisodicPrefixSum,
)  # fmt: skip
R = np.arange(6, dtype=np.float32).reshape(3, 2)


def want(gamma):
    return rtj.gae(R, R, bootstrap_value=0.0, gamma=gamma).advantages


def advantages(function, *arguments, **options):
    return function(*arguments or (R, R), bootstrap_value=0.0, **options).advantages


def test_an_object_with_arrays_is_a_function_to_jax():
    gae = rtj.GAE(gamma=jnp.asarray(0.9))
    two = np.stack([R, 2 * R])
    np.testing.assert_allclose(advantages(jax.jit(gae)), want(0.9), rtol=1e-6)
    np.testing.assert_allclose(advantages(jax.checkpoint(gae)), want(0.9), rtol=1e-6)
    np.testing.assert_allclose(
        jax.jit(functools.partial(gae, bootstrap_value=0.0))(R, R).advantages, want(0.9), rtol=1e-6
    )
    batched = jax.vmap(functools.partial(gae, bootstrap_value=0.0))(two, two).advantages
    np.testing.assert_allclose(batched, [want(0.9), 2 * want(0.9)], rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["called", "jit", "checkpoint"])
@pytest.mark.parametrize("outer", [lambda f: f, jax.jit], ids=["eagerly", "under jit"])
def test_gradients_go_through_an_object_that_holds_a_tracer(wrap, outer):
    got = outer(jax.grad(lambda g: jnp.sum(advantages(wrap(rtj.GAE(gamma=g))))))(0.9)
    np.testing.assert_allclose(got, jax.grad(lambda g: jnp.sum(want(g)))(0.9), rtol=1e-6)
    swept = outer(jax.vmap(lambda g: advantages(wrap(rtj.GAE(gamma=g)))))(jnp.array([0.9, 0.5]))
    np.testing.assert_allclose(swept, [want(0.9), want(0.5)], rtol=1e-6)


def test_a_jitted_object_never_runs_with_another_ones_hyperparameters():
    for gamma in (0.9, 0.5, 0.7):  # each is gone before the next is made, and may lie where it lay
        for kind in (jnp.asarray, np.asarray, float):
            np.testing.assert_allclose(advantages(jax.jit(rtj.GAE(gamma=kind(gamma)))), want(gamma), rtol=1e-6)


def test_objects_are_equal_by_their_numbers_and_the_identity_of_their_arrays():
    g = jnp.asarray(0.9)
    per_agent = {"a": g, "b": 0.5}
    equal = [
        (rtj.GAE(), rtj.GAE(0.99, 0.95)),
        (rtj.GAE(gamma=np.float32(0.5)), rtj.GAE(gamma=0.5)),
        (rtj.GAE(gamma=g), rtj.GAE(gamma=g)),
        (rtj.GAE(gamma=per_agent), rtj.GAE(gamma=dict(per_agent))),
        (rtj.GAE(0, None), rtj.GAE(0, None)),
    ]
    for a, b in equal:
        assert a == b and hash(a) == hash(b)
    different = [
        (rtj.GAE(0.9), rtj.GAE(0.8)),
        (rtj.GAE(gamma=g), rtj.GAE(gamma=jnp.asarray(0.9))),
        (rtj.GAE(gamma=g), rtj.GAE(gamma=id(g))),
        (rtj.GAE(), rtj.EligibilityTraces()),
        (rtj.GAE(gamma=per_agent), rtj.GAE(gamma=0.5)),
        (rtj.GAE(), (0.99, 0.95)),
    ]
    for a, b in different:
        assert a != b


def test_a_second_call_of_a_jitted_object_does_not_trace_again(monkeypatch):
    calls = []
    monkeypatch.setattr(rtj.GAE, "function", staticmethod(lambda *a, **k: calls.append(1) or rtj.gae(*a, **k)))
    gamma = jnp.asarray(0.9)
    gae = rtj.GAE(gamma)
    for _ in range(2):
        advantages(jax.jit(gae))
    assert len(calls) == 1


def test_every_object_and_estimate_is_exported():
    assert set(OBJECTS) == {c for c in Estimator.__subclasses__() if c.__module__.startswith("rltriton_jax.")}
    for cls in OBJECTS:
        given = (cls(), rtj.Estimate(R, R))
        program = export.export(jax.jit(lambda *x: x))(*given)
        again = export.deserialize(program.serialize())
        assert again.in_tree == program.in_tree and again.out_tree == program.out_tree
        got = again.call(*given)
        assert isinstance(got[0], cls) and isinstance(got[1], rtj.Estimate)


def test_another_process_runs_what_was_exported(tmp_path):
    learner = jax.jit(lambda gae, rewards: gae(rewards, rewards, bootstrap_value=0.0))
    (tmp_path / "program").write_bytes(export.export(learner)(rtj.GAE(0.9, 0.95), R).serialize())
    program = """
        import sys, jax, numpy as np, rltriton_jax as rtj
        from jax import export
        learner = export.deserialize(open(sys.argv[1], "rb").read())
        estimate = learner.call(rtj.GAE(0.9, 0.95), np.arange(6, dtype=np.float32).reshape(3, 2))
        assert isinstance(estimate, rtj.Estimate)
        print(np.asarray(estimate.advantages).tobytes().hex())
    """
    command = [
        sys.executable,
        "-c",
        "\n".join(line.strip() for line in program.splitlines()),
        str(tmp_path / "program"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(
        np.frombuffer(bytes.fromhex(done.stdout), np.float32).reshape(3, 2), want(0.9), rtol=1e-6
    )
