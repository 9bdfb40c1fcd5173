"""Whatever sharding XLA hands over, the scan gives what one device gives."""

import contextlib
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ESTIMATORS, MASKED, SUMS, arguments, outputs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rltriton_jax as rtj
from rltriton_jax.bench.scaling import collectives
from rltriton_jax.scan.plain import partials
from rltriton_jax.scan.sharding import devices
from rltriton_jax.scan.sharding.split import split_by_xla
from rltriton_jax.scan.triton import launch

STEPS, ROWS = 16, 8
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
KINDS = ((AUTO, AUTO), (EXPLICIT, EXPLICIT), (AUTO, EXPLICIT), (EXPLICIT, AUTO))
PLAIN = (None, "scan", "associative_scan", "chunked_scan")
IMPLEMENTATIONS = (*PLAIN, "interpret")

pytestmark = [
    pytest.mark.skipif(jax.device_count() < 8, reason=f"needs 8 devices, and there are {jax.device_count()}"),
    pytest.mark.filterwarnings("error:A scan gathers"),
]

every_mesh = pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: "-".join(k.name for k in kinds))


def mesh_of(kinds=KINDS[0]):
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=kinds)


def gae(rewards, values, implementation=None):
    return rtj.gae(rewards, values, bootstrap_value=0.0, implementation=implementation)


def squares(rewards, values, implementation=None):
    return sum(jnp.sum(x**2) for x in gae(rewards, values, implementation))


def total(rewards, values, implementation=None):
    """Its cotangent is a constant, of which nothing says where it is."""
    return gae(rewards, values, implementation).advantages.sum()


FUNCTIONS = {"forward": gae, "backward": jax.grad(squares, (0, 1)), "constant cotangent": jax.grad(total, (0, 1))}
every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def rollout(rng, steps=STEPS):
    return rng.normal(size=(2, steps, ROWS)).astype("float32")


def assert_same(got, want):
    got, want = map(jax.tree.leaves, (got, want))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5 * max(1, np.max(np.abs(w), initial=0)))


@every_mesh
@every_function
@pytest.mark.parametrize("given", ["NumPy", "made before", "no arguments", "one of them placed"])
def test_arrays_that_are_not_on_the_mesh(given, function, kinds, rng):
    r, v = rollout(rng)
    want = jax.jit(function)(r, v)
    made_before = jnp.asarray(r), jnp.asarray(v)
    mesh = mesh_of(kinds)
    with jax.set_mesh(mesh):
        if given == "no arguments":
            got = jax.jit(lambda: function(r, v))()
        elif given == "one of them placed":
            got = jax.jit(function)(jax.device_put(r, NamedSharding(mesh, P("a", "b"))), v)
        else:
            got = jax.jit(function)(*((r, v) if given == "NumPy" else made_before))
    assert_same(got, want)


@every_mesh
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_implementation_takes_arrays_off_and_on_the_mesh(implementation, kinds, rng):
    r, v = rollout(rng)
    function = partial(FUNCTIONS["backward"], implementation=implementation)
    mesh = mesh_of(kinds)
    with jax.set_mesh(mesh):
        got = jax.jit(function)(jax.device_put(r, NamedSharding(mesh, P("a", "b"))), v)
    assert_same(got, FUNCTIONS["backward"](r, v))


@every_mesh
def test_an_eager_call_outside_set_mesh(kinds, rng):
    r, v = rollout(rng)
    assert_same(gae(jax.device_put(r, NamedSharding(mesh_of(kinds), P("a", "b"))), v), gae(r, v))


@every_mesh
@pytest.mark.parametrize("name", ["lambda_returns", "discounted_returns", "retrace"])
def test_a_derivative_outside_set_mesh_of_what_reads_where_the_scan_starts(name, kinds, rng):
    case = next(case for case in ESTIMATORS if case.name == name)
    kwargs = arguments(case, rng, STEPS, (ROWS,))
    main = case.required[0]
    gradient = jax.grad(lambda x: sum(jnp.sum(y**2) for y in outputs(case.function(**{**kwargs, main: x}))))
    placed = jax.device_put(kwargs[main], NamedSharding(mesh_of(kinds), P("a")))
    assert_same(jax.jit(gradient)(placed), gradient(kwargs[main]))


