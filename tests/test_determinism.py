"""Same input, same bits: on every call and in every thread, under JAX's modes, whatever dtype a flag has."""

import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, ESTIMATORS, FLOATS, arguments, assert_close, outputs

import rltriton_jax as rtj
from rltriton_jax.scan.implementation import lowering_target

IMPLEMENTATIONS = ["scan", "chunked_scan", "associative_scan", "interpret"]
FEW = [case for case in ESTIMATORS if case.name in ("vtrace", "eligibility_traces")]
"""The heaviest and a forward one stand for all where what is tested is not theirs alone."""


def split(case, kwargs):
    floats = {k: jnp.asarray(v) for k, v in kwargs.items() if k in FLOATS or k in case.hyperparameters}
    return floats, {k: v for k, v in kwargs.items() if k not in floats}


def value_and_gradient(case, implementation=None):
    """A new function at each call, so that JAX traces and compiles it anew."""

    def run(floats, fixed):
        def loss(floats):
            results = outputs(case.function(**floats, **fixed, **dict(case.options), implementation=implementation))
            return sum(jnp.sum(x**2) for x in results), results

        gradients, results = jax.grad(loss, has_aux=True)(floats)
        return results, gradients

    return run


def inputs(case, rng, steps=7, **options):
    floats, fixed = split(case, arguments(case, rng, steps, **options))
    return floats, {k: v for k, v in fixed.items() if k not in dict(case.options)}


def assert_same_bits(got, want):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_array_equal(*(np.asarray(x).reshape(-1).view(np.uint8) for x in (g, w)))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", FEW, ids=lambda c: c.name)
def test_a_repeated_call_and_a_new_compilation_give_the_same_bits(case, implementation, rng):
    given = inputs(case, rng, 17)

    def new():
        run = value_and_gradient(case, implementation)
        return jax.jit(run)

    first = new()
    want = first(*given)
    assert_same_bits(first(*given), want)
    assert_same_bits(new()(*given), want)


def test_threads_that_compile_and_run_together_get_what_each_gets_alone(rng):
    """Of every estimator, in blocks of their own default implementation, and of one function at several shapes."""
    names = itertools.cycle(("scan", "chunked_scan", "associative_scan", None))
    jobs = [(value_and_gradient(case), name, inputs(case, rng, 3)) for case, name in zip(ESTIMATORS, names)]
    shared = jax.jit(lambda x: rtj.gae(x, x, bootstrap_value=0.0))
    jobs += [(shared, None, (rng.normal(size=(steps, 2)).astype("float32"),)) for steps in range(1, 8)]

    def run(job):
        function, name, given = job
        with rtj.default_implementation(name):
            return jax.jit(function)(*given)

    with ThreadPoolExecutor(len(jobs)) as pool:
        together = list(pool.map(run, jobs))
    jax.clear_caches()
    for job, got in zip(jobs, together, strict=True):
        assert_same_bits(got, run(job))


def test_a_block_of_lowering_for_is_its_threads_own():
    all_inside = Barrier(4)

    def seen(name):
        with rtj.lowering_for(name):
            all_inside.wait(60)
            return lowering_target("cuda")

    names = ["sm_80", "sm_90", "sm_100", "sm_120"]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(seen, names)) == names
        assert lowering_target("cuda") is None and pool.submit(lowering_target, "cuda").result() is None


@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
def test_without_jit_the_results_are_the_same(case, rng):
    kwargs = arguments(case, rng, 5)
    floats, fixed = split(case, kwargs)
    total = lambda x: sum(jnp.sum(o) for o in outputs(case.function(**x, **fixed)))
    want = jax.grad(total)(floats)
    with jax.disable_jit():
        assert_close(case, outputs(case.function(**kwargs)), kwargs)
        got = jax.grad(total)(floats)
    for name, g in got.items():
        np.testing.assert_allclose(g, want[name], rtol=1e-5, atol=1e-5, err_msg=name)


