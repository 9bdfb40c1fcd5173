"""Rollouts on several devices: what moves between them, and that nothing else changes."""

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, ESTIMATORS, MASKED, PER_STEP, SUMS, arguments, assert_close, outputs
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rltriton_jax as rtj
from rltriton_jax.bench import scaling
from rltriton_jax.bench.scaling import collectives
from rltriton_jax.scan.triton import plan, tiles

STEPS, ROWS = 32, 16
BATCH, TIME, BOTH = P(None, ("a", "b")), P(("a", "b"), None), P("a", "b")
KINDS = (AxisType.Auto, AxisType.Explicit)

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason=f"needs 8 devices, and there are {jax.device_count()}")


def mesh_of(kind=AxisType.Auto):
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind, kind))


def context(mesh):
    return jax.set_mesh(mesh) if AxisType.Explicit in mesh.axis_types else contextlib.nullcontext()


def place(kwargs, mesh, spec):
    """The arrays of `kwargs` on `mesh`, time and batch split as `spec` says; scalars as they are."""

    def at(name, x):
        if isinstance(x, str | bool) or np.ndim(x) == 0 or len(x) in (1, STEPS + 1):
            return x
        axes = spec if name in PER_STEP else P(spec[1])
        return jax.device_put(x, NamedSharding(mesh, axes))

    return {k: at(k, v) for k, v in kwargs.items()}


def split(kwargs):
    """Arrays, and what stays fixed: options and hyperparameters."""
    fixed = {k: v for k, v in kwargs.items() if isinstance(v, str | bool) or np.ndim(v) == 0}
    return {k: v for k, v in kwargs.items() if k not in fixed}, fixed


def forward(case, fixed, arrays):
    return outputs(case.function(**arrays, **fixed))


def backward(case, fixed, arrays):
    floats = {k: v for k, v in arrays.items() if v.dtype == np.float32}
    rest = {k: v for k, v in arrays.items() if k not in floats}
    return jax.grad(lambda f: sum(jnp.sum(o**2) for o in forward(case, fixed, {**f, **rest})))(floats)


def compiled(function, mesh, arrays):
    with context(mesh):
        return jax.jit(function).lower(arrays).compile()


def run(function, mesh, arrays):
    with context(mesh):
        return jax.jit(function)(arrays)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.parametrize("function", [forward, backward], ids=lambda f: f.__name__)
@pytest.mark.parametrize("case", [*ESTIMATORS, SUMS], ids=str)
def test_a_batch_on_eight_devices_moves_nothing(case, function, kind, rng):
    mesh = mesh_of(kind)
    arrays, fixed = split(place(arguments(case, rng, STEPS, (ROWS,)), mesh, BATCH))
    program = compiled(partial(function, case, fixed), mesh, arrays)
    assert collectives(program.as_text()) == []
    for x in jax.tree.leaves(program(arrays)):
        assert x.sharding.is_equivalent_to(NamedSharding(mesh, BATCH if x.ndim > 1 else P(("a", "b"))), x.ndim)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_actions_on_eight_devices_move_their_sums_only(kind, rng):
    mesh = mesh_of(kind)
    kwargs = arguments(SUMS, rng, STEPS, (ROWS,), actions=8)
    arrays, fixed = split(place(kwargs, mesh, P(None, None)))
    for name in ("next_q_values", "next_target_probs"):
        arrays[name] = jax.device_put(kwargs[name], NamedSharding(mesh, P(None, None, ("a", "b"))))
    program = compiled(partial(forward, SUMS, fixed), mesh, arrays)
    assert [(kind, n) for kind, n, _ in collectives(program.as_text())] == [("all-reduce", STEPS * ROWS)]
    assert_close(SUMS, program(arrays), kwargs)


@pytest.mark.parametrize("spec", [TIME, BOTH], ids=["time", "time and batch"])
@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
def test_split_time_moves_one_composite_a_row_and_single_rows(case, spec, rng):
    mesh = mesh_of()
    arrays, fixed = split(place(arguments(case, rng, STEPS, (ROWS,)), mesh, spec))
    program = compiled(partial(forward, case, fixed), mesh, arrays)
    shards, rows = (8, ROWS) if spec == TIME else (4, ROWS // 2)
    found = [(kind, elements) for kind, elements, _ in collectives(program.as_text())]
    assert [c for c in found if c[0] != "collective-permute"] == [("all-gather", 2 * rows * shards)]
    assert all(elements == rows for kind, elements in found if kind == "collective-permute")
    for x in jax.tree.leaves(program(arrays)):
        assert x.sharding.is_equivalent_to(NamedSharding(mesh, spec), x.ndim)


@pytest.mark.parametrize("spec", [TIME, BOTH], ids=["time", "time and batch"])
@pytest.mark.parametrize("case", [*CASES, *MASKED], ids=str)
def test_split_time_gives_the_reference(case, spec, rng):
    """Flags at random, and at both sides of every shard's edge in one row."""
    kwargs = arguments(case, rng, STEPS, (ROWS,))
    edges = [t for t in range(STEPS) if t % 4 in (3, 0)]
    for name in {"terminated", "truncated", "done"} & kwargs.keys():
        kwargs[name][edges, 0] = True
    mesh = mesh_of()
    arrays, fixed = split(place(kwargs, mesh, spec))
    assert_close(case, run(partial(forward, case, fixed), mesh, arrays), kwargs)


@pytest.mark.parametrize("hyper", ["batch", "step", "both"])
@pytest.mark.parametrize("case", [c for c in ESTIMATORS if c.hyperparameters], ids=lambda c: c.name)
def test_split_time_with_hyperparameters_of_every_shape(case, hyper, rng):
    kwargs = arguments(case, rng, STEPS, (ROWS,), hyper=hyper)
    data = {k: v for k, v in kwargs.items() if k not in case.hyperparameters}
    arrays, fixed = split({**kwargs, **place(data, mesh_of(), BOTH)})
    assert_close(case, run(partial(forward, case, fixed), mesh_of(), arrays), kwargs)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
def test_gradients_of_split_time_are_those_of_one_device(case, kind, rng):
    kwargs = arguments(case, rng, STEPS, (ROWS,))
    arrays, fixed = split(kwargs)
    want = jax.jit(partial(backward, case, fixed))(arrays)
    mesh = mesh_of(kind)
    got = run(partial(backward, case, fixed), mesh, place(arrays, mesh, BOTH))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5 * np.abs(w).max())


