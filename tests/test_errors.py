"""Wrong calls of everything public: each error says which argument, what is wrong with it, and what to do.

A row is (call, argument, what is wrong, fix). The call is made eagerly and under jit, vmap and grad, which trace its x.
"""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rltriton_jax as rtj
from rltriton_jax.compat import brax, rlax, tunix
from rltriton_jax.estimators.estimate import Estimator
from rltriton_jax.estimators.window import over_leaves

X = np.ones((4, 3), np.float32)
FLAGS = np.zeros((4, 3), bool)
ROW = X[0]
FINAL_OBS = np.array([None, np.ones(2), None], object)
FLOAT8 = jnp.ones((4, 3), "float8_e4m3fn")
STRUCT = jax.ShapeDtypeStruct((4, 3), "float32")
KEY = jax.random.key(0)
LATE = np.full((4, 3), "2020-01-01", "datetime64[s]")
PAIR = {"a": X, "b": X}


class Convertible:
    """What pandas, torch and others offer NumPy."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype)


class Attached:
    """A tensor of torch that requires a gradient."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")


def gae(rewards, values, *args, **kwargs):
    return rtj.gae(rewards, values, *args, **{"bootstrap_value": 0.0, **kwargs})


CALLS: dict[str, tuple[Callable[[Any], Any], str, str, str]] = {
    # What is no array of numbers.
    "a str": (lambda x: gae(x, "values"), "values", "str", "pass a number or an array"),
    "bytes": (lambda x: gae(x, x, bootstrap_value=b"0"), "bootstrap_value", "bytes", "pass a number or an array"),
    "an array of str": (lambda x: gae(x, X.astype(str)), "values", "<U32", ".astype(np.float32)"),
    "an array of bytes": (lambda x: gae(x, X.astype("S3")), "values", "S3", ".astype(np.float32)"),
    "Gymnasium's final_obs": (
        lambda x: rtj.discounted_returns(x, FLAGS, FLAGS, final_values=FINAL_OBS), "final_values", "dtype object",
        "stack"),
    "numbers as objects": (lambda x: gae(x, X.astype(object)), "values", "dtype object", "stack"),
    "longdouble": (lambda x: gae(x, X.astype(np.longdouble)), "values", str(np.dtype(np.longdouble)), "astype"),
    "a longdouble gamma": (
        lambda x: rtj.GAE(np.longdouble(1))(x, x, bootstrap_value=0.0), "gamma", "shape ()", "astype"),
    "dates": (lambda x: rtj.vtrace(x, x, LATE, bootstrap_value=0.0), "log_rhos", "datetime64", "np.timedelta64"),
    "spans of time": (
        lambda x: rtj.retrace(x, LATE - LATE, x, next_state_values=x), "q_values", "timedelta64", "/ np.timedelta64"),
    "complex values": (lambda x: gae(x, X * 1j), "values", "complex", ".real"),
    "a complex gamma": (lambda x: rtj.discounted_returns(x, gamma=1j), "gamma", "complex", ".real"),
    "complex traced values": (lambda x: gae(x, x.astype(complex)), "values", "complex", ".real"),
    "complex flags": (lambda x: gae(x, x, X * 1j), "terminated", "complex", ".real"),
    "flags in words": (lambda x: rtj.eligibility_traces(x, FLAGS.astype(str)), "done", "<U5", "astype"),
    "flags as objects": (lambda x: rtj.episodic_prefix_sum(x, FLAGS.astype(object)), "done", "object", "stack"),
    "a ragged list": (lambda x: gae(x, [[1.0], [1.0, 2.0]]), "values", "list", "pad"),
    "a list with None": (lambda x: gae(x, x, bootstrap_value=[None, 1.0, 1.0]), "bootstrap_value", "list", "np.stack"),
    "a ragged list of traced arrays": (lambda x: gae(x, [x, x[0]]), "values", "list", "pad"),
    "a ShapeDtypeStruct": (lambda x: gae(x, STRUCT), "values", "ShapeDtypeStruct", "jax.eval_shape"),
    "a ShapeDtypeStruct for the main argument": (
        lambda x: rtj.episodic_prefix_sum(STRUCT), "inputs", "ShapeDtypeStruct", "jax.eval_shape"),
    "a random key": (lambda x: gae(x, KEY), "values", "key<fry>", "jax.random.normal"),
    "random keys for flags": (
        lambda x: rtj.eligibility_traces(x, jax.random.split(KEY, (4, 3))), "done", "key<fry>", "jax.random.normal"),
    "float8": (lambda x: gae(x, FLOAT8), "values", "float8_e4m3fn", "astype(jnp.float32)"),
    "float8 alone": (lambda x: rtj.episodic_prefix_sum(FLOAT8), "inputs", "float8_e4m3fn", "astype(jnp.float32)"),
    "traced float8": (
        lambda x: rtj.linear_recurrence(0.9, x.astype("float8_e5m2")), "inputs", "float8_e5m2", "astype(jnp.float32)"),
    "flags of one bit with a sign": (
        lambda x: gae(x, x, jnp.zeros((4, 3), "int1")), "terminated", "int1", "astype(jnp.float32)"),
    "flags of a float8 that has no 0": (
        lambda x: gae(x, x, jnp.ones((4, 3), "float8_e8m0fnu")), "terminated", "float8_e8m0fnu", "astype(jnp.float32)"),
    "a float8 gamma": (lambda x: gae(x, x, gamma=FLOAT8[0, 0]), "gamma", "float8_e4m3fn", "astype(jnp.float32)"),
    "int4": (lambda x: gae(x, x.astype("int4")), "values", "int4", "astype(jnp.float32)"),
    "integers alone": (lambda x: rtj.episodic_prefix_sum(x.astype(int)), "inputs", "int32", "astype(jnp.float32)"),
    "a structured array": (lambda x: gae(x, np.zeros((4, 3), "i4,f4")), "values", "f4", "astype"),
    "a masked array": (lambda x: gae(x, np.ma.array(X)), "values", "(4, 3)", "values.filled"),
    "a set": (lambda x: gae(x, x, gamma={0.9}), "gamma", "{0.9}", "list(gamma)"),
    "a generator for the main argument": (
        lambda x: rtj.discounted_returns(r for r in ROW), "rewards", "generator", "list(rewards)"),
    "a generator beside a pytree": (
        lambda x: gae({"a": x}, {"a": x}, gamma=(g for g in ROW)), "rewards['a']: gamma", "generator", "list(gamma)"),
    "a generator": (lambda x: gae(x, x, gamma=(g for g in ROW)), "gamma", "generator", "list(gamma)"),
    "a function": (lambda x: gae(x, jnp.ones_like), "values", "function", "pass the array that it returns"),
    "a type": (lambda x: gae(x, x, lambda_=float), "lambda_", "float", "pass the array that it returns"),
    "a module": (lambda x: gae(x, x, lambda_=np), "lambda_", "module", "convert it"),
    "an estimator": (lambda x: gae(x, rtj.GAE()), "values", "GAE", "pass one array"),
    "a tensor that refuses": (lambda x: gae(x, Attached()), "values", "Attached", "convert it"),
    "objects behind __array__": (lambda x: gae(x, Convertible(FINAL_OBS)), "values", "object", "np.stack"),
    "a dict beside an array": (lambda x: gae(x, {"a": x}), "values", "dict", "pass one array"),
    "gamma None": (lambda x: gae(x, x, gamma=None), "gamma", "None", "pass an array"),
    "clip_rho None": (
        lambda x: rtj.vtrace(x, x, x, bootstrap_value=0.0, clip_rho=None), "clip_rho", "(4, 3)", "pass an array"),
    "clip_c None": (
        lambda x: rtj.Retrace(clip_c=None)(x, x, x, next_state_values=x), "clip_c", "None", "pass an array"),
    "weights None": (lambda x: rtj.linear_recurrence(None, x), "weights", "None", "pass an array"),
    "inputs None": (lambda x: rtj.linear_recurrence(0.9, None), "inputs", "None", "pass an array"),
    "an int beyond int32": (lambda x: gae(x, x, gamma=10**30), "gamma", str(10**30), "float(gamma)"),
    "an int below int32": (
        lambda x: gae(x, x, bootstrap_value=-(2**31) - 1), "bootstrap_value", "-2147483649", "float("),
    "int64 beyond int32": (lambda x: gae(x, np.full((4, 3), 2**40)), "values", str(2**40), "values.astype(np.float32)"),
    "uint64 beyond uint32": (
        lambda x: rtj.discounted_returns(x, bootstrap_value=np.uint64(2**63)), "bootstrap_value", str(2**63), "astype"),
    "flags that are 1 beyond int32": (
        lambda x: gae(x, x, np.full((4, 3), 2**32 + 1)), "terminated", str(2**32 + 1), "astype"),
    # Options.
    "time_axis in words": (lambda x: gae(x, x, time_axis="0"), "time_axis", "'0'", "pass an int"),
    "time_axis None": (
        lambda x: rtj.vtrace(x, x, x, bootstrap_value=0.0, time_axis=None), "time_axis", "None", "an int"),
    "time_axis a float": (
        lambda x: rtj.retrace(x, x, x, next_state_values=x, time_axis=1.0), "time_axis", "1.0", "int"),
    "time_axis a bool": (lambda x: rtj.lambda_returns(x, next_values=x, time_axis=True), "time_axis", "True", "an int"),
    "time_axis a tuple": (lambda x: rtj.discounted_returns(x, time_axis=(0,)), "time_axis", "(0,)", "pass an int"),
    "time_axis an array": (
        lambda x: rtj.eligibility_traces(x, time_axis=np.zeros(1, int)), "time_axis", "(1,)", "an int"),
    "time_axis a float array": (
        lambda x: rtj.episodic_prefix_sum(x, time_axis=np.zeros(())), "time_axis", "shape ()", "pass an int"),
    "time_axis that is not there": (
        lambda x: rtj.linear_recurrence(0.9, x, time_axis=np.int64(-3)), "time_axis", "-3", "use -2 to 1"),
    "time_axis traced": (
        lambda x: jax.jit(gae)(x, x, time_axis=1), "time_axis", "int32", 'static_argnames="time_axis"'),
    "time_axis traced, pytrees": (
        lambda x: jax.jit(rtj.GAE())({"a": x}, {"a": x}, bootstrap_value=0.0, time_axis=1), "time_axis", "traced",
        'functools.partial(f, time_axis=...)'),
    "reverse traced": (
        lambda x: jax.jit(rtj.linear_recurrence)(0.9, x, reverse=True), "reverse", "bool", 'static_argnames="reverse"'),
    "implementation traced": (
        lambda x: jax.vmap(lambda i: gae(x, x, implementation=i))(jnp.arange(2)), "implementation", "int32", "static"),
    "on_truncation traced": (
        lambda x: jax.jit(lambda i: gae(x, x, on_truncation=i))(1), "on_truncation", "int32", "static_argnames"),
    "boundary traced": (
        lambda x: jax.jit(lambda i: rtj.episodic_prefix_sum(x, boundary=i))(1), "boundary", "int32", "static_argnames"),
    "reverse in words": (lambda x: rtj.linear_recurrence(0.9, x, reverse="no"), "reverse", "'no'", "True or False"),
    "on_truncation an array": (lambda x: gae(x, x, on_truncation=ROW), "on_truncation", "array", "'mask'"),
    "boundary a list": (lambda x: rtj.episodic_prefix_sum(x, boundary=["ends_at"]), "boundary", "['ends_at']", "use"),
    "implementation an array": (lambda x: gae(x, x, implementation=ROW), "implementation", "array", "use None"),
    # Truncation.
    "truncated alone": (
        lambda x: gae(x, x, None, FLAGS), "truncated (shape (4, 3))", "SAME_STEP", "pass final_values (shape (4, 3)"),
    "truncated alone, reset one step later": (
        lambda x: rtj.vtrace(x, x, x, None, FLAGS, bootstrap_value=0.0), "truncated (shape (4, 3))", "NEXT_STEP",
        "concatenate([values[1:], bootstrap_value[None]])"),
    "truncated alone, returns": (
        lambda x: rtj.discounted_returns(x, None, FLAGS), "truncated (shape (4, 3))", "SAME_STEP", "NEXT_STEP"),
    # Calls that do not fit.
    "gae_lambda": (lambda x: gae(x, x, gae_lambda=0.9), "gae_lambda", "gae has no", "did you mean lambda_?"),
    "lam": (lambda x: rtj.vtrace(x, x, x, lam=0.9), "lam", "vtrace has no", "did you mean lambda_?"),
    "lambd": (lambda x: rtj.retrace(x, x, x, lambd=0.9), "lambd", "retrace has no", "did you mean lambda_?"),
    "discount": (lambda x: rtj.discounted_returns(x, discount=0.9), "discount", "has no", "did you mean gamma?"),
    "dones": (lambda x: rtj.lambda_returns(x, x, dones=FLAGS), "dones", "has no", "did you mean terminated?"),
    "done": (lambda x: gae(x, x, done=FLAGS), "done", "has no", "did you mean terminated?"),
    "terminated for done": (
        lambda x: rtj.eligibility_traces(x, terminated=FLAGS), "terminated", "has no", "did you mean done?"),
    "last_value": (
        lambda x: rtj.gae(x, x, last_value=0.0), "last_value", "gae has no", "did you mean bootstrap_value?"),
    "axis": (lambda x: rtj.episodic_prefix_sum(x, axis=1), "axis", "has no", "did you mean time_axis?"),
    "a slip of the finger": (lambda x: rtj.linear_recurrence(0.9, x, inital=0.0), "inital", "has no", "mean initial?"),
    "what nothing is called": (lambda x: gae(x, x, foo=1), "foo", "gae has no", "gae takes (rewards, values, term"),
    "values missing": (lambda x: rtj.gae(x), "values", "gae was not given", "pass rewards, values"),
    "ratios missing": (
        lambda x: rtj.VTrace()(x, x), "log_rhos", "vtrace was not given", "pass rewards, values, log_rhos"),
    "all missing": (lambda x: rtj.retrace(), "rewards", "q_values and log_rhos", "pass rewards, q_values, log_rhos"),
    "rewards twice": (lambda x: rtj.discounted_returns(x, rewards=x), "rewards", "argument 1", "leave one out"),
    "a last value by position, gae": (
        lambda x: rtj.gae(x, x, FLAGS, ROW), "truncated", "(3,)", "bootstrap_value is keyword-only"),
    "a last value by position, vtrace": (
        lambda x: rtj.vtrace(x, x, x, FLAGS, x[0]), "truncated", "(3,)", "bootstrap_value is keyword-only"),
    "a last value by position, lambda_returns": (
        lambda x: rtj.LambdaReturns()(x, x, FLAGS, x[0]), "truncated", "(3,)", "bootstrap_value is keyword-only"),
    "a last value by position, discounted_returns": (
        lambda x: rtj.discounted_returns(x, FLAGS, x[0]), "truncated", "(3,)", "bootstrap_value is keyword-only"),
    "a last value for flags": (
        lambda x: rtj.discounted_returns(x, x[0]), "terminated", "(3,)", "bootstrap_value is keyword-only"),
    "a last value by position, one sequence": (
        lambda x: rtj.gae(x[:, 0], x[:, 0], FLAGS[:, 0], 0.0), "truncated", "()", "bootstrap_value is keyword-only"),
    "a last value by position, pytrees": (
        lambda x: rtj.gae({"a": x}, {"a": x}, FLAGS, {"a": x[0]}), "at rewards['a']: truncated", "(3,)",
        "keyword-only"),
    "an initial trace for flags": (
        lambda x: rtj.eligibility_traces(x, x[0]), "done", "(3,)", "initial is keyword-only"),
    "a last value fifth": (
        lambda x: rtj.gae(x, x, FLAGS, FLAGS, x[0]), "5 arguments", "(3,)", "bootstrap_value, next_values, "),
    "too many, retrace": (
        lambda x: rtj.retrace(x, x, x, FLAGS, FLAGS, x), "6 arguments", "(4, 3)", "next_state_values, next_q_values, "),
    "too many, eligibility_traces": (
        lambda x: rtj.EligibilityTraces()(x, FLAGS, x[0]), "3 arguments", "(3,)", "initial, valid, segment_ids, "),
    "too many, linear_recurrence": (
        lambda x: rtj.linear_recurrence(0.9, x, x[0]), "3 arguments", "(3,)", "initial, reverse, "),
    # Masks.
    "ids that are floats": (
        lambda x: gae(x, x, segment_ids=X), "segment_ids", "float32 and shape (4, 3)", "segment_ids.astype(np.int32)"),
    "ids that are flags": (lambda x: gae(x, x, segment_ids=FLAGS), "segment_ids", "bool", "ids.astype(np.int32)"),
    "ids beyond JAX's integers": (
        lambda x: gae(x, x, segment_ids=np.full((4, 3), 2**40)), "segment_ids", str(2**40), "np.unique"),
    "ids of another shape": (
        lambda x: gae(x, x, segment_ids=np.zeros(3, int)), "segment_ids", "(3,), but rewards", "that shape"),
    "a mask of another shape": (
        lambda x: rtj.vtrace(x, x, x, bootstrap_value=0.0, valid=FLAGS[0]), "valid", "(3,), but rewards", "that shape"),
    "a mask of probabilities": (lambda x: gae(x, x, valid=np.full((4, 3), 0.5)), "valid", "0.5", "must be 0 or 1"),
    "a mask, and truncated steps masked": (
        lambda x: gae(x, x, truncated=FLAGS, on_truncation="mask", valid=FLAGS), "valid", "on_trunc", "final_values"),
    "ids, and truncated steps masked": (
        lambda x: rtj.vtrace(x, x, x, truncated=FLAGS, bootstrap_value=0.0, on_truncation="mask",
                             segment_ids=np.zeros((4, 3), int)), "segment_ids", "on_truncation", "next_values"),
    "a mask of the features too": (
        lambda x: rtj.episodic_prefix_sum(x, FLAGS[:, 0], valid=FLAGS), "valid", "(4, 3), but inputs", "that shape"),
    "a mask of traces that is no leading shape": (
        lambda x: rtj.eligibility_traces(x, valid=FLAGS[:3]), "valid", "(3, 3), but gradients", "leading axes"),
    # Objects.
    "a hyperparameter twice": (lambda x: rtj.GAE(gamma=0.9)(x, x, gamma=1.0), "gamma", "0.9", "leave it out"),
    "a hyperparameter of another name": (
        lambda x: rtj.GAE(gae_lambda=0.9), "gae_lambda", "GAE has no", "mean lambda_?"),
    "a hyperparameter misspelt": (lambda x: rtj.VTrace(clip_rh0=1.0), "clip_rh0", "VTrace has no", "mean clip_rho?"),
    "a hyperparameter of nothing": (
        lambda x: rtj.EpisodicPrefixSum(gamma=0.9), "gamma", "EpisodicPrefixSum has no", "EpisodicPrefixSum takes ()"),
    "too many hyperparameters": (
        lambda x: rtj.DiscountedReturns(0.9, 0.9), "2 arguments", "DiscountedReturns was given", "takes 1 (gamma)"),
    "a hyperparameter by position and name": (
        lambda x: rtj.GAE(0.9, gamma=0.9), "gamma", "argument 1", "leave one out"),
    "a replacement of another name": (
        lambda x: dataclasses.replace(rtj.Retrace(), lam=0.9), "lam", "Retrace has no", "did you mean lambda_?"),
    # Pytrees.
    "a leaf of another shape": (
        lambda x: gae({"a": x, "b": x}, {"a": x, "b": x[:2]}), "at rewards['b']: values", "(2, 3)",
        "give values the shape"),
    "a leaf that is no array": (
        lambda x: gae({"a": {"b": x}}, {"a": {"b": "no"}}), "rewards['a']['b']: v", "str", "pass"),
    "another structure": (lambda x: gae({"a": x}, PAIR), "values", "'b'", "one array for all leaves, or"),
    "no leaves": (lambda x: gae({}, x), "rewards", "{}", "pass an array"),
    # The drop-ins.
    "rlax: a str": (lambda x: rlax.lambda_returns("r", x[:, 0], x[:, 0]), "r_t", "str", "pass a number or an array"),
    "rlax: objects": (
        lambda x: rlax.vtrace(FINAL_OBS, x[:3, 0], x[:3, 0], x[:3, 0], x[:3, 0]), "v_tm1", "object", "np.stack"),
    "rlax: None": (lambda x: rlax.discounted_returns(x[:, 0], x[:, 0], None), "v_t", "None", "pass an array"),
    "rlax: a batch": (lambda x: rlax.lambda_returns(x, x, x), "r_t", "(4, 3)", "jax.vmap"),
    "rlax: another length": (
        lambda x: rlax.lambda_returns(x[:, 0], x[:, 0], x[0]), "v_t", "(3,), but r_t has shape (4,)", "one length"),
    "rlax: T values": (
        lambda x: rlax.truncated_generalized_advantage_estimation(x[:, 0], x[:, 0], 0.9, x[:, 0]), "values", "(4,)",
        "one step more, (5,)"),
    "rlax: a scalar for values": (
        lambda x: rlax.importance_corrected_td_errors(x[:, 0], x[:, 0], x[:, 0], 0.9, 0.0), "values", "()", "(5,)"),
    "rlax: lambda_ of another length": (
        lambda x: rlax.n_step_bootstrapped_returns(x[:, 0], x[:, 0], x[:, 0], 2, x[0]), "lambda_t", "(3,)",
        "a scalar or"),
    "rlax: n in words": (
        lambda x: rlax.n_step_bootstrapped_returns(x[:, 0], x[:, 0], x[:, 0], "2"), "n is", "'2'", "pass an int"),
    "rlax: n traced": (
        lambda x: jax.jit(rlax.n_step_bootstrapped_returns)(x[:, 0], x[:, 0], x[:, 0], 2), "n is", "int32", "static"),
    "rlax: n = 0": (
        lambda x: rlax.n_step_bootstrapped_returns(x[:, 0], x[:, 0], x[:, 0], 0), "n is", "0", "1 step or more"),
    "rlax: a clip of another length": (
        lambda x: rlax.vtrace_td_error_and_advantage(*[x[:, 0]] * 5, clip_pg_rho_threshold=x[0]),
        "clip_pg_rho_threshold", "(3,)", "a scalar or"),
    "rlax: actions as floats": (
        lambda x: rlax.general_off_policy_returns_from_action_values(x, *[x[:, 0]] * 4, x), "a_t", "float32",
        "a_t.astype(int)"),
    "rlax: probabilities of another shape": (
        lambda x: rlax.retrace(x, x, *[FLAGS[:, 0].astype(int)] * 2, x[:, 0], x[:, 0], x.T, x[:, 0], 0.9), "pi_t",
        "(3, 4)", "the shape (K, A)"),
    "rlax: behaviour per action": (
        lambda x: rlax.retrace(x, x, *[FLAGS[:, 0].astype(int)] * 2, x[:, 0], x[:, 0], x, x, 0.9), "mu_t", "(4, 3)",
        "(T,)"),
    "rlax: stop in words": (
        lambda x: rlax.lambda_returns(*[x[:, 0]] * 3, stop_target_gradients="no"), "stop_target_gradients", "'no'",
        "True or False"),
    "rlax: another name": (lambda x: rlax.vtrace(*[x[:, 0]] * 5, lam=0.9), "lam", "vtrace has no", "mean lambda_?"),
    "rlax: alpha": (lambda x: rlax.leaky_vtrace(*[x[:, 0]] * 5, alpha=0.9), "alpha", "has no", "mean alpha_?"),
    "rlax: another shape of alpha": (
        lambda x: rlax.leaky_vtrace(*[x[:, 0]] * 5, alpha_=x[0]), "alpha_", "(3,)", "a scalar or per step (4,)"),
    "rlax: missing": (
        lambda x: rlax.general_off_policy_returns_from_q_and_v(x[:, 0]), "v_t", "was not given", "pass q_t"),
    "brax: objects": (
        lambda x: brax.compute_gae(FLAGS, FLAGS, x, X.astype(object), x[0]), "values", "dtype object", "np.stack"),
    "brax: another shape": (lambda x: brax.compute_gae(FLAGS[0], FLAGS, x, x, x[0]), "truncation", "(3,)", "one flag"),
    "brax: gamma": (
        lambda x: brax.compute_gae(FLAGS, FLAGS, x, x, x[0], gamma=0.9), "gamma", "has no", "mean discount?"),
    "brax: missing": (lambda x: brax.compute_gae(FLAGS, FLAGS, x, x), "bootstrap_value", "compute_gae was not", "pass"),
    "tunix: a sequence": (
        lambda x: tunix.compute_gae_advantages(x[0], x[0], FLAGS[0], 1.0, 1.0), "rewards", "(3,)", "an array [B, T]"),
    "tunix: no mask": (
        lambda x: tunix.compute_gae_advantages(x, x, None, 1.0, 1.0), "completion_mask", "is None", "pass an array"),
    "tunix: another shape": (
        lambda x: tunix.compute_gae_advantages(x, x, FLAGS[0], 1.0, 1.0), "completion_mask", "(3,)", "one flag"),
    "tunix: lambda_": (
        lambda x: tunix.compute_gae_advantages(x, x, FLAGS, 1.0, lambda_=1.0), "lambda_", "has no", "mean gae_lambda?"),
    "tunix: missing": (
        lambda x: tunix.compute_gae_advantages(x, x, FLAGS), "gamma and gae_lambda", "was not", "pass rewards"),
}  # fmt: skip