@pytest.mark.parametrize("spec", [P("a"), P(None, "a")], ids=["time", "batch"])
def test_an_explicit_axis_of_one_device_along_an_axis_of_size_1(spec, rng):
    """It is in the types, and one operand has it while the rest have not."""
    kwargs = arguments(SUMS, rng, 1, (1,))
    mesh = jax.make_mesh((1, 8), ("a", "b"), axis_types=(EXPLICIT, EXPLICIT))

    def loss(probs):
        return sum(jnp.sum(x**2) for x in outputs(SUMS.function(**{**kwargs, "next_target_probs": probs})))

    probs = kwargs["next_target_probs"]
    with jax.set_mesh(mesh):
        got = jax.jit(jax.grad(loss))(jax.device_put(probs, NamedSharding(mesh, spec)))
    assert_same(got, jax.grad(loss)(probs))


@every_function
def test_under_the_old_context_of_a_mesh(function, rng):
    r, v = rollout(rng)
    want = jax.jit(function)(r, v)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with mesh_of():
            got = jax.jit(function)(r, v)
    assert_same(got, want)


@every_function
def test_a_reshape_that_splits_unevenly(function, rng):
    """120 numbers in 8 parts of 15, as 15 rows of 8 and as 12 of 10."""
    for shape in ((15, 8), (12, 10)):
        flat = rng.normal(size=(2, 120)).astype("float32")
        on_rows = lambda r, v, shape=shape: function(r.reshape(shape), v.reshape(shape))
        placed = [jax.device_put(x, NamedSharding(mesh_of(), P(("a", "b")))) for x in flat]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "A scan gathers")
            got = jax.jit(on_rows)(*placed)
        assert_same(got, on_rows(*flat))


@pytest.mark.parametrize("kinds", [(AUTO, AUTO), (AUTO, EXPLICIT)], ids=["auto", "mixed"])
@pytest.mark.parametrize("function", [gae, FUNCTIONS["backward"]], ids=["forward", "backward"])
def test_steps_that_the_devices_do_not_divide_are_gathered_with_a_warning(function, kinds, rng):
    r, v = rollout(rng, 9)
    mesh = mesh_of(kinds)

    def constrained(r, v):
        return function(*(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("a"))) for x in (r, v)))

    with jax.set_mesh(mesh), pytest.warns(UserWarning, match="4 devices along time do not divide 9 steps; make"):
        got = jax.jit(constrained)(r, v)
    assert_same(got, function(r, v))


@pytest.mark.parametrize("kinds", KINDS[2:], ids=lambda kinds: "-".join(k.name for k in kinds))
@every_function
def test_a_batch_on_a_mixed_mesh_moves_nothing(function, kinds, rng):
    mesh = mesh_of(kinds)
    names = ("a", "b") if kinds[0] == EXPLICIT else ("b", "a")  # as JAX has them: explicit axes first
    placed = [jax.device_put(x, NamedSharding(mesh, P(None, names))) for x in rollout(rng)]
    with jax.set_mesh(mesh):
        program = jax.jit(function).lower(*placed).compile()
    assert collectives(program.as_text()) == []
    assert_same(program(*placed), function(*map(np.asarray, placed)))


@every_mesh
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("axis", ["a", "b"])
@every_function
def test_in_a_shard_map_over_one_axis_of_the_mesh(function, axis, check_vma, kinds, rng):
    """XLA may split over the other one."""
    r, v = rollout(rng)
    mesh = mesh_of(kinds)
    spec = P(None, axis)
    mapped = jax.shard_map(
        lambda r, v: tuple(function(r, v)), mesh=mesh, in_specs=spec, out_specs=spec, axis_names={axis},
        check_vma=check_vma,
    )  # fmt: skip
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x in (r, v)]
    with jax.set_mesh(mesh):
        assert_same(jax.jit(mapped)(*placed), function(r, v))


@every_mesh
def test_the_first_derivative_of_all_may_be_inside_a_shard_map_over_one_axis(kinds, rng):
    """What is known of an algebra once and for all is then found out there."""
    r, v = rollout(rng)
    mesh, spec = mesh_of(kinds), P(None, "a")
    mapped = jax.shard_map(
        lambda r, v: FUNCTIONS["backward"](r, v), mesh=mesh, in_specs=spec, out_specs=spec, axis_names={"a"}
    )
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x in (r, v)]
    for known in (partials._constant, partials._moving_arguments):
        known.cache_clear()
    with jax.set_mesh(mesh):
        assert_same(jax.jit(mapped)(*placed), FUNCTIONS["backward"](r, v))


@every_mesh
@pytest.mark.parametrize("rest", [P(None, "b"), P("b")], ids=["batch", "time"])
def test_a_vmapped_axis_can_be_an_axis_of_any_mesh(rest, kinds, rng):
    mesh = mesh_of(kinds)
    r, v = rng.normal(size=(2, 4, STEPS, ROWS)).astype("float32")
    placed = [jax.device_put(x, NamedSharding(mesh, P("a", *rest))) for x in (r, v)]
    for function in FUNCTIONS.values():
        with jax.set_mesh(mesh):
            got = jax.jit(jax.vmap(function, spmd_axis_name="a"))(*placed)
        assert_same(got, jax.vmap(function)(r, v))


