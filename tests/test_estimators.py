"""Every estimator against its float64 reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, DTYPES, ESTIMATORS, FLAGS, LAYOUTS, WINDOWS, arguments, assert_close, check, outputs, window_id

BATCH = (2, 3)


@pytest.mark.parametrize("window", WINDOWS, ids=window_id)
def test_every_flag_pattern_matches_the_reference_in_every_layout(window, rng):
    case, steps, layout = window
    for kind in FLAGS:
        check(case, arguments(case, rng, steps, BATCH, flags_kind=kind), layout, "float32", None)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_sequential_scan_matches_the_reference(case, layout, rng):
    for kind in FLAGS:
        check(case, arguments(case, rng, 129, BATCH, flags_kind=kind), layout, "float32", "scan")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("steps", [1, 129, 1000])
@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
def test_every_dtype_keeps_its_dtype_and_bound(case, steps, dtype, rng):
    with jax.enable_x64(dtype == "float64"):
        check(case, arguments(case, rng, steps, BATCH, dtype=dtype), "time_major", dtype, None)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("hyper", ["batch", "step", "both"])
@pytest.mark.parametrize("case", [c for c in CASES if c.hyperparameters], ids=str)
def test_hyperparameters_broadcast_per_environment_and_per_step(case, hyper, layout, rng):
    check(case, arguments(case, rng, 5, BATCH, hyper=hyper), layout, "float32", None)


@pytest.mark.parametrize("flag_dtype", [bool, "int8", "uint8", "int32", "float32", "bfloat16"])
@pytest.mark.parametrize("case", ESTIMATORS[:-1], ids=lambda c: c.name)
def test_flags_of_any_dtype_mean_the_same(case, flag_dtype, rng):
    kwargs = arguments(case, rng, 7)
    cast = {k: jnp.asarray(v, flag_dtype) if k in ("terminated", "truncated", "done") else v for k, v in kwargs.items()}
    for a, b in zip(outputs(case.function(**kwargs)), outputs(case.function(**cast))):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
@pytest.mark.parametrize("shape", [(5,), (5, 0), (0, 3), (5, 2, 2, 2)])
def test_any_number_of_batch_axes_and_empty_ones(case, shape, rng):
    kwargs = arguments(case, rng, shape[0], shape[1:])
    assert_close(case, outputs(case.function(**kwargs)), kwargs)


@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
def test_a_row_of_the_batch_does_not_change_the_others(case, rng):
    kwargs = arguments(case, rng, 9, (4,))
    name = case.required[0]
    other = {**kwargs, name: np.concatenate([kwargs[name][:, :3], kwargs[name][:, 3:] + 1], 1)}
    for a, b in zip(outputs(case.function(**kwargs)), outputs(case.function(**other))):
        np.testing.assert_array_equal(a[:, :3], b[:, :3])
        assert not np.array_equal(a[:, 3], b[:, 3])


def test_traces_and_sums_take_feature_axes(rng):
    from cases import Case, reference

    import rltriton_jax as rtj

    for name in ("eligibility_traces", "episodic_prefix_sum"):
        case = Case(name, getattr(rtj, name), getattr(reference, name), (), {})
        kwargs = {"done": rng.random((6, 3)) < 0.3, "initial": rng.normal(size=(3, 2, 4)).astype("float32")}
        data = rng.normal(size=(6, 3, 2, 4)).astype("float32")
        first = "gradients" if name == "eligibility_traces" else "inputs"
        extra = {"gamma": rng.random(3).astype("float32"), "lambda_": np.float32(0.8)} if first == "gradients" else {}
        kwargs = {first: data, **kwargs, **extra}
        assert_close(case, outputs(case.function(**kwargs)), kwargs)


def test_bfloat16_sums_are_carried_in_float32():
    import rltriton_jax as rtj

    total = rtj.episodic_prefix_sum(jnp.ones((1000, 1), jnp.bfloat16))
    assert total.dtype == jnp.bfloat16 and float(total[-1, 0]) == 1000.0
