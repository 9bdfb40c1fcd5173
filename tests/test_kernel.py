"""The Triton kernel against the reference: under Triton's interpreter here, compiled where there is a GPU."""

import contextlib
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    CASES,
    DTYPES,
    ESTIMATORS,
    FLAGS,
    LAYOUTS,
    MASKED,
    SUMS,
    WINDOWS,
    arguments,
    assert_close,
    check,
    outputs,
    window_id,
)
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rltriton_jax as rtj
from rltriton_jax.bench.scaling import collectives

pytest.importorskip("triton", reason="the kernel needs triton")

import ahead

from rltriton_jax.scan.primitive import affine_scan
from rltriton_jax.scan.recurrence import Read, Recurrence
from rltriton_jax.scan.triton import plan, tiles

KERNEL = [
    "interpret",
    pytest.param("triton", marks=pytest.mark.gpu),
]
BATCH = (2, 3)
CARRYING = [case for case in MASKED if case.name in ("vtrace", "retrace")]
KERNEL_WINDOWS = [w for w in WINDOWS if w[0] in ESTIMATORS or w[2] == "time_major"]


@pytest.mark.parametrize("implementation", KERNEL)
@pytest.mark.parametrize("window", KERNEL_WINDOWS, ids=window_id)
def test_the_kernel_matches_the_reference(window, implementation, rng):
    case, steps, layout = window
    for kind in FLAGS if steps < 100 or implementation == "triton" else ("random",):
        check(case, arguments(case, rng, steps, BATCH, flags_kind=kind), layout, "float32", implementation)