def test_gradients_of_split_time_gather_composites_and_rows_only(rng):
    case, mesh = CASES[0], mesh_of()
    arrays, fixed = split(place(arguments(case, rng, STEPS, (ROWS,)), mesh, TIME))
    found = collectives(compiled(partial(backward, case, fixed), mesh, arrays).as_text())
    assert [elements for kind, elements, _ in found if kind == "all-gather"] == [2 * ROWS * 8] * 2
    assert all(elements <= ROWS for kind, elements, _ in found if kind != "all-gather")


@pytest.mark.parametrize("split_over", ["batch", "time", "gathered"])
def test_the_cost_model_counts_what_the_compiled_program_moves(split_over):
    text = scaling.program(split_over, 8, ROWS, 64)
    assert scaling.received(text, 8) == scaling.expected(split_over, 8, ROWS, 64)


def test_one_step_a_device(rng):
    kwargs = arguments(CASES[0], rng, 8, (ROWS,), hyper="batch")
    mesh = mesh_of()
    place_step = {
        k: jax.device_put(v, NamedSharding(mesh, TIME)) for k, v in kwargs.items() if np.shape(v) == (8, ROWS)
    }
    arrays, fixed = split({**kwargs, **place_step})
    assert_close(CASES[0], run(partial(forward, CASES[0], fixed), mesh, arrays), kwargs)


@pytest.mark.interpreter
@pytest.mark.parametrize(
    "tile",
    [tiles.Tile(4, 2, 2, 1, chunks=2), tiles.Tile(4, 1, 4, 1, pieces=2)],
    ids=["several programs a row", "several pieces a row"],
)
def test_the_interpreted_kernel_splits_time_by_composites(tile, rng, monkeypatch):
    """Four devices along time, on each of which a row's composite is put together from parts."""
    kwargs = arguments(CASES[0], rng, STEPS, (ROWS,))
    mesh = mesh_of(AxisType.Explicit)
    arrays, fixed = split(place({**kwargs, "implementation": "interpret"}, mesh, BOTH))
    monkeypatch.setattr(plan, "choose_tile", lambda *_: tile)
    jax.clear_caches()
    assert_close(CASES[0], run(partial(forward, CASES[0], fixed), mesh, arrays), kwargs)
    jax.clear_caches()


