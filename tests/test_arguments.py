"""Bad input is a ValueError or TypeError that names the argument, the shapes and the fix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rltriton_jax as rtj

X = np.ones((4, 3), np.float32)
FLAGS = np.zeros((4, 3), bool)

BAD = {
    "values of another shape": (lambda: rtj.gae(X, X[:2]), ValueError, r"values has shape \(2, 3\).*rewards.*\(4, 3\)"),
    "values transposed": (lambda: rtj.gae(X, X.T), ValueError, r"values has shape \(3, 4\).*\(4, 3\) or \(5, 3\)"),
    "flags of another shape": (lambda: rtj.gae(X, X, FLAGS[0]), ValueError, r"terminated has shape \(3,\)"),
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
        lambda: rtj.gae(X, X, gamma=np.ones(4, np.float32)), ValueError, r"gamma has shape \(4,\).*per step \(4, 1\)"),
    "lambda_ of too many axes": (
        lambda: rtj.gae(X, X, lambda_=np.ones((4, 3, 1), np.float32)), ValueError, r"lambda_ has shape \(4, 3, 1\)"),
    "lambda_ not transposed with its data": (
        lambda: rtj.gae(X.T, X.T, time_axis=1, lambda_=X), ValueError, r"lambda_ has shape \(4, 3\).*\(3, 4\)"),
    "a scalar for rewards": (lambda: rtj.gae(1.0, 1.0), ValueError, r"rewards has shape \(\).*time axis"),
    "nothing for rewards": (lambda: rtj.gae(None, X), ValueError, "rewards is None"),
    "a time axis that is not there": (lambda: rtj.gae(X, X, time_axis=2), ValueError, "time_axis is 2"),
    "on_truncation misspelt": (lambda: rtj.gae(X, X, on_truncation="drop"), ValueError, "on_truncation is 'drop'"),
    "boundary misspelt": (lambda: rtj.episodic_prefix_sum(X, FLAGS, boundary="end"), ValueError, "boundary is 'end'"),
    "an unknown implementation": (lambda: rtj.gae(X, X, implementation="cuda"), ValueError, "implementation is 'cuda'"),
    "triton on a CPU": (lambda: rtj.gae(X, X, implementation="triton"), ValueError, "needs a CUDA or ROCm device.*cpu"),
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
    "complex rewards": (lambda: rtj.gae(X * 1j, X), TypeError, "rewards has dtype complex"),
    "integers alone": (lambda: rtj.episodic_prefix_sum(np.ones(4, np.int32)), TypeError, "int32.*astype"),
    "another structure": (lambda: rtj.gae({"a": X}, {"b": X}), ValueError, "values has the structure"),
    "an error in a leaf": (lambda: rtj.gae({"a": X, "b": X}, {"a": X, "b": X[:1]}), ValueError, r"rewards\['b'\]: values"),
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
    got = rtj.gae(jnp.ones(4, rewards), jnp.ones(4, values), jnp.zeros(4, "float32"), gamma=jnp.float32(0.9))
    assert got.advantages.dtype == got.targets.dtype == expected


def test_square_windows_are_not_mistaken():
    """T = N: a [N] gamma is per environment, in either layout."""
    x, gamma = np.arange(9, dtype=np.float32).reshape(3, 3), np.array([0.0, 0.5, 1.0], np.float32)
    rows = rtj.discounted_returns(x, gamma=gamma)
    np.testing.assert_allclose(rtj.discounted_returns(x.T, gamma=gamma, time_axis=1), rows.T)
    np.testing.assert_allclose(rows[:, 0], x[:, 0])
    np.testing.assert_allclose(rows[0, 2], x[:, 2].sum())
