"""An eighth estimator, made from outside the package as .github/CONTRIBUTING.md says: the engine needs no change."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

from rltriton_jax.estimators.estimate import Estimator
from rltriton_jax.estimators.window import Window, over_leaves
from rltriton_jax.scan.recurrence import Read


class Reads(NamedTuple):
    value: Any
    done_before: Any
    decay: Any


def coefficients(s):
    return unless(s.done_before, s.decay), (1.0 - s.decay) * s.value


def _or_0(condition, x):
    return jnp.where(condition, 0.0, x)


unless = _or_0


def outputs(s, x, entering):
    return x, s.value - x


@over_leaves("inputs")
def moving_average(inputs, done=None, *, decay=0.9, initial=None, time_axis=0, implementation=None):
    """x[t] = decay * x[t-1] + (1 - decay) * inputs[t], anew in each episode, and inputs - x."""
    window = Window("inputs", inputs, time_axis)
    reads = Reads(
        value=Read("inputs"),
        done_before=window.flag("done", done, shift=-1),
        decay=window.coefficient("decay", decay),
    )
    initial = window.one_step("initial", initial)
    return window.scan(reads, coefficients, outputs, reverse=False, initial=initial, implementation=implementation)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MovingAverage(Estimator):
    function = moving_average
    decay: Any = 0.9


def reference(inputs, done, *, decay, initial):
    """Time on axis 0."""
    x, averages = np.asarray(initial, np.float64), np.zeros(inputs.shape)
    for t in range(len(inputs)):
        kept = decay * np.where(done[t - 1], 0.0, x) if t else decay * x
        averages[t] = x = kept + (1 - decay) * inputs[t]
    return averages, inputs - averages


IMPLEMENTATIONS = [
    None,
    "associative_scan",
    "scan",
    "interpret",
    pytest.param("triton", marks=pytest.mark.gpu),
]
on_every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


@pytest.fixture
def arguments(rng):
    inputs, done = rng.normal(size=(13, 6)).astype("float32"), rng.random((13, 6)) < 0.2
    return {"inputs": inputs, "done": done, "decay": np.float32(0.8), "initial": rng.normal(size=6).astype("float32")}


def assert_close(got, want):
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


@on_every_implementation
@pytest.mark.parametrize("time_axis", [0, 1])
def test_it_is_its_definition(implementation, time_axis, arguments):
    placed = {k: v.T if v.ndim == 2 and time_axis else v for k, v in arguments.items()}
    got = jax.jit(lambda a: moving_average(**a, time_axis=time_axis, implementation=implementation))(placed)
    assert_close([np.moveaxis(np.asarray(g), time_axis, 0) for g in got], reference(**arguments))


@on_every_implementation
def test_vmap_sweeps_its_object(implementation, arguments):
    decays = jnp.array([0.5, 0.9])
    rest = {k: v for k, v in arguments.items() if k != "decay"}
    swept = jax.vmap(lambda e: e(**rest, implementation=implementation))(MovingAverage(decays))
    for i, decay in enumerate(decays):
        assert_close([x[i] for x in swept], reference(**rest, decay=float(decay)))


@on_every_implementation
def test_it_is_differentiable(implementation, arguments):
    done = arguments["done"][:4, :2]
    floats = {
        "inputs": jnp.asarray(arguments["inputs"][:4, :2]),
        "initial": jnp.asarray(arguments["initial"][:2]),
        "decay": jnp.float32(0.8),
    }
    f = lambda floats: moving_average(done=done, implementation=implementation, **floats)
    check_grads(f, (floats,), order=1, modes=("fwd", "rev"), atol=0.02, rtol=0.02)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=lambda k: k.name)
@on_every_implementation
def test_time_and_batch_can_be_split_over_a_mesh(implementation, kind, rng):
    mesh = jax.make_mesh((4, 2), ("time", "batch"), axis_types=(kind, kind))
    inputs, done = rng.normal(size=(16, 6)).astype("float32"), rng.random((16, 6)) < 0.2
    place = lambda x: jax.device_put(x, NamedSharding(mesh, P("time", "batch")))
    f = jax.jit(lambda inputs, done: moving_average(inputs, done, decay=0.8, implementation=implementation))
    got = f(place(inputs), place(done))
    assert_close(got, reference(inputs, done, decay=0.8, initial=np.zeros(6)))


def test_a_dict_of_inputs_is_taken_leaf_by_leaf(arguments):
    averages, _ = moving_average({"a": arguments["inputs"]}, arguments["done"], decay=0.8)
    assert set(averages) == {"a"}
