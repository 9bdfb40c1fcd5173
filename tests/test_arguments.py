"""Bad input is a ValueError or TypeError that names the argument, the shapes and the fix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import rltriton_jax as rtj

X = np.ones((4, 3), np.float32)
FLAGS = np.zeros((4, 3), bool)
HALF = jnp.full((4, 3), 0.5)

BAD = {
    "values of another shape": (lambda: rtj.gae(X, X[:2]), ValueError, r"values has shape \(2, 3\).*rewards.*\(4, 3\)"),
    "values transposed": (lambda: rtj.gae(X, X.T), ValueError, r"values has shape \(3, 4\).*\(4, 3\) or \(5, 3\)"),
    "flags of another shape": (lambda: rtj.gae(X, X, FLAGS[0], bootstrap_value=0.0), ValueError, r"terminated has shape \(3,\)"),
    "truncated without final values": (
        lambda: rtj.gae(X, X, None, FLAGS), ValueError, r"truncated.*final_values.*next_values"),
    "truncated without final values, vtrace": (
        lambda: rtj.vtrace(X, X, X, None, FLAGS), ValueError, r"truncated.*final_values.*next_values"),
    "truncated without final values, returns": (
        lambda: rtj.discounted_returns(X, None, FLAGS), ValueError, r"truncated.*final_values"),
    "two sources of successors": (
        lambda: rtj.gae(X, X, next_values=X, bootstrap_value=X[0]), ValueError, r"next_values.*bootstrap_value.*leave"),
    "next and final values": (
        lambda: rtj.lambda_returns(X, X, None, FLAGS, next_values=X, final_values=X), ValueError, "final_values"),
    "a bootstrap twice": (
        lambda: rtj.gae(X, np.ones((5, 3), np.float32), bootstrap_value=X[0]), ValueError, r"\(5, 3\).*leave"),
    "a bootstrap per step": (lambda: rtj.gae(X, X, bootstrap_value=X), ValueError, r"bootstrap_value has shape \(4, 3\)"),
    "a bootstrap that would broadcast along time": (
        lambda: rtj.gae(X, X, bootstrap_value=X[:, 0]), ValueError, r"bootstrap_value has shape \(4,\).*\(3,\)"),
    "gamma per step in one axis": (
        lambda: rtj.gae(X, X, gamma=np.ones(4, np.float32), bootstrap_value=0.0), ValueError, r"gamma has shape \(4,\).*per step \(4, 1\)"),
    "lambda_ of too many axes": (
        lambda: rtj.gae(X, X, lambda_=np.ones((4, 3, 1), np.float32), bootstrap_value=0.0), ValueError, r"lambda_ has shape \(4, 3, 1\)"),
    "lambda_ not transposed with its data": (
        lambda: rtj.gae(X.T, X.T, time_axis=1, lambda_=X, bootstrap_value=0.0), ValueError, r"lambda_ has shape \(4, 3\).*\(3, 4\)"),
    "a scalar for rewards": (lambda: rtj.gae(1.0, 1.0), ValueError, r"rewards has shape \(\).*time axis"),
    "nothing for rewards": (lambda: rtj.gae(None, X), ValueError, "rewards is None"),
    "a time axis that is not there": (lambda: rtj.gae(X, X, time_axis=2), ValueError, "time_axis is 2"),
    "on_truncation misspelt": (lambda: rtj.gae(X, X, on_truncation="drop"), ValueError, "on_truncation is 'drop'"),
    "boundary misspelt": (lambda: rtj.episodic_prefix_sum(X, FLAGS, boundary="end"), ValueError, "boundary is 'end'"),
    "an unknown implementation": (lambda: rtj.gae(X, X, implementation="cuda", bootstrap_value=0.0), ValueError, "implementation is 'cuda'"),
    "triton on a CPU": (lambda: rtj.gae(X, X, implementation="triton", bootstrap_value=0.0), ValueError, "needs a CUDA or ROCm device.*cpu"),
    "no successor for retrace": (lambda: rtj.retrace(X, X, X), ValueError, "next_state_values.*none of them"),
    "half a successor for retrace": (
        lambda: rtj.retrace(X, X, X, next_q_values=X[..., None]), ValueError, "given were next_q_values"),
    "two successors for retrace": (
        lambda: rtj.retrace(X, X, X, next_state_values=X, next_q_values=X[..., None], next_target_probs=X[..., None]),
        ValueError, "once"),
    "actions on another axis": (
        lambda: rtj.retrace(X, X, X, next_q_values=X[None], next_target_probs=X[None]), ValueError, "last axis"),
    "actions that differ in number": (
        lambda: rtj.retrace(X, X, X, next_q_values=np.ones((4, 3, 2)), next_target_probs=np.ones((4, 3, 5))),
        ValueError, r"\(4, 3, 5\)"),
    "an initial trace with a decay per step": (
        lambda: rtj.eligibility_traces(X, initial=X[0], gamma=np.ones((4, 1), np.float32)), ValueError, r"gradients\[0\]"),
    "done that leads nowhere": (lambda: rtj.eligibility_traces(X, FLAGS[:2]), ValueError, r"done has shape \(2, 3\)"),
    "no successor of the last step": (
        lambda: rtj.gae(X, X), ValueError, r"rewards and values have shape \(4, 3\).*bootstrap_value.*\(3,\).*next_values"),
    "no successor of the last step, vtrace": (lambda: rtj.vtrace(X, X, X), ValueError, r"\(4, 3\).*bootstrap_value"),
    "no successor of the last step, lambda returns": (
        lambda: rtj.lambda_returns(X, X), ValueError, r"\(4, 3\).*bootstrap_value"),
    "no successor of the last step, objects": (lambda: rtj.GAE()(X, X), ValueError, "bootstrap_value"),
    "no successor of the last step, pytrees": (
        lambda: rtj.VTrace()({"a": X}, {"a": X}, {"a": X}), ValueError, r"at rewards\['a'\]: .*bootstrap_value"),
    "returns without any values": (
        lambda: rtj.lambda_returns(X, bootstrap_value=0.0), ValueError, r"values and next_values are None.*\(4, 3\)"),
    "a list of steps": (lambda: rtj.gae(list(X), X, bootstrap_value=0.0), TypeError, r"list of 4.*\(3,\).*jnp\.stack"),
    "a tuple of steps": (lambda: rtj.linear_recurrence(0.9, tuple(X)), TypeError, r"inputs is a tuple of 4.*jnp\.stack"),
    "a list of numbers": (lambda: rtj.discounted_returns([1.0, 2.0]), TypeError, r"rewards is a list of 2.*jnp\.stack"),
    "a list of ragged lists": (lambda: rtj.discounted_returns([[[1.0], [1.0, 2.0]]]), TypeError, "list of 1 .*jnp.stack"),
    "an empty list": (lambda: rtj.episodic_prefix_sum([]), TypeError, r"inputs is a list of 0"),
    "no values": (lambda: rtj.gae(X, None, next_values=X), ValueError, r"values is None.*rewards has shape \(4, 3\)"),
    "no ratios": (lambda: rtj.vtrace(X, X, None, bootstrap_value=0.0), ValueError, r"log_rhos is None.*\(4, 3\)"),
    "no q_values": (lambda: rtj.retrace(X, None, X, next_state_values=X), ValueError, "q_values is None"),
    "no ratios for retrace": (lambda: rtj.retrace(X, X, None, next_state_values=X), ValueError, "log_rhos is None"),
    "no gradients": (lambda: rtj.eligibility_traces(None), ValueError, "gradients is None"),
    "no weights": (lambda: rtj.linear_recurrence(None, X), ValueError, "weights is None"),
    "no gamma": (lambda: rtj.discounted_returns(X, gamma=None), ValueError, "gamma is None"),
    "no values in a leaf": (
        lambda: rtj.gae({"a": X}, None, bootstrap_value=0.0), ValueError, r"at rewards\['a'\]: values is None"),
    "final values of no truncated step": (
        lambda: rtj.gae(X, X, FLAGS, bootstrap_value=0.0, final_values=X), ValueError,
        r"final_values \(shape \(4, 3\)\).*truncated is None.*\(4, 3\)"),
    "final values of no truncated step, returns": (
        lambda: rtj.discounted_returns(X, FLAGS, final_values=X), ValueError, "truncated is None"),
    "a continuation probability for a flag": (
        lambda: rtj.gae(X, X, 0.99 * (1 - FLAGS), bootstrap_value=0.0), ValueError,
        r"terminated has shape \(4, 3\) and holds 0\.99.*0 or 1.*gamma"),
    "a flag of 2": (lambda: rtj.eligibility_traces(X, 2 * X), ValueError, "done.*holds 2.0"),
    "a flag of -1": (lambda: rtj.episodic_prefix_sum(X, -X.astype(int)), ValueError, "done.*holds -1"),
    "a flag of NaN": (
        lambda: rtj.discounted_returns(X, None, X * np.nan, final_values=X), ValueError, "truncated.*holds nan"),
    "a flag of 1/2 on the CPU": (
        lambda: rtj.discounted_returns(X, jnp.full((4, 3), 0.5, "bfloat16")), ValueError, "terminated.*holds 0.5"),
    "a flag of 1/2, constant under jit": (
        lambda: jax.jit(lambda x: rtj.discounted_returns(x, HALF))(X), ValueError, "terminated.*holds 0.5"),
    "a negative gamma": (lambda: rtj.discounted_returns(X, gamma=-0.1), ValueError, r"gamma \(shape \(\)\) holds -0\.1.*\(4, 3\)"),
    "a NaN lambda_": (lambda: rtj.GAE(0.9, np.nan)(X, X, bootstrap_value=0.0), ValueError, r"lambda_.*holds nan"),
    "a NaN clip": (lambda: rtj.vtrace(X, X, X, bootstrap_value=0.0, clip_rho=np.nan), ValueError, "clip_rho.*holds nan"),
    "a negative clip in one environment": (
        lambda: rtj.retrace(X, X, X, next_state_values=X, clip_c=np.array([1.0, -1.0, 1.0], "f")), ValueError,
        r"clip_c \(shape \(3,\)\) holds -1"),
    "reverse in words": (lambda: rtj.linear_recurrence(0.9, X, reverse="no"), TypeError, "reverse is 'no'"),
    "reverse as a number": (lambda: rtj.linear_recurrence(0.9, X, reverse=1), TypeError, "reverse is 1"),
    "complex rewards": (lambda: rtj.gae(X * 1j, X), TypeError, "rewards has dtype complex"),
    "integers alone": (lambda: rtj.episodic_prefix_sum(np.ones(4, np.int32)), TypeError, "int32.*astype"),
    "another structure": (lambda: rtj.gae({"a": X}, {"b": X}), ValueError, "values has the structure"),
    "an error in a leaf": (lambda: rtj.gae({"a": X, "b": X}, {"a": X, "b": X[:1]}, bootstrap_value=0.0), ValueError, r"rewards\['b'\]: values"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_names_shapes_and_the_fix(name):
    call, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        call()


def test_errors_come_when_tracing():
    with pytest.raises(ValueError, match="values has shape"):
        jax.eval_shape(rtj.gae, X, X[:2])


@pytest.mark.parametrize(
    ("rewards", "values", "expected"),
    [("bfloat16", "float32", "float32"), ("bfloat16", "bfloat16", "bfloat16"), ("float16", "bfloat16", "float32"),
     ("int32", "bfloat16", "bfloat16"), ("int8", "float32", "float32")],
)  # fmt: skip
def test_the_output_has_the_promoted_dtype_of_the_data(rewards, values, expected):
    got = rtj.gae(
        jnp.ones(4, rewards), jnp.ones(4, values), jnp.zeros(4, "float32"), gamma=jnp.float32(0.9), bootstrap_value=0.0
    )
    assert got.advantages.dtype == got.targets.dtype == expected


def test_square_windows_are_not_mistaken():
    """T = N: a [N] gamma is per environment, in either layout."""
    x, gamma = np.arange(9, dtype=np.float32).reshape(3, 3), np.array([0.0, 0.5, 1.0], np.float32)
    rows = rtj.discounted_returns(x, gamma=gamma)
    np.testing.assert_allclose(rtj.discounted_returns(x.T, gamma=gamma, time_axis=1), rows.T)
    np.testing.assert_allclose(rows[:, 0], x[:, 0])
    np.testing.assert_allclose(rows[0, 2], x[:, 2].sum())


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, jax.checkpoint, jax.vmap], ids=lambda t: t.__name__)
def test_traced_flags_are_checked_under_checkify(transform):
    returns = lambda done: jnp.sum(rtj.discounted_returns(jnp.ones(4), done, gamma=0.9))
    shape = (2, 4) if transform is jax.vmap else (4,)
    checked = jax.jit(checkify.checkify(jax.jit(transform(returns))))
    for flag, message in ((0.5, "terminated holds flags that are neither 0 nor 1"), (1.0, None), (0.0, None)):
        error, _ = checked(jnp.full(shape, flag))
        assert (message is None) == (error.get() is None) and (message or "") in (error.get() or "")


def test_a_traced_flag_leaves_no_check_in_the_program():
    """What the check needs is there under checkify only: neither an effect nor an operation else."""
    jaxpr = jax.make_jaxpr(lambda done: rtj.discounted_returns(jnp.ones(4), done))(jnp.zeros(4))
    assert not jaxpr.effects and "reduce_and" not in str(jaxpr)


def test_values_that_nobody_looks_at_are_taken_as_they_are():
    """Infinite clips, a discount above 1, and signed weights of the bare recurrence."""
    rtj.vtrace(X, X, X, bootstrap_value=0.0, gamma=1.5, clip_rho=np.inf)
    np.testing.assert_allclose(rtj.linear_recurrence(-0.5, X[:2, 0]), [1, 0.5])
