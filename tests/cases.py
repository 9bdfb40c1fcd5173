"""The case registry that the tests share: for each estimator its function, its reference and random arguments."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import reference

import rltriton_jax as rtj

LENGTHS = (1, 2, 3, 7, 128, 129, 1000)
FLAGS = ("none", "all", "random", "first", "last")
DTYPES = ("float32", "bfloat16", "float16", "float64")
LAYOUTS = ("time_major", "batch_major", "between")

PER_STEP = {"rewards", "values", "log_rhos", "q_values", "next_values", "final_values", "next_state_values",
            "gradients", "inputs", "terminated", "truncated", "done", "next_q_values", "next_target_probs", "valid",
            "segment_ids"}  # fmt: skip
FLOATS = PER_STEP - {"terminated", "truncated", "done", "valid", "segment_ids"} | {"bootstrap_value", "initial"}


@dataclass(frozen=True)
class Case:
    """One estimator with the arguments that it takes."""

    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any]
    required: tuple[str, ...]
    hyperparameters: dict[str, float]
    optional: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self):
        return "-".join([self.name, *self.optional, *(str(v) for _, v in self.options)])


_GAE = {"gamma": 0.97, "lambda_": 0.9}
_VTRACE = {"gamma": 0.97, "lambda_": 0.9, "clip_rho": 1.5, "clip_c": 1.1, "clip_pg_rho": 2.0}
_RETRACE = {"gamma": 0.97, "lambda_": 0.9, "clip_c": 1.1, "clip_rho": 1.5}
_BOUNDARIES = ("terminated", "truncated", "final_values", "bootstrap_value")

CASES = (
    Case("gae", rtj.gae, reference.gae, ("rewards", "values"), _GAE, _BOUNDARIES),
    Case("gae", rtj.gae, reference.gae, ("rewards", "values"), _GAE, ("terminated", "truncated", "next_values")),
    Case("gae", rtj.gae, reference.gae, ("rewards", "values"), _GAE, ("terminated", "extra_row")),
    Case("gae", rtj.gae, reference.gae, ("rewards", "values"), _GAE, ("terminated", "truncated", "bootstrap_value"),
         (("on_truncation", "mask"),)),
    Case("vtrace", rtj.vtrace, reference.vtrace, ("rewards", "values", "log_rhos"), _VTRACE, _BOUNDARIES),
    Case("vtrace", rtj.vtrace, reference.vtrace, ("rewards", "values", "log_rhos"), _VTRACE,
         ("terminated", "truncated", "next_values")),
    Case("vtrace", rtj.vtrace, reference.vtrace, ("rewards", "values", "log_rhos"), _VTRACE,
         ("terminated", "truncated", "bootstrap_value"), (("on_truncation", "mask"),)),
    Case("retrace", rtj.retrace, reference.retrace, ("rewards", "q_values", "log_rhos"), _RETRACE,
         ("terminated", "truncated", "next_state_values")),
    Case("retrace", rtj.retrace, reference.retrace, ("rewards", "q_values", "log_rhos"), _RETRACE,
         ("terminated", "truncated", "next_q_values", "next_target_probs")),
    Case("lambda_returns", rtj.lambda_returns, reference.lambda_returns, ("rewards",), _GAE, ("values", *_BOUNDARIES)),
    Case("lambda_returns", rtj.lambda_returns, reference.lambda_returns, ("rewards",), _GAE,
         ("terminated", "truncated", "next_values")),
    Case("discounted_returns", rtj.discounted_returns, reference.discounted_returns, ("rewards",), {"gamma": 0.97},
         _BOUNDARIES),
    Case("eligibility_traces", rtj.eligibility_traces, reference.eligibility_traces, ("gradients",), _GAE,
         ("done", "initial")),
    Case("episodic_prefix_sum", rtj.episodic_prefix_sum, reference.episodic_prefix_sum, ("inputs",), {},
         ("done", "initial")),
    Case("episodic_prefix_sum", rtj.episodic_prefix_sum, reference.episodic_prefix_sum, ("inputs",), {},
         ("done", "initial"), (("boundary", "starts_at"),)),
    Case("linear_recurrence", rtj.linear_recurrence, reference.linear_recurrence, ("inputs",), {"weights": 0.9},
         ("initial",), (("reverse", True),)),
    Case("linear_recurrence", rtj.linear_recurrence, reference.linear_recurrence, ("inputs",), {"weights": 0.9},
         ("initial",)),
)  # fmt: skip

_MASKS = ("valid", "segment_ids")


def _without_steps(case: Case, *optional: str) -> Case:
    """The case, with arguments that say which of its steps are there."""
    deleted = reference.with_steps_deleted if case.required[0] == "rewards" else reference.forward_with_steps_deleted
    return replace(
        case, reference=partial(deleted, case.reference, case.required[0]), optional=(*case.optional, *optional)
    )


MASKED = tuple(
    _without_steps(case, *_MASKS)
    for case in CASES
    if case.name != "linear_recurrence" and ("on_truncation", "mask") not in case.options
)
"""Every estimator with every source of successors, where steps may be left out and sequences end where ids change."""

ESTIMATORS = tuple({case.name: case for case in reversed(CASES)}.values())[::-1]
"""One case an estimator, for tests whose subject is not the arguments."""

SUMS = next(case for case in CASES if "next_q_values" in case.optional)
"""The case whose operands have an axis more, of actions, over which the scan sums."""

WINDOWS = tuple(
    (case, steps, layout)
    for case in CASES
    for steps in LENGTHS
    for layout in LAYOUTS
    if steps < 128 or layout == "time_major" or case in ESTIMATORS
) + tuple((case, *window) for case in MASKED for window in ((1, "time_major"), (7, "batch_major"), (129, "time_major")))
"""Every estimator at every length in every layout; long windows of the other argument sets in one layout."""


def window_id(window):
    return "-".join(map(str, window))


def flags(kind: str, rng, shape):
    if kind == "random":
        return rng.random(shape) < 0.2
    out = np.full(shape, kind == "all")
    if kind in ("first", "last"):
        out[0 if kind == "first" else -1] = True
    return out


def arguments(
    case: Case, rng, steps: int, batch=(3,), *, flags_kind="random", dtype="float32", hyper="scalar", actions=4
):
    """Time-major NumPy arguments, quantised to `dtype`; hyperparameters scalar, per batch element or per step."""
    shape = (steps, *batch)
    out: dict[str, Any] = {}
    for name in (*case.required, *case.optional):
        if name == "extra_row":
            out["values"] = rng.normal(size=(steps + 1, *batch))
        elif name in ("terminated", "truncated", "done"):
            out[name] = flags(flags_kind, rng, shape)
        elif name == "valid":
            out[name] = rng.random(shape) < 0.6
        elif name == "segment_ids":
            out[name] = np.cumsum(rng.random(shape) < 0.15, axis=0, dtype=np.int32)
        elif name in ("bootstrap_value", "initial"):
            out[name] = rng.normal(size=batch)
        elif name == "next_target_probs":
            out[name] = rng.dirichlet(np.ones(actions), size=shape)
        elif name == "next_q_values":
            out[name] = rng.normal(size=(*shape, actions))
        else:
            out[name] = rng.normal(size=shape)
    for name in FLOATS & out.keys():
        out[name] = np.asarray(jnp.asarray(out[name], dtype))
    state = np.float64 if dtype == "float64" else np.float32
    for name, value in case.hyperparameters.items():
        extent = {"scalar": (), "batch": batch, "step": (steps, *(1 for _ in batch)), "both": shape}[hyper]
        if hyper in ("step", "both") and "initial" in out and case.name == "eligibility_traces":
            out.pop("initial")
        out[name] = (value + 0.02 * rng.random(extent)).astype(state) if extent else state(value)
    return {**out, **dict(case.options)}


def laid_out(kwargs, layout: str):
    """The time-major arguments in another layout, and the time axis that it has. Needs two batch axes if 'between'."""
    axis = {"time_major": 0, "batch_major": -1, "between": 1}[layout]
    ndim = max(np.ndim(kwargs[k]) for k in kwargs if k in ("rewards", "gradients", "inputs"))

    def move(name, x):
        per_step = name in PER_STEP or np.ndim(x) == ndim
        return np.ascontiguousarray(np.moveaxis(x, 0, axis % ndim)) if per_step and np.ndim(x) >= ndim else x

    return {k: move(k, v) for k, v in kwargs.items()}, axis % ndim


def outputs(result):
    return tuple(result) if isinstance(result, tuple) else (result,)


def assert_close(case: Case, got, kwargs, *, dtype="float32", ulps=4):
    """Within ulps * eps * scale of the reference, where scale is the same recurrence on absolute values."""
    want = case.reference(**kwargs)
    absolute = {
        k: np.abs(np.asarray(v, np.float64)) if k in FLOATS and k != "log_rhos" else v for k, v in kwargs.items()
    }
    scale = case.reference(**absolute, minus=1.0)
    eps = float(jnp.finfo(dtype).eps)
    assert len(got) == len(want)
    for name, g, w, s in zip(("first output", "second output"), got, want, scale):
        assert g.dtype == jnp.dtype(dtype) and g.shape == w.shape, (name, g.dtype, g.shape, w.shape)
        error = np.abs(np.asarray(g, np.float64) - w)
        assert np.all(error <= ulps * eps * s), f"{name}: {np.nanmax(error / (eps * s + 1e-300)):.1f} ulps"


def check(case: Case, kwargs, layout: str, dtype: str, implementation: str | None):
    """Calls the estimator in `layout` and compares with the reference."""
    placed, axis = laid_out(kwargs, layout)
    results = outputs(case.function(**placed, time_axis=axis, implementation=implementation))
    assert_close(case, [np.moveaxis(np.asarray(g), axis, 0) for g in results], kwargs, dtype=dtype)


def primitives(jaxpr):
    """Every equation of a traced program, those of the programs that it calls included."""
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            if hasattr(value, "jaxpr"):
                yield from primitives(value.jaxpr)