TRANSFORMS = {
    "eager": lambda call: call(X),
    "jit": lambda call: jax.jit(call)(X),
    "vmap": lambda call: jax.vmap(call)(X[None]),
    "grad": lambda call: jax.grad(lambda x: jnp.sum(jax.tree.leaves(call(x))[0]))(X),
}


@pytest.fixture
def whole_tracebacks():
    """Of JAX too, so that the frame which raised is the last one."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", before)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_refused_by_name_with_what_is_wrong_and_the_fix(name, transform, whole_tracebacks):
    call, *parts = CALLS[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        TRANSFORMS[transform](call)
    assert type(caught.value) in (TypeError, ValueError)
    for part in parts:
        assert part in str(caught.value)
    assert Path(rtj.__file__).parent in Path(caught.traceback[-1].path).parents, "the text of NumPy or JAX"


def test_the_table_reaches_everything_public():
    assert len(CALLS) >= 80
    used = {name for call, *_ in CALLS.values() for name in (*call.__code__.co_names, *_nested(call.__code__))}
    functions = [n for n in rtj.__all__ if n.islower() and hasattr(getattr(rtj, n), "__wrapped__")]
    assert {*functions, "GAE", "VTrace", "Retrace", "rlax", "brax", "tunix"} <= used
    assert len(functions) == 8


def _nested(code):
    return {name for c in code.co_consts if hasattr(c, "co_names") for name in c.co_names}


@pytest.mark.parametrize(
    "given",
    [Convertible(X.astype(float)), X.tolist(), list(X), [jnp.ones(3)] * 4, X.astype(">f8"), X.astype(int), X.data],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
def test_what_becomes_an_array_is_taken(given, traced):
    call = lambda x: gae(x, given, given, gamma=given).advantages
    got = (jax.jit(call) if traced else call)(X)
    np.testing.assert_allclose(got, gae(X, X, X, gamma=X).advantages, rtol=1e-6)


def test_lists_of_traced_numbers_are_taken():
    got = jax.jit(lambda g: gae(X, X, gamma=[g, 0.5, g], bootstrap_value=[g, g, g]).advantages)(0.9)
    want = gae(X, X, gamma=np.array([0.9, 0.5, 0.9], "f"), bootstrap_value=0.9)
    np.testing.assert_allclose(got, want.advantages, rtol=1e-6)


@pytest.mark.parametrize("axis", [np.int32(1), np.array(1), jnp.array(-1)], ids=lambda a: type(a).__name__)
def test_integers_of_any_kind_name_the_time_axis(axis):
    np.testing.assert_array_equal(rtj.discounted_returns(X, time_axis=axis), rtj.discounted_returns(X, time_axis=1))


def test_flags_may_have_dtypes_that_do_not_promote():
    for dtype in ("int4", "uint2", "float8_e4m3fn"):
        np.testing.assert_array_equal(gae(X, X, jnp.ones((4, 3), dtype)).advantages, gae(X, X, ~FLAGS).advantages)


class OfTwo(Exception):
    """It cannot be made of its text alone."""

    def __init__(self, what, where):
        super().__init__(f"{what} {where}")


@pytest.mark.parametrize("kind", ["TracerBoolConversionError", "OfTwo", "ValueError"])
def test_an_error_in_a_leaf_is_the_same_exception_and_says_where(kind):
    raised = []

    @over_leaves("inputs")
    def broken(inputs, *, time_axis=0, implementation=None):
        try:
            if kind == "TracerBoolConversionError":
                bool(inputs[0])
            raise OfTwo("too", "bad") if kind == "OfTwo" else ValueError("too bad")
        except Exception as error:
            raised.append(error)
            raise

    with pytest.raises(Exception) as caught:
        jax.jit(broken)({"a": [ROW]})
    assert caught.value is raised[0] and type(caught.value).__name__ == kind
    said = str(caught.value) if kind == "ValueError" else caught.value.__notes__[0]
    assert said.startswith("at inputs['a'][0]")


@dataclasses.dataclass(frozen=True)
class WithoutDefault(Estimator):
    function = rtj.discounted_returns
    gamma: Any


@pytest.mark.parametrize("estimator", [rtj.VTrace(gamma=0.9, clip_rho=2.0), WithoutDefault(0.9)], ids=repr)
def test_estimators_are_still_copied_and_pickled(estimator):
    for same in (copy.copy(estimator), copy.deepcopy(estimator), pickle.loads(pickle.dumps(estimator))):
        assert same == estimator


def test_estimators_are_still_replaced():
    assert dataclasses.replace(rtj.VTrace(clip_rho=2.0), gamma=0.5) == rtj.VTrace(gamma=0.5, clip_rho=2.0)