@pytest.mark.parametrize("implementation", PLAIN)
def test_in_a_pmap(implementation, rng):
    r, v = rollout(rng)
    for function in FUNCTIONS.values():
        mapped = jax.pmap(partial(function, implementation=implementation), in_axes=1, out_axes=1)
        assert_same(mapped(r, v), function(r, v))


def test_what_no_mesh_describes_is_gathered_with_a_warning(rng, monkeypatch):
    r, v = rollout(rng)
    monkeypatch.setattr(devices, "split_by_xla", lambda *_: None)
    placed = [jax.device_put(x, NamedSharding(mesh_of(), P(None, "a"))) for x in (r, v)]
    with pytest.warns(UserWarning, match=r"in an order that no mesh has.*Operands: \(16, 8\) \{devices"):
        assert_same(jax.jit(lambda r, v: gae(r, v))(*placed), gae(r, v))


@every_mesh
@every_function
@pytest.mark.parametrize("time", [("a", "b"), ("b", "a")], ids="-".join)
def test_time_split_over_the_axes_of_a_mesh_in_either_order(time, function, kinds, rng):
    r, v = rollout(rng)
    mesh = mesh_of(kinds)
    with jax.set_mesh(mesh):
        got = jax.jit(function)(*(jax.device_put(x, NamedSharding(mesh, P(time))) for x in (r, v)))
    assert_same(got, function(r, v))


@pytest.mark.parametrize("time", [("a", "b"), ("b", "a")], ids="-".join)
def test_time_split_over_a_mesh_whose_axes_another_thread_has_entered_the_other_way_round(time, rng):
    """JAX shares what it knows of axes between threads, in the order in which they were first entered."""
    r, v = rollout(rng)
    mesh = mesh_of(KINDS[1])
    placed = [jax.device_put(x, NamedSharding(mesh, P(time))) for x in (r, v)]

    def elsewhere():
        with jax.set_mesh(mesh):
            return jax.jit(FUNCTIONS["backward"])(*placed)

    found = []

    def over_a(x):
        with ThreadPoolExecutor(1) as pool:
            found.append(pool.submit(elsewhere).result())
        return x

    def over_b(x):
        return jax.shard_map(over_a, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})(x)

    with jax.set_mesh(mesh):
        ones = jax.device_put(jnp.ones((4, 2)), NamedSharding(mesh, P("a", "b")))
        nested = jax.shard_map(over_b, in_specs=P(None, "b"), out_specs=P(None, "b"), axis_names={"b"})
        jax.block_until_ready(jax.jit(nested)(ones))
    assert_same(found[0], FUNCTIONS["backward"](r, v))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_mesh_is_read_off_device_numbers(order):
    """Whatever axes of a mesh an axis of the data has, in whatever order, and copies over the rest."""
    names = np.array(["x", "y", "z"])[list(order)]
    mesh = jax.make_mesh((2, 2, 2), ("x", "y", "z"), axis_types=(AUTO,) * 3)
    for spec in (
        P(*names),
        P(None, tuple(names)),
        P(names[0]),
        P(None, tuple(names[:2])),
        P(tuple(names[1:]), names[0]),
    ):
        wanted = NamedSharding(mesh, spec)
        split = split_by_xla(wanted, 3, 8)
        assert split is not None
        shape = (8, 8, 8)
        found = NamedSharding(jax.sharding.Mesh(mesh.devices.reshape(split.mesh.axis_sizes), split.mesh.axis_names),
                              split.sharding(shape).spec)  # fmt: skip
        assert found.devices_indices_map(shape) == wanted.devices_indices_map(shape)


SIZES = (1, 2, 3, 4, 6, 8, 9, 16)


@st.composite
def meshes(draw):
    sizes = draw(st.sampled_from([(8,), (4,), (4, 2), (2, 4), (2, 2), (1, 8), (2, 2, 2), (2, 1, 4)]))
    names = draw(st.permutations(["x", "y", "z"]))[: len(sizes)]
    kinds = tuple(draw(st.sampled_from([AUTO, EXPLICIT])) for _ in sizes)
    chosen = np.array(jax.devices())[: math.prod(sizes)]
    if draw(st.booleans()):
        chosen = chosen[::-1]
    return jax.sharding.Mesh(chosen.reshape(sizes), tuple(names), axis_types=kinds)


