"""Numbers that nobody wants, wherever the formulas do not look."""

import jax.numpy as jnp
import numpy as np
from cases import FLOATS, Case

GARBAGE = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0)

OF_THE_SUCCESSOR = ("next_values", "next_state_values", "next_q_values", "next_target_probs", "final_values")


def split(case: Case, kwargs):
    """The arguments that are differentiated, and the others."""
    floats = {k: jnp.asarray(v) for k, v in kwargs.items() if k in FLOATS or k in case.hyperparameters}
    return floats, {k: v for k, v in kwargs.items() if k not in floats}


def ends(kwargs):
    """Where an episode ends: flags [T, N] of the steps after which nothing is carried on, in scan order."""
    if kwargs.get("boundary") == "starts_at":
        return np.concatenate([kwargs["done"][1:], np.zeros_like(kwargs["done"][:1])])
    if "done" in kwargs:
        return kwargs["done"]
    return kwargs["terminated"] | kwargs.get("truncated", False)


def _behind_masks(kwargs, rng):
    """The arguments with garbage at every step that is not valid."""
    bad = dict(kwargs)
    for name in FLOATS & kwargs.keys() - {"bootstrap_value", "initial"}:
        x = np.array(kwargs[name])
        where = ~kwargs["valid"] if name != "final_values" else ~kwargs["truncated"] | kwargs["terminated"]
        x[: len(where)][where] = rng.choice(GARBAGE, size=x[: len(where)][where].shape)
        bad[name] = x
    return bad


def garbage(case: Case, kwargs, rng):
    """Arguments with garbage in one episode of each row and where no V' is read; and which results must stay.

    Where steps may be left out it is behind these instead. Data are [T, N]. The results of the poisoned episode do not
    count, unless it is the row's only one: it stays then.
    """
    if "valid" in case.optional:
        return _behind_masks(kwargs, rng), np.ones(kwargs["valid"].shape, bool)
    end = np.array(ends(kwargs))
    steps, rows = end.shape
    episode = np.cumsum(np.concatenate([np.zeros((1, rows), int), end[:-1]]), 0)
    poisoned = episode == rng.integers(0, episode[-1] + 1)
    poisoned &= (episode[-1] > 0) & (~poisoned[-1] | end[-1])
    no_successor = kwargs["terminated"] if "terminated" in kwargs else np.zeros_like(end)
    bad = dict(kwargs)
    for name in FLOATS & kwargs.keys():
        x = np.array(kwargs[name])
        if name == "bootstrap_value":
            where = end[-1]
        elif name == "initial":
            where = poisoned[0] & np.logical_not(kwargs["done"][0] if kwargs.get("boundary") == "starts_at" else False)
        else:
            where = poisoned
            if name in OF_THE_SUCCESSOR:
                where = where | no_successor
            if name == "final_values":
                where = where | ~kwargs["truncated"]
            if name == "values" and len(x) == steps + 1:
                where = np.concatenate([where, no_successor[-1:]])
        chosen = rng.choice(GARBAGE, size=x.shape).astype(x.dtype)
        bad[name] = np.where(where.reshape(where.shape + (1,) * (x.ndim - where.ndim)), chosen, x)
    if kwargs.get("on_truncation") == "mask":
        bad["bootstrap_value"] = np.where(end[-1], bad["bootstrap_value"], kwargs["bootstrap_value"])
    return bad, ~poisoned