@pytest.mark.interpreter
@pytest.mark.parametrize("function", [forward, backward], ids=lambda f: f.__name__)
def test_what_xla_splits_is_gathered_for_the_interpreter(function, rng):
    mesh = mesh_of(AxisType.Auto)
    arrays, fixed = split(arguments(CASES[0], rng, STEPS, (ROWS,)))
    want = jax.jit(partial(function, CASES[0], fixed))(arrays)
    got = run(partial(function, CASES[0], {**fixed, "implementation": "interpret"}), mesh, place(arrays, mesh, BOTH))
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5 * np.abs(w).max())


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("case", ESTIMATORS, ids=lambda c: c.name)
def test_in_a_users_shard_map_each_device_works_on_its_own(case, check_vma, kind, rng):
    arrays, fixed = split(arguments(case, rng, STEPS, (ROWS,)))
    want = jax.jit(partial(backward, case, fixed))(arrays)
    mesh = mesh_of(kind)
    specs = {k: BATCH if v.ndim > 1 else P(("a", "b")) for k, v in arrays.items()}
    out = {k: specs[k] for k in want}
    mapped = jax.shard_map(
        partial(backward, case, fixed), mesh=mesh, in_specs=(specs,), out_specs=out, check_vma=check_vma
    )
    placed = place(arrays, mesh, BATCH)
    program = compiled(mapped, mesh, placed)
    assert collectives(program.as_text()) == []
    for g, w in zip(jax.tree.leaves(program(placed)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5 * np.abs(w).max())


def test_in_a_shard_map_the_gradient_of_a_shared_hyperparameter_is_summed(rng):
    r, v = rng.normal(size=(2, STEPS, ROWS)).astype("float32")
    loss = lambda gamma, r, v: jnp.sum(rtj.gae(r, v, gamma=gamma, bootstrap_value=0.0).advantages ** 2)
    local = lambda gamma, r, v: jax.lax.psum(loss(gamma, r, v), ("a", "b"))
    mapped = jax.shard_map(local, mesh=mesh_of(), in_specs=(P(), BATCH, BATCH), out_specs=P())
    gamma = jnp.float32(0.9)
    np.testing.assert_allclose(jax.grad(mapped)(gamma, r, v), jax.grad(loss)(gamma, r, v), rtol=1e-4)


def test_a_vmapped_axis_can_be_a_mesh_axis(rng):
    mesh = mesh_of()
    r, v = rng.normal(size=(2, 4, STEPS, 8)).astype("float32")
    placed = [jax.device_put(x, NamedSharding(mesh, P("a", None, "b"))) for x in (r, v)]
    estimate = lambda r, v: rtj.gae(r, v, bootstrap_value=0.0)
    program = jax.jit(jax.vmap(estimate, spmd_axis_name="a")).lower(*placed).compile()
    assert collectives(program.as_text()) == []
    got = program(*placed)
    for i in range(4):
        assert_close(CASES[0], [x[i] for x in got], {"rewards": r[i], "values": v[i], "bootstrap_value": 0.0})


def test_steps_that_do_not_divide_are_gathered_with_a_warning(rng):
    split_in_four = NamedSharding(mesh_of(), P("a"))
    r, v = rng.normal(size=(2, 9, 4)).astype("float32")

    def estimate(r, v):
        return jax.lax.with_sharding_constraint(rtj.gae(r, v, bootstrap_value=0.0).advantages, split_in_four)

    with pytest.warns(
        UserWarning, match=r"4 devices along time do not divide 9 steps.* a multiple of that.*\(9, 4\) \{"
    ):
        got = jax.jit(estimate)(r, v)
    np.testing.assert_allclose(got, rtj.gae(r, v, bootstrap_value=0.0).advantages, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", [BATCH, BOTH], ids=["batch", "time and batch"])
def test_on_an_explicit_mesh_what_is_not_sharded_meets_what_is(spec, rng):
    """Among them arrays that the jitted function closes over, and a scan of those alone."""
    mesh = mesh_of(AxisType.Explicit)
    rewards, values = rng.normal(size=(2, STEPS, ROWS)).astype("float32")
    step = np.linspace(0.8, 0.9, STEPS, dtype="float32")[:, None]

    def function(sharded):
        both = rtj.gae(sharded, values, gamma=step, bootstrap_value=0.0).advantages
        neither = rtj.gae(rewards, values, gamma=step, bootstrap_value=0.0).advantages
        return both, neither

    want = rtj.gae(rewards, values, gamma=step, bootstrap_value=0.0).advantages
    with jax.set_mesh(mesh):
        for got in jax.jit(function)(jax.device_put(rewards, NamedSharding(mesh, spec))):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_on_an_explicit_mesh_features_and_their_axes_are_kept(rng):
    mesh = mesh_of(AxisType.Explicit)
    g, initial = rng.normal(size=(STEPS, ROWS, 3)).astype("float32"), rng.normal(size=(ROWS, 3)).astype("float32")
    done, gamma = rng.random((STEPS, ROWS)) < 0.2, rng.uniform(0.8, 1, ROWS).astype("float32")
    place = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
    with jax.set_mesh(mesh):
        got = rtj.eligibility_traces(
            place(g, "a", "b", None), place(done, "a", "b"), gamma=place(gamma, "b"), initial=place(initial, "b", None)
        )
        assert got.sharding.spec == P("a", "b", None)
    want = rtj.eligibility_traces(g, done, gamma=gamma, initial=initial)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_operands_with_two_shardings_on_an_explicit_mesh_are_an_error(rng):
    mesh = mesh_of(AxisType.Explicit)
    r, v = rng.normal(size=(2, STEPS, ROWS)).astype("float32")
    with jax.set_mesh(mesh), pytest.raises(ValueError, match="reshard"):
        rtj.gae(jax.device_put(r, P("a")), jax.device_put(v, P("b")), bootstrap_value=0.0)


def test_a_kernel_in_a_shard_map_over_some_axes_is_an_error(rng):
    x = jax.ShapeDtypeStruct((STEPS, ROWS), jnp.float32)
    mapped = jax.shard_map(
        lambda r, v: rtj.gae(r, v, bootstrap_value=0.0).advantages, mesh=mesh_of(),
        in_specs=(P(None, "a"),) * 2, out_specs=P(None, "a"), axis_names={"a"},
    )  # fmt: skip
    with rtj.lowering_for("sm_90"), pytest.raises(ValueError, match="map over all axes"):
        jax.jit(mapped).trace(x, x).lower(lowering_platforms=("cuda",))