def specs(draw, mesh, shape, names):
    """Each of the mesh axes `names` that divides what is left of an axis of the data may split it."""
    entries: list[list[str]] = [[] for _ in shape]
    left = list(shape)
    for name in draw(st.permutations(names)):
        where = draw(st.integers(-1, len(shape) - 1))
        if where >= 0 and left[where] % mesh.shape[name] == 0:
            left[where] //= mesh.shape[name]
            entries[where].append(name)
    return tuple(tuple(names) for names in entries)


@st.composite
def programs(draw):
    """A mesh, an estimator, and where each of its arrays is: not placed, or split in any way that JAX lets it be.

    Over explicit axes all arrays are split alike: JAX wants that of the operands of any function.
    """
    mesh = draw(meshes())
    case = draw(st.sampled_from([*ESTIMATORS, SUMS, *MASKED]))
    shape = draw(st.sampled_from(SIZES)), draw(st.sampled_from(SIZES))
    seed = draw(st.integers(0, 2**32 - 1))
    kwargs = arguments(
        case, np.random.default_rng(seed), shape[0], shape[1:], hyper=draw(st.sampled_from(["scalar", "batch"]))
    )
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    explicit = [n for n in mesh.axis_names if kinds[n] == EXPLICIT]
    automatic = [n for n in mesh.axis_names if kinds[n] == AUTO]
    common = specs(draw, mesh, shape, explicit)
    places = {}
    for name, x in kwargs.items():
        if isinstance(x, str | bool) or np.ndim(x) == 0 or not draw(st.booleans()):
            continue
        first = 1 if np.shape(x) == shape[1:] else 0
        of_types = common[first:] if np.ndim(x) + first >= 2 and np.shape(x)[: 2 - first] == shape[first:] else ()
        of_types = (*of_types, *((),) * (np.ndim(x) - len(of_types)))
        rest = [n // math.prod(mesh.shape[a] for a in entry) for n, entry in zip(np.shape(x), of_types, strict=True)]
        of_xla = specs(draw, mesh, rest, automatic)
        places[name] = NamedSharding(mesh, P(*((*a, *b) or None for a, b in zip(of_types, of_xla, strict=True))))
    wanted = specs(draw, mesh, (16, 16), automatic) if automatic and draw(st.booleans()) else None
    ask = draw(st.sampled_from(["forward", "backward"]))
    implementation = draw(st.sampled_from(PLAIN if launch.why_no_triton() else IMPLEMENTATIONS))
    return mesh, case, kwargs, places, wanted, ask, implementation


def same_as_one_device(program):
    mesh, case, kwargs, places, wanted, ask, implementation = program
    fixed = {k: v for k, v in kwargs.items() if isinstance(v, str | bool)}
    arrays = {k: v for k, v in kwargs.items() if k not in fixed}

    def forward(arrays, wanted=None, **options):
        out = outputs(case.function(**arrays, **fixed, **options))
        if wanted is None:
            return out
        inside = NamedSharding(mesh, P(*(names or None for names in wanted)))
        out = tuple(jax.lax.with_sharding_constraint(x, inside) for x in out)
        parts = [math.prod(mesh.shape[name] for name in names) for names in wanted]
        if all(n % count == 0 for n, count in zip(out[0].shape, parts, strict=True)):
            return out
        # JAX 0.12 cannot say how the results of a program are split where devices do not divide an axis.
        return tuple(jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P())) for x in out)

    def backward(arrays, **options):
        floats = {k: v for k, v in arrays.items() if v.dtype == np.float32}
        rest = {k: v for k, v in arrays.items() if k not in floats}
        return jax.grad(lambda f: sum(jnp.sum(o**2) for o in forward({**rest, **f}, **options)))(floats)

    function = forward if ask == "forward" else backward
    want = jax.jit(function)(arrays)
    placed = {k: jax.device_put(v, places[k]) if k in places else v for k, v in arrays.items()}
    in_mesh = jax.set_mesh(mesh) if mesh.axis_types else contextlib.nullcontext()
    with in_mesh, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A scan gathers.*do not divide")
        got = jax.jit(partial(function, wanted=wanted, implementation=implementation))(placed)
    assert_same(got, want)


RELAXED = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@settings(RELAXED, max_examples=30)
@given(programs())
def test_any_program_gives_what_one_device_gives(program):
    same_as_one_device(program)


@pytest.mark.nightly
@settings(RELAXED, max_examples=500)
@given(programs())
def test_five_hundred_programs_give_what_one_device_gives(program):
    same_as_one_device(program)
