"""jax.export of a learner step: to bytes and back, with symbolic dimensions where they can be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rltriton_jax as rtj
from rltriton_jax.scan.triton import launch

pytest.importorskip("flatbuffers", reason="jax.export serialises with flatbuffers")

KERNEL_CALLS = [export.DisabledSafetyCheck.custom_call(f"triton_kernel_call{s}") for s in ("", "_ffi")]


def step(weights, features, rewards, done, implementation=None):
    """The gradient of an actor-critic loss with a linear critic."""

    def loss(weights):
        values = jnp.einsum("tnf,f->tn", features, weights)
        estimate = rtj.gae(
            rewards, values[:-1], done, bootstrap_value=values[-1], gamma=0.97, implementation=implementation
        )
        advantages, targets = jax.lax.stop_gradient(estimate)
        return jnp.mean(advantages * values[:-1] + (targets - values[:-1]) ** 2)

    return jax.grad(loss)(weights)


def arguments(steps, rows):
    f = jnp.float32
    return (
        jax.ShapeDtypeStruct((3,), f),
        jax.ShapeDtypeStruct((steps + 1, rows, 3), f),
        jax.ShapeDtypeStruct((steps, rows), f),
        jax.ShapeDtypeStruct((steps, rows), jnp.bool_),
    )


def sizes(*names):
    scope = export.SymbolicScope()
    return [export.symbolic_shape(n, scope=scope)[0] if isinstance(n, str) else n for n in names]


def exported(steps, rows, implementation=None, platforms=("cpu",)):
    function = jax.jit(lambda *args: step(*args, implementation=implementation))
    return export.export(function, platforms=platforms, disabled_checks=KERNEL_CALLS)(*arguments(*sizes(steps, rows)))


def check_runs_as_before(program, rng, steps=6, rows=4):
    again = export.deserialize(program.serialize())
    args = [rng.normal(size=s.shape).astype("float32") for s in arguments(steps, rows)[:3]]
    done = rng.random((steps, rows)) < 0.2
    np.testing.assert_allclose(again.call(*args, done), step(*args, done), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("steps", "rows", "implementation"),
    [(6, 4, None), (6, "n", None), ("t", "n", None), ("t", "n", "scan")],
    ids=["static", "any batch", "any batch and time", "any batch and time, by name"],
)
def test_a_learner_step_runs_from_its_bytes(steps, rows, implementation, rng):
    check_runs_as_before(exported(steps, rows, implementation), rng)


@pytest.mark.skipif(launch.why_unavailable() is not None, reason=f"the kernel's packages: {launch.why_unavailable()}")
def test_one_export_serves_cpu_and_cuda(rng):
    with rtj.lowering_for("sm_90"):
        program = exported(6, 4, platforms=("cpu", "cuda"))
    assert "triton_kernel_call" in program.mlir_module()
    check_runs_as_before(program, rng)


def test_any_batch_on_cuda_without_the_kernel(rng):
    check_runs_as_before(exported(6, "n", "associative_scan", ("cpu", "cuda")), rng)


def test_a_symbolic_number_of_steps_names_the_implementation_that_takes_it():
    with pytest.raises(ValueError, match=r"number of steps is t, .*implementation='scan'"):
        exported("t", 4, "associative_scan")


@pytest.mark.skipif(launch.why_unavailable() is not None, reason=f"the kernel's packages: {launch.why_unavailable()}")
def test_a_symbolic_dimension_of_a_kernel_is_an_error():
    message = "needs static shapes, but this one is \\(6, n\\)"
    with rtj.lowering_for("sm_90"), pytest.raises(ValueError, match=message):
        exported(6, "n", platforms=("cuda",))


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("spec", [P(None, "devices"), P("devices")], ids=["batch", "time"])
def test_a_program_for_several_devices_exports_from_an_explicit_mesh(spec, rng):
    mesh = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Explicit,))
    rewards, values = rng.normal(size=(2, 8, 4)).astype("float32")
    with jax.set_mesh(mesh):
        r, v = (jax.device_put(x, NamedSharding(mesh, spec)) for x in (rewards, values))
        program = export.export(jax.jit(lambda r, v: rtj.gae(r, v, bootstrap_value=0.0).advantages))(r, v)
        got = export.deserialize(program.serialize()).call(r, v)
    np.testing.assert_allclose(got, rtj.gae(rewards, values, bootstrap_value=0.0).advantages, rtol=1e-5, atol=1e-6)