@pytest.mark.parametrize("implementation", KERNEL)
@pytest.mark.parametrize("layout", ["time_major", "batch_major"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
def test_the_kernel_in_every_dtype(case, dtype, layout, implementation, rng):
    with jax.enable_x64(dtype == "float64"):
        check(case, arguments(case, rng, 129, (2,), dtype=dtype), layout, dtype, implementation)


@pytest.mark.parametrize("implementation", KERNEL)
@pytest.mark.parametrize("hyper", ["batch", "step", "both"])
@pytest.mark.parametrize("case", [c for c in ESTIMATORS if c.hyperparameters], ids=lambda c: c.name)
def test_the_kernel_reads_hyperparameters_of_every_shape(case, hyper, implementation, rng):
    for layout in LAYOUTS:
        check(case, arguments(case, rng, 9, BATCH, hyper=hyper), layout, "float32", implementation)


@pytest.mark.parametrize("implementation", KERNEL)
@pytest.mark.parametrize("flag_dtype", [bool, "int8", "int32", "float32", "bfloat16"])
def test_the_kernel_reads_flags_as_they_are(flag_dtype, implementation, rng):
    kwargs = arguments(CASES[0], rng, 20)
    cast = {k: jnp.asarray(v, flag_dtype) if k in ("terminated", "truncated") else v for k, v in kwargs.items()}
    assert_close(CASES[0], outputs(rtj.gae(**cast, implementation=implementation)), kwargs)


@pytest.mark.parametrize("implementation", KERNEL)
@pytest.mark.parametrize("layout", ["time_major", "batch_major"])
@pytest.mark.parametrize("actions", [1, 2, 3, 4, 6, 8, 16, 17])
def test_the_kernel_sums_over_any_number_of_actions(actions, layout, implementation, rng):
    for dtype in ("float32", "bfloat16"):
        check(SUMS, arguments(SUMS, rng, 20, (5,), actions=actions, dtype=dtype), layout, dtype, implementation)


@pytest.mark.parametrize("implementation", KERNEL)
def test_the_kernels_sum_leaves_out_what_has_no_probability(implementation, rng):
    kwargs = arguments(SUMS, rng, 20)
    left_out = rng.random(kwargs["next_q_values"].shape) < 0.3
    kwargs["next_target_probs"] = np.where(left_out, np.float32(0), kwargs["next_target_probs"])
    want = outputs(rtj.retrace(**kwargs, implementation=implementation))
    for garbage in (np.nan, np.inf):
        bad = {**kwargs, "next_q_values": np.where(left_out, np.float32(garbage), kwargs["next_q_values"])}
        for g, w in zip(outputs(rtj.retrace(**bad, implementation=implementation)), want, strict=True):
            np.testing.assert_array_equal(g, w)


SPLITS = {
    "chunks": tiles.Tile(2, 4, 2, 1, chunks=9),
    "pieces": tiles.Tile(4, 2, 4, 1, pieces=9),
    "to the last step": tiles.Tile(4, 2, 4, 1, pieces=8),
    "several vectors": tiles.Tile(2, 8, 16, 1),
    "several vectors to the last step": tiles.Tile(2, 4, 16, 1),
    "an odd number of slices": tiles.Tile(2, 16, 5, 1),
}


@pytest.fixture(params=SPLITS)
def tile(request, monkeypatch):
    """The kernel's tile, whatever it scans."""
    tile = SPLITS[request.param]
    monkeypatch.setattr(plan, "choose_tile", lambda *_: tile)
    jax.clear_caches()
    yield tile
    jax.clear_caches()


@pytest.mark.parametrize("implementation", KERNEL)
@pytest.mark.parametrize("layout", ["time_major", "batch_major"])
@pytest.mark.parametrize("case", [*ESTIMATORS, SUMS, *CARRYING], ids=str)
def test_every_kind_of_tile_gives_the_same_result(case, layout, tile, implementation, rng):
    kwargs = arguments(case, rng, min(67, tile.steps))
    check(case, kwargs, layout, "float32", implementation)


class NearReads(NamedTuple):
    input: Any
    value: Any
    there: Any


def near(s):
    return 0.5 * s.value, s.input + s.there


@pytest.mark.parametrize("implementation", KERNEL)
@pytest.mark.parametrize("shift", [1, -1])
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_every_kind_of_tile_reads_both_neighbours_and_the_rows_beyond(axis, reverse, shift, tile, implementation, rng):
    reads = NearReads(input=Read("inputs"), value=Read("values"), there=Read("values", shift, "beyond"))
    recurrence = Recurrence(("inputs", "values", "beyond"), reads, near, reverse=reverse)
    for steps in {min(tile.steps, s) for s in (64, 65, 66, 67)}:  # the last is each of four in turn
        inputs, values = rng.normal(size=(2, steps, 3)).astype("float32")
        beyond = rng.normal(size=(1, 3)).astype("float32")
        arrays = [jnp.asarray(np.moveaxis(x, 0, axis)) for x in (inputs, values.astype("float16"), beyond)]
        got, want = (
            affine_scan(recurrence, arrays, time_axis=axis, dtype="float32", implementation=i)[0]
            for i in (implementation, "scan")
        )
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_a_thread_may_have_the_registers_of_its_tile(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # jax_triton 0.3 leaves it empty, which triton refuses
    x, d = jax.ShapeDtypeStruct((128, 4096), jnp.float32), jax.ShapeDtypeStruct((128, 4096), jnp.bool_)
    (eqn,) = ahead.equations(rtj.discounted_returns, x, d)
    for registers in (40, 0):
        compiled, _ = ahead.compile_scan(eqn, "sm_90", tiles.Tile(16, 16, 8, 8, registers=registers))
        assert re.findall(r"\.maxnreg (\d+)", compiled.asm["ptx"]) == [str(registers)] * (registers > 0)


@pytest.mark.parametrize("steps, rows", [(4096, 512), (131072, 8)])
def test_threads_keep_what_they_load_where_rows_adjoin_and_time_is_split(steps, rows, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # jax_triton 0.3 leaves it empty, which triton refuses
    x = jax.ShapeDtypeStruct((steps, rows), jnp.float32)
    (eqn,) = ahead.equations(rtj.eligibility_traces, x, x)
    compiled, tile = ahead.compile_scan(eqn, "sm_90")
    assert tile.chunks > 1
    assert compiled.asm["ttgir"].count("ttg.convert_layout") < tile.slices


@pytest.mark.parametrize("implementation", KERNEL)
def test_garbage_stays_out_of_the_kernels_outputs(implementation, rng):
    kwargs = arguments(CASES[0], rng, 40)
    kwargs["terminated"][20] = True
    bad = {k: np.array(v) for k, v in kwargs.items() if np.ndim(v)}
    for name in ("rewards", "values", "final_values"):
        bad[name][21:] = np.nan
    got = rtj.gae(**{**kwargs, **bad}, implementation=implementation)
    want = rtj.gae(**kwargs, implementation=implementation)
    np.testing.assert_array_equal(got.advantages[:21], want.advantages[:21])


@pytest.mark.parametrize("implementation", KERNEL)
def test_derivatives_through_the_kernel_match_the_plain_scan(implementation, rng):
    r, v, log_rhos = rng.normal(size=(3, 30, 4)).astype("float32")
    done = rng.random((30, 4)) < 0.1

    def loss(r, v, log_rhos, gamma, implementation):
        estimate = rtj.vtrace(
            r, v, log_rhos, done, gamma=gamma, clip_c=1.3, implementation=implementation, bootstrap_value=0.0
        )
        return jnp.sum(estimate.advantages**2) + jnp.sum(estimate.targets)

    arguments = (r, v, log_rhos, jnp.float32(0.9))
    for derivative in (lambda f: jax.grad(f, (0, 1, 2, 3)), lambda f: jax.grad(jax.grad(f, 3), 3)):
        got = derivative(lambda *a: loss(*a, implementation))(*arguments)
        want = derivative(lambda *a: loss(*a, "scan"))(*arguments)
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-4 * np.abs(w).max())


def total(f):
    return lambda x: sum(jnp.sum(o**2) for o in f(x))


def tangent(f):
    return lambda x: jax.jvp(f, (x,), (jax.tree.map(jnp.ones_like, x),))[1]


def two(x):
    return jax.tree.map(lambda a: jnp.stack([a, 0.9 * a]), x)


TRANSFORMS = {
    "jvp": tangent,
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": lambda f: jax.hessian(total(f)),
    "gradient, checkpointed": lambda f: jax.grad(jax.checkpoint(total(f))),
    "gradient of vmap": lambda f: lambda x: jax.grad(lambda x: jnp.sum(jax.vmap(total(f))(x)))(two(x)),
    "vmap of gradient": lambda f: lambda x: jax.vmap(jax.grad(total(f)))(two(x)),
}


@pytest.mark.parametrize("implementation", KERNEL)
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
def test_every_derivative_of_every_float_argument_is_that_of_the_plain_scan(case, name, implementation, rng):
    if implementation == "interpret" and case.name not in ("vtrace", "eligibility_traces"):
        pytest.skip("the interpreter is slow; the heaviest and a forward one stand for all")
    kwargs = arguments(case, rng, 3, (2,))
    floats = {k: jnp.asarray(v) for k, v in kwargs.items() if getattr(v, "dtype", None) == np.float32}
    rest = {k: v for k, v in kwargs.items() if k not in floats}

    def derivative(implementation):
        return TRANSFORMS[name](lambda x: outputs(case.function(**x, **rest, implementation=implementation)))(floats)

    got, want = jax.tree.leaves(derivative(implementation)), jax.tree.leaves(derivative("scan"))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-3 * max(1.0, float(jnp.abs(w).max())))


@pytest.mark.parametrize("implementation", KERNEL)
def test_a_sweep_of_hyperparameters_through_the_kernel(implementation, rng):
    r, v = rng.normal(size=(2, 12, 3)).astype("float32")
    gammas = jnp.linspace(0.8, 0.99, 4)
    for axis in (0, 1):
        given = {"bootstrap_value": 0.5, "time_axis": axis}
        estimate = lambda e, given=given: e(r, v, implementation=implementation, **given).advantages
        swept = jax.vmap(estimate, in_axes=(rtj.GAE(0, None),))(rtj.GAE(gammas, 0.9))
        for g, row in zip(gammas, swept):
            want = rtj.gae(r, v, gamma=g, lambda_=0.9, **given).advantages
            np.testing.assert_allclose(row, want, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_a_gpu_runs_the_kernel_by_default(rng):
    r, v = rng.normal(size=(2, 12, 3)).astype("float32")
    text = jax.jit(lambda r, v: rtj.gae(r, v, bootstrap_value=0.0).advantages).lower(r, v).compile().as_text()
    assert text.count('custom_call_target="triton_kernel_call') == 1 and " while(" not in text


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape", [(128, 4096), (512, 16384), (4096, 512), (8192, 64), (32, 65536), (131072, 8), (70000, 1)]
)
@pytest.mark.parametrize("time_axis", [0, 1])
def test_large_windows_on_a_gpu_match_the_sequential_scan(shape, time_axis, rng):
    placed = shape if time_axis == 0 else shape[::-1]
    r, v, log_rhos = rng.normal(size=(3, *placed)).astype("float32")
    q, p = rng.random(size=(2, *placed, 4), dtype="float32")
    done = rng.random(placed) < 0.02
    for call in (
        lambda **k: rtj.gae(r, v, done, time_axis=time_axis, bootstrap_value=0.0, **k),
        lambda **k: rtj.vtrace(r, v, log_rhos, done, time_axis=time_axis, bootstrap_value=0.0, **k),
        lambda **k: rtj.retrace(r, v, log_rhos, done, next_state_values=v, time_axis=time_axis, **k),
        lambda **k: rtj.retrace(r, v, log_rhos, done, next_q_values=q, next_target_probs=p, time_axis=time_axis, **k),
        lambda **k: rtj.eligibility_traces(r, done, time_axis=time_axis, **k),
    ):
        for g, w in zip(jax.tree.leaves(call()), jax.tree.leaves(call(implementation="associative_scan"))):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=2e-4)
            assert jnp.isfinite(g).all()


@pytest.mark.gpu
def test_offsets_past_2_to_the_31_elements(rng):
    steps, rows = 2, 2**30 + 64
    x = jax.random.normal(jax.random.key(0), (steps, rows), jnp.bfloat16)
    got = rtj.episodic_prefix_sum(x)
    np.testing.assert_array_equal(np.asarray(got[1, -1000:]), np.asarray(x[0, -1000:] + x[1, -1000:]))


@pytest.mark.gpu
def test_a_sweep_on_a_gpu_needs_its_outputs_and_one_rollout():
    r = jax.ShapeDtypeStruct((512, 1024), jnp.float32)
    gammas = jax.ShapeDtypeStruct((32,), jnp.float32)
    sweep = jax.jit(lambda g, r, v: jax.vmap(lambda g: rtj.gae(r, v, gamma=g, bootstrap_value=0.0).advantages)(g))
    memory = sweep.lower(gammas, r, r).compile().memory_analysis()
    assert memory.argument_size_in_bytes < 2 * 4 * r.size + 4096
    assert memory.output_size_in_bytes < 32 * 4 * r.size + 4096
    assert memory.temp_size_in_bytes < 4 * r.size


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=lambda k: k.name)
@pytest.mark.parametrize("spec", [P(None, "gpus"), P("gpus", None)], ids=["batch", "time"])
@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
def test_several_gpus_share_a_rollout(case, spec, kind, rng):
    count = jax.device_count()
    if count < 2:
        pytest.skip("needs two GPUs, and there is one")
    kwargs = arguments(case, rng, 16 * count, (8 * count,))
    mesh = jax.make_mesh((count,), ("gpus",), axis_types=(kind,))
    shape = (16 * count, 8 * count)
    place = lambda x, s: jax.device_put(x, NamedSharding(mesh, s))
    arrays = {k: place(v, spec if np.shape(v) == shape else P(spec[1])) for k, v in kwargs.items() if np.ndim(v)}
    fixed = {k: v for k, v in kwargs.items() if k not in arrays}
    with jax.set_mesh(mesh) if kind == AxisType.Explicit else contextlib.nullcontext():
        program = jax.jit(lambda a: outputs(case.function(**a, **fixed))).lower(arrays).compile()
    text = program.as_text()
    assert "triton_kernel_call" in text
    assert_close(case, [np.asarray(x) for x in program(arrays)], kwargs)
    largest = max((elements for _, elements, _ in collectives(text)), default=0)
    assert largest <= (0 if spec[0] is None else 2 * count * shape[1])
