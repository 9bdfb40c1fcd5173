"""The loop over steps, over all at once or in chunks: when it is which, and that it changes nothing."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, ESTIMATORS, LAYOUTS, arguments, check, outputs
from jax.sharding import PartitionSpec as P

import rltriton_jax as rtj
from rltriton_jax.scan.plain import scan
from rltriton_jax.scan.plain.chunks import MOST_STEPS, num_chunks

EPS = np.finfo(np.float32).eps
PLAIN = ("chunked_scan", "associative_scan", "scan")


@pytest.fixture
def chunks_of(monkeypatch):
    """Sets how many chunks there are; what was compiled with another number is forgotten."""

    def set_count(count):
        jax.clear_caches()
        monkeypatch.setattr(scan, "num_chunks", lambda shape: count)

    yield set_count
    monkeypatch.undo()
    jax.clear_caches()


def lowered(shape, implementation=None):
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    f = lambda x: rtj.gae(x, x, bootstrap_value=0.0, implementation=implementation).advantages
    return jax.jit(f).lower(x).as_text()


def loops(text):
    return text.count("stablehlo.while")


def test_few_environments_with_long_rows_are_taken_in_chunks_that_the_associative_scan_joins():
    text = lowered((3 * MOST_STEPS, 1))
    chunks = num_chunks((3 * MOST_STEPS, 1))
    assert chunks > 3 and loops(text) == 2 and f"tensor<{chunks}x{3 * MOST_STEPS // chunks}x1xf32>" in text
    assert f"tensor<{chunks // 2}x1x1xf32>" in text and f"tensor<{chunks // 4}x1x1xf32>" in text


@pytest.mark.parametrize("shape", [(16, 1), (2048, 1), (128, 4096), (MOST_STEPS, 64)])
def test_windows_of_a_learner_are_one_chunk(shape):
    assert num_chunks(shape) == 1 and loops(lowered(shape)) == 1


def test_the_names_mean_what_they_say():
    shape = (3 * MOST_STEPS, 1)
    assert loops(lowered(shape, "scan")) == 1 and "tensor<8x" not in lowered(shape, "scan")
    assert loops(lowered(shape, "associative_scan")) == 0
    assert lowered(shape, "chunked_scan") == lowered(shape)


@pytest.mark.parametrize("rows", [1, 2, 3, 64, 4096])
@pytest.mark.parametrize("steps", [MOST_STEPS, MOST_STEPS + 1, 40961, 10**6 + 3])
def test_no_chunk_is_longer_than_4096_steps(steps, rows):
    assert -(-steps // num_chunks((steps, rows))) <= MOST_STEPS


@pytest.mark.parametrize(("count", "steps"), [(2, 7), (3, 12), (5, 13)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_chunks_change_nothing(case, count, steps, chunks_of, rng):
    chunks_of(count)
    hyper = "scalar" if steps == 7 else "step"
    check(case, arguments(case, rng, steps, (3, 2), hyper=hyper), LAYOUTS[count % 3], "float32", "chunked_scan")


@pytest.mark.parametrize("case", [c for c in ESTIMATORS if c.name in ("gae", "retrace", "eligibility_traces")], ids=str)
def test_gradients_in_chunks_are_those_of_the_loop(case, chunks_of, rng):
    kwargs = arguments(case, rng, 11, (3,))
    floats = {k: v for k, v in kwargs.items() if getattr(v, "dtype", None) == np.float32}

    def gradient(implementation):
        def loss(floats):
            return sum(
                jnp.sum(y**2) for y in outputs(case.function(**{**kwargs, **floats}, implementation=implementation))
            )

        return jax.grad(loss)(floats)

    chunks_of(3)
    got, want = gradient("chunked_scan"), gradient("scan")
    for name in floats:
        scale = np.max(np.abs(want[name]))
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6 * scale, err_msg=name)


@pytest.mark.parametrize("cut", [3, 4, 7, 9])
@pytest.mark.parametrize("garbage", [np.nan, np.inf])
def test_garbage_behind_a_cut_crosses_no_edge_of_a_chunk(cut, garbage, chunks_of, rng):
    """Ten steps in three chunks: the cut is inside one, at its end, and at the start of the next."""
    chunks_of(3)
    rewards, values = rng.normal(size=(2, 10, 2)).astype("float32")
    done = np.zeros((10, 2), bool)
    done[cut] = True
    behind = (np.arange(10) > cut)[:, None]

    def advantages(rewards, values):
        return rtj.gae(rewards, values, done, bootstrap_value=0.0, implementation="chunked_scan").advantages[: cut + 1]

    bad = [np.where(behind, np.float32(garbage), x) for x in (rewards, values)]
    np.testing.assert_array_equal(advantages(*bad), advantages(rewards, values))
    gradient = jax.grad(lambda *xs: jnp.sum(advantages(*xs) ** 2), (0, 1))
    for got, want in zip(gradient(*bad), gradient(rewards, values)):
        np.testing.assert_array_equal(got[: cut + 1], want[: cut + 1])
        np.testing.assert_array_equal(got[cut + 1 :], 0)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("implementation", ["scan", None])
@pytest.mark.parametrize("spec", [P(None, "devices"), P("devices")], ids=["batch", "time"])
def test_loops_run_in_a_shard_map_that_checks_what_varies(implementation, spec, chunks_of, rng):
    chunks_of(3)
    mesh = jax.make_mesh((2,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    x = rng.normal(size=(10, 4)).astype("float32")

    def gradient(x):
        f = lambda x: rtj.linear_recurrence(jnp.float32(0.9), x, implementation=implementation)
        return f(x), jax.grad(lambda x: jnp.sum(f(x) ** 2))(x)

    parts = jax.shard_map(gradient, mesh=mesh, in_specs=spec, out_specs=(spec, spec), check_vma=True)(x)
    axis = 0 if spec[0] else 1
    want = [np.concatenate(ys, axis) for ys in zip(*(gradient(h) for h in np.split(x, 2, axis)))]
    for g, w in zip(parts, want):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
@pytest.mark.parametrize("case", ESTIMATORS, ids=str)
def test_devices_that_split_time_make_composites_of_chunks(case, chunks_of, rng):
    """Eleven steps a device in three chunks: the last one is filled up, which must not count in its composite."""
    chunks_of(3)
    kwargs = arguments(case, rng, 22, (2,), flags_kind="none")
    devices = jax.make_mesh((2,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    at = lambda x: jax.device_put(x, jax.sharding.NamedSharding(devices, P("devices"))) if len(np.shape(x)) > 1 else x
    f = partial(case.function, implementation="chunked_scan")
    arrays = {k: v for k, v in kwargs.items() if not isinstance(v, str | bool)}
    options = {k: v for k, v in kwargs.items() if k not in arrays}
    got = jax.jit(partial(f, **options))(**{k: at(v) for k, v in arrays.items()})
    for g, w in zip(outputs(got), outputs(f(**kwargs))):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


def test_a_million_equal_terms_are_summed_with_care():
    x = np.full((10**6, 1), 0.1, np.float32)
    want = np.arange(1, 10**6 + 1)[:, None] * np.float64(x[0, 0])
    error = lambda name: (
        np.max(np.abs(rtj.linear_recurrence(np.float32(1), x, implementation=name) - want) / want) / EPS
    )
    assert error(None) <= 1000 < error("scan")


def worst_error(implementation, weight, x):
    """In eps * scan, the scan being that of absolute values."""
    got = np.asarray(rtj.linear_recurrence(np.float32(weight), x, implementation=implementation), np.float64)
    state, scale, worst = 0.0, 0.0, 0.0
    for g, u in zip(got, x.astype(np.float64)):
        state, scale = u + np.float64(np.float32(weight)) * state, np.abs(u) + np.float64(np.float32(weight)) * scale
        worst = max(worst, np.max(np.abs(g - state) / scale))
    return worst / EPS


@pytest.mark.parametrize("implementation", PLAIN)
@pytest.mark.parametrize("weight", [0.5, 0.9, 0.99, 0.999, 1.0])
def test_the_error_is_4_eps_for_data_of_mean_zero_and_else_as_many_as_terms_count(implementation, weight, rng):
    steps = 2 * MOST_STEPS + 1
    assert worst_error(implementation, weight, rng.normal(size=(steps, 4)).astype("float32")) <= 4
    counting = steps if weight == 1 else min(steps, 1 / (1 - weight))
    assert worst_error(implementation, weight, np.full((steps, 4), 0.1, np.float32)) <= max(4, counting)