@contextlib.contextmanager
def loose_promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
def test_without_strict_promotion_and_where_float64_is_at_hand_nothing_is_widened(case, dtype, rng):
    """Neither an output nor a first or second derivative; all other tests run in strict modes."""
    given = arguments(case, rng, 5, dtype=dtype)
    floats, fixed = split(case, given)
    total = lambda x: sum(jnp.sum(o) for o in outputs(case.function(**x, **fixed)))

    def derivatives(x):
        return jax.jvp(jax.grad(total), (x,), (jax.tree.map(jnp.ones_like, x),))

    def run():
        return outputs(case.function(**given)), jax.jit(derivatives)(floats) if case in FEW else ()

    want = run()
    for mode in (loose_promotion(), jax.enable_x64(True)):
        with mode:
            got = run()
        assert {x.dtype.name for x in got[0]} == {dtype}
        assert_same_bits(got, want)


HYPERPARAMETERS = (1, True, 1.0, np.float64(1), np.float16(1), np.int64(1), np.bool_(True))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("implementation", ["chunked_scan", "interpret"])
def test_a_hyperparameter_may_have_any_dtype(implementation, x64, rng):
    r, v = rng.normal(size=(2, 6, 3)).astype("float32")
    call = lambda gamma: rtj.gae(r, v, bootstrap_value=0.5, gamma=gamma, implementation=implementation)
    want = call(np.float32(1))
    with jax.enable_x64(x64):
        for gamma in HYPERPARAMETERS:
            assert_same_bits(call(gamma), want)
        for dtype in ("int8", "uint8", "bfloat16", "float16"):
            assert_same_bits(call(jnp.ones(3, dtype)), want)


def _flag_dtypes():
    """Each dtype of a number or bool in which JAX itself tells 0 from 1."""
    kind = type(jnp.int8)
    named = {jnp.dtype(x) for x in vars(jnp).values() if isinstance(x, kind)}
    found = [d for d in named if any(jnp.issubdtype(d, k) for k in (jnp.floating, jnp.integer, jnp.bool_))]
    for dtype in sorted(found, key=str):
        with contextlib.suppress(Exception):  # JAX has names for dtypes that XLA does not run on a CPU
            flags = jax.device_put(np.arange(2).astype(dtype))
            told_apart = np.array_equal(jax.jit(lambda x: x.astype(jnp.float32))(flags), [0, 1])
            if flags.dtype == dtype and told_apart:
                yield dtype.name


FLAG_DTYPES = [*_flag_dtypes(), "int64", "uint64", "float64"]


@pytest.mark.parametrize("implementation", ["chunked_scan", "interpret"])
@pytest.mark.parametrize("dtype", FLAG_DTYPES)
def test_a_flag_may_have_any_dtype_that_holds_0_and_1(dtype, implementation, rng):
    kwargs = arguments(CASES[0], rng, 3)
    call = jax.jit(lambda **given: rtj.gae(**given, implementation=implementation))
    want = call(**kwargs)
    with jax.enable_x64(dtype.endswith("64")):
        flags = {k: jax.device_put(kwargs[k].astype(jnp.dtype(dtype))) for k in ("terminated", "truncated")}
        assert flags["terminated"].dtype == dtype
        assert_same_bits(call(**{**kwargs, **flags}), want)


def test_flags_of_four_and_two_bits_and_of_float8_are_among_those():
    assert {"bool", "int8", "int4", "uint4", "int2", "uint2", "float8_e4m3fn", "float8_e5m2"} <= {*FLAG_DTYPES}


@pytest.mark.parametrize("implementation", ["scan", "interpret"])
def test_minus_0_is_not_a_flag(implementation, rng):
    r = rng.normal(size=(4, 3)).astype("float32")
    zero = jnp.zeros((4, 3), jnp.bfloat16)
    got, want = (rtj.discounted_returns(r, flags, implementation=implementation) for flags in (-zero, zero))
    assert_same_bits(got, want)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_bfloat16_result_is_rounded_to_nearest_even(implementation):
    """A sum of two bfloat16 that is halfway, or no number, or so large that it rounds to Inf."""
    got = rtj.discounted_returns(jnp.asarray([1.0, 0.0069], jnp.bfloat16), gamma=1.0, implementation=implementation)
    assert float(got[0]) == 1.0078125
    two = jnp.asarray(
        [[1, 1.0078125, -1, 3.39e38, np.inf, np.nan, np.inf], [2**-8, 2**-8, -(2**-8), 1e36, 1, 1, -np.inf]]
    )
    two = two.astype(jnp.bfloat16)
    got = rtj.discounted_returns(two, gamma=1.0, implementation=implementation)[0]
    np.testing.assert_array_equal(got.astype(jnp.float32), [1, 1.015625, -1, np.inf, np.inf, np.nan, np.nan])
