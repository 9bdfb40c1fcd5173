"""Steps that are not there and sequences that end where their id changes: deleting the steps by hand gives the same."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, DTYPES, MASKED, arguments, assert_close, check, outputs, primitives
from jax.interpreters import partial_eval

import rltriton_jax as rtj
from rltriton_jax.scan.recurrence import LinearReads, Read, Recurrence, linear_coefficients

NAN = np.nan
PLAIN = ("chunked_scan", "associative_scan", "scan")
X = np.ones((4, 3), np.float32)


def kinds(kwargs, rng, seed):
    """The arguments with few or many steps left out, ids of every kind, and one of the two arguments alone in turn."""
    shape = kwargs["valid"].shape
    out = dict(kwargs, valid=rng.random(shape) < (0.8, 0.4, 0.1)[seed % 3])
    if seed % 4 == 1:
        out["segment_ids"] = rng.integers(-2, 2, shape).astype(("int8", "uint32", "int64")[seed % 3])
    if seed % 5 == 2:
        del out["segment_ids"]
    if seed % 5 == 3:
        del out["valid"]
    return out


@pytest.mark.parametrize("implementation", [*PLAIN, "interpret"])
@pytest.mark.parametrize("case", MASKED, ids=str)
def test_five_hundred_sequences_are_what_they_are_without_the_steps(case, implementation):
    """A hundred of them a call, one in each row."""
    for seed, (steps, hyper) in enumerate([(5, "scalar"), (9, "step"), (9, "batch"), (17, "both"), (2, "scalar")]):
        rng = np.random.default_rng(seed)
        kwargs = arguments(case, rng, steps, (100,), hyper=hyper)
        check(case, kinds(kwargs, rng, seed), "time_major", "float32", implementation)


@pytest.mark.nightly
@pytest.mark.parametrize("steps", [1, 2, 9, 33])
@pytest.mark.parametrize("case", MASKED, ids=str)
def test_ten_thousand_sequences_are_what_they_are_without_the_steps(case, steps):
    for seed in range(25):
        rng = np.random.default_rng([steps, seed])
        kwargs = arguments(case, rng, steps, (100,), hyper=("scalar", "batch", "step", "both")[seed % 4])
        check(case, kinds(kwargs, rng, seed), "time_major", "float32", PLAIN[seed % 3])


@pytest.mark.parametrize("implementation", PLAIN)
def test_the_paper_example(implementation):
    got = rtj.gae(
        np.array([1, NAN, 2, NAN, 4]), np.array([2, NAN, 4, NAN, 8]), valid=np.array([1, 0, 1, 0, 1]),
        bootstrap_value=0.0, gamma=0.5, lambda_=0.5, implementation=implementation,
    )  # fmt: skip
    np.testing.assert_array_equal(got.advantages, [1.25, 0, 1, 0, -4])
    np.testing.assert_array_equal(got.targets, [3.25, 0, 5, 0, 4])


def test_an_end_at_a_step_that_is_not_there_ends_its_sequence():
    """From values and a bootstrap nothing comes after it; values of successors that are given still count."""
    r, v, ended, valid = np.array([1.0, NAN, 4]), np.array([2.0, NAN, 8]), np.array([0, 1, 0]), np.array([1, 0, 1])
    ones = {"gamma": 1.0, "lambda_": 1.0, "valid": valid}
    assert rtj.gae(r, v, ended, bootstrap_value=6.0, **ones).advantages[0] == -1
    assert rtj.gae(r, v, ended, next_values=np.array([5, NAN, 6]), **ones).advantages[0] == 4


def test_in_a_forward_scan_an_end_before_the_first_step_cuts_the_initial_state():
    x, valid, flags = np.array([NAN, 2, 3]), np.array([0, 1, 1]), np.array([1, 0, 0])
    for boundary in ("ends_at", "starts_at"):
        sums = rtj.episodic_prefix_sum(x, flags, initial=100.0, valid=valid, boundary=boundary)
        np.testing.assert_array_equal(sums, [0, 2, 5])
    traces = rtj.eligibility_traces(x, flags, initial=100.0, valid=valid, gamma=1.0, lambda_=1.0)
    np.testing.assert_array_equal(traces, [0, 2, 5])


def test_padding_hands_the_bootstrap_on_if_it_has_the_id_of_its_sequence_and_ends_it_if_not():
    r, valid = np.array([1.0, 2, NAN, NAN]), np.array([1, 1, 0, 0])
    same, other = (
        rtj.discounted_returns(r, bootstrap_value=10.0, gamma=1.0, valid=valid, segment_ids=np.array(ids))
        for ids in ([7, 7, 7, 7], [7, 7, 0, 0])
    )
    np.testing.assert_array_equal(same, [13, 12, 0, 0])
    np.testing.assert_array_equal(other, [3, 2, 0, 0])


def test_an_id_that_comes_back_is_another_sequence():
    ids = np.array([1, 0, 1])
    sums = rtj.episodic_prefix_sum(np.array([1.0, NAN, 4]), valid=np.array([1, 0, 1]), segment_ids=ids)
    np.testing.assert_array_equal(sums, [1, 0, 4])


def test_ids_that_float32_cannot_tell_apart_are_told_apart():
    ids = np.array([2**24, 2**24 + 1], np.int32)
    np.testing.assert_array_equal(rtj.discounted_returns(np.ones(2), gamma=1.0, segment_ids=ids), [1, 1])
    with jax.enable_x64(True):
        wide = np.array([2**53, 2**53 + 1])
        np.testing.assert_array_equal(rtj.discounted_returns(np.ones(2), gamma=1.0, segment_ids=wide), [1, 1])


def test_neither_gamma_nor_lambda_is_looked_at_where_there_is_no_step():
    weights = {"gamma": np.array([0.5, NAN, 0.5]), "lambda_": np.array([1.0, -1, 1])}
    got = rtj.gae(np.ones(3), np.zeros(3), bootstrap_value=0.0, valid=np.array([1, 0, 1]), **weights)
    np.testing.assert_array_equal(got.advantages, [1.5, 0, 1])
    with pytest.raises(ValueError, match=r"gamma .* holds nan"):
        rtj.gae(np.ones(3), np.zeros(3), bootstrap_value=0.0, valid=np.array([1, 1, 0]), **weights)


@pytest.mark.parametrize("case", MASKED, ids=str)
def test_steps_that_are_all_there_change_nothing(case, rng):
    kwargs = arguments(case, rng, 9, hyper="step")
    kwargs["valid"], kwargs["segment_ids"] = np.ones_like(kwargs["valid"]), np.full(kwargs["valid"].shape, 5)
    unmasked = next(c for c in CASES if c.name == case.name and c.options == case.options)
    plain = {k: v for k, v in kwargs.items() if k not in ("valid", "segment_ids")}
    assert_close(unmasked, outputs(case.function(**kwargs)), plain)


@pytest.mark.parametrize("case", MASKED, ids=str)
def test_without_any_step_there_is_nothing(case, rng):
    kwargs = arguments(case, rng, 6)
    kwargs["valid"] = np.zeros_like(kwargs["valid"])
    assert not any(np.any(x) for x in outputs(case.function(**kwargs)))


def test_none_is_the_program_without_masks(rng):
    texts = [
        str(jax.make_jaxpr(lambda x, m=m: rtj.gae(x, x, bootstrap_value=0.0, **m))(X))
        for m in ({}, {"valid": None, "segment_ids": None})
    ]
    assert texts[0] == texts[1]


WAYS = {
    "values and a bootstrap": (lambda x, m: rtj.gae(x, x, bootstrap_value=0.0, valid=m), 1),
    "values of successors": (lambda x, m: rtj.gae(x, x, next_values=x, valid=m), 1),
    "returns": (lambda x, m: rtj.lambda_returns(x, x, bootstrap_value=0.0, valid=m), 1),
    "discounted returns": (lambda x, m: rtj.discounted_returns(x, valid=m), 1),
    "targets of retrace": (lambda x, m: rtj.retrace(x, x, x, next_state_values=x, valid=m).targets, 1),
    "traces": (lambda x, m: rtj.eligibility_traces(x, valid=m), 1),
    "prefix sums": (lambda x, m: rtj.episodic_prefix_sum(x, valid=m), 1),
    "a lambda per step": (lambda x, m: rtj.gae(x, x, bootstrap_value=0.0, lambda_=0.9 * x, valid=m), 1),
    "vtrace": (lambda x, m: rtj.vtrace(x, x, x, bootstrap_value=0.0, valid=m), 1),
    "vtrace and values of successors": (lambda x, m: rtj.vtrace(x, x, x, next_values=x, valid=m), 1),
    "returns and values of successors": (lambda x, m: rtj.lambda_returns(x, next_values=x, valid=m), 1),
    "retrace": (lambda x, m: rtj.retrace(x, x, x, next_state_values=x, valid=m), 2),
    "vtrace of segments": (lambda x, m: rtj.vtrace(x, x, x, bootstrap_value=0.0, segment_ids=m.astype("int32")), 1),
}


@pytest.mark.parametrize("name", WAYS)
def test_one_pass_suffices_but_for_both_results_of_retrace(name):
    function, expected = WAYS[name]
    jaxpr = jax.make_jaxpr(function)(X, X > 0).jaxpr
    needed, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    assert [e.primitive.name for e in primitives(needed)].count("affine_scan") == expected


def test_a_gap_and_a_segment_may_span_devices(rng):
    """Time over eight devices; every other of them holds no valid step."""
    case = MASKED[0]
    kwargs = arguments(case, rng, 32, (2,))
    kwargs["valid"][:] = (np.arange(32) // 4 % 2 == 0)[:, None]
    kwargs["segment_ids"][:] = (np.arange(32) >= 13)[:, None]
    mesh = jax.make_mesh((8,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("t"))
    placed = {k: jax.device_put(v, spec) if np.shape(v) == (32, 2) else v for k, v in kwargs.items()}
    assert_close(case, outputs(jax.jit(lambda a: case.function(**a))(placed)), kwargs)


def test_trailing_axes_share_flags_and_ids(rng):
    x = rng.normal(size=(6, 2, 3)).astype("float32")
    masks = {"valid": rng.random((6, 2)) < 0.6, "segment_ids": np.arange(12).reshape(6, 2) // 5}
    for function in (rtj.eligibility_traces, rtj.episodic_prefix_sum):
        got = function(x, **masks)
        for i in range(3):
            np.testing.assert_array_equal(got[..., i], function(x[..., i], **masks))


def test_a_pytree_may_have_masks_of_its_own(rng):
    x, m = rng.normal(size=(2, 5, 2)).astype("float32"), rng.random((2, 5, 2)) < 0.5
    got = rtj.discounted_returns({"a": x[0], "b": x[1]}, valid={"a": m[0], "b": m[1]})
    for key, i in (("a", 0), ("b", 1)):
        np.testing.assert_array_equal(got[key], rtj.discounted_returns(x[i], valid=m[i]))


def test_integers_have_no_derivative_and_flags_none():
    valid, ids = jnp.array([1.0, 0, 1]), jnp.array([0, 0, 1])
    gradient = jax.grad(lambda m: jnp.sum(rtj.discounted_returns(jnp.ones(3), valid=m, segment_ids=ids)))(valid)
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("change", [{"reverse": False}, {"initial": "x"}, {"finite_weights": False}])
def test_a_recurrence_that_cannot_be_carried_is_refused(change):
    inner = Recurrence(("x",), LinearReads(Read("x"), Read("x")), linear_coefficients, finite_weights=True)
    with pytest.raises(ValueError, match="inner cannot be carried"):
        replace(inner, carried=(("inner", replace(inner, **change)),))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", MASKED, ids=str)
def test_every_dtype(case, dtype, rng):
    with jax.enable_x64(dtype == "float64"):
        check(case, arguments(case, rng, 9, (20,), dtype=dtype), "time_major", dtype, None)


def test_a_weight_of_0_leaves_out_what_is_not_finite_as_without_masks():
    bad, zeros, there = np.array([1.0, NAN]), np.zeros(2), {"valid": np.ones(2)}
    for masks in ({}, there):
        assert rtj.gae(bad, zeros, bootstrap_value=0.0, lambda_=0.0, **masks).advantages[0] == 1
        assert rtj.retrace(bad, zeros, np.array([0, -1e4]), next_state_values=zeros, **masks).targets[0] == 1
        assert rtj.eligibility_traces(bad[::-1], gamma=0.0, **masks)[1] == 1
