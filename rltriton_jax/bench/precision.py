"""`python -m rltriton_jax bench --precision`: what each float dtype costs, against float64.

The errors of a result, as root mean squares over that of the exact result, are split into what comes of rounding

- `hyperparameters`: gamma and lambda to float32, in which the library keeps them;
- `inputs`: the data to the dtype;
- `computation`: the arithmetic, of which the states are float32 whatever the dtype;
- `output`: the result to the dtype.

`total` is all of it, and `own_scan` is the total of a `lax.scan` written by hand in the dtype, state included.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import rltriton_jax as rtj

STEPS = (10**2, 10**3, 10**4, 10**5, 10**6)
DTYPES = ("bfloat16", "float16", "float32")
SETTINGS = ((0.99, 0.95), (0.999, 1.0), (0.9999, 1.0), (1.0, 1.0))
"""(gamma, lambda), which are columns of one call."""

KINDS = ("zero_mean", "one_sign")


def scan(w, u, *, reverse: bool):
    """x[t] = u[t] + w[t] * x[t-1], or x[t+1] in reverse, in float64.

    In blocks of as many steps as there are blocks, so that Python loops over thousands of steps and not over a million.
    """
    w, u = np.broadcast_arrays(np.asarray(w, np.float64), np.asarray(u, np.float64))
    if reverse:
        return scan(w[::-1], u[::-1], reverse=False)[::-1]
    steps = len(u)
    length = max(1, math.isqrt(steps))
    filling = [(0, -steps % length)] + [(0, 0)] * (u.ndim - 1)
    w, x = (np.pad(a, filling).reshape(-1, length, *u.shape[1:]) for a in (w, u))
    for i in range(1, length):
        x[:, i] += w[:, i] * x[:, i - 1]
        w[:, i] *= w[:, i - 1]
    for i in range(1, len(x)):
        x[i] += w[i] * x[i - 1, -1]
    return x.reshape(-1, *u.shape[1:])[:steps]


@dataclass(frozen=True)
class Definition:
    """An estimator without flags, for NumPy and jnp alike.

    `maps(np, data, gamma, lambda_)` gives (w, u) of each step, and `result(np, data, gamma, lambda_, x)` what comes of
    the states x. `start` says that the scan starts from V(s_T). `settings` are those of SETTINGS that it can have.
    """

    name: str
    arrays: tuple[str, ...]
    maps: Callable[..., Any]
    result: Callable[..., Any] | None = None
    start: bool = False
    reverse: bool = True
    hyperparameters: tuple[str, ...] = ("gamma", "lambda_")
    settings: tuple[int, ...] = tuple(range(len(SETTINGS)))


def _delta(d, gamma):
    return d["rewards"] + gamma * d["values"][1:] - d["values"][:-1]


def _clipped(xp, d):
    return xp.minimum(1, xp.exp(d["log_rhos"]))


def _ahead(xp, x):
    return xp.concatenate([x[1:], xp.zeros_like(x[:1])])


def _vtrace(xp, d, gamma, lambda_):
    ratio = _clipped(xp, d)
    return gamma * lambda_ * ratio, ratio * _delta(d, gamma)


def _vtrace_advantages(xp, d, gamma, lambda_, x):
    return _clipped(xp, d) * (_delta(d, gamma) + gamma * lambda_ * _ahead(xp, x))


def _retrace(xp, d, gamma, lambda_):
    return gamma * lambda_ * _ahead(xp, _clipped(xp, d)), d["rewards"] + gamma * d["next_state_values"] - d["q_values"]


def _retrace_advantages(xp, d, gamma, lambda_, x):
    following = xp.concatenate([(d["q_values"] + x)[1:], d["next_state_values"][-1:]])
    return _clipped(xp, d) * (d["rewards"] + gamma * following - d["q_values"])


def _lambda_returns(xp, d, gamma, lambda_):
    return gamma * lambda_, d["rewards"] + gamma * (1 - lambda_) * d["values"][1:]


DEFINITIONS = (
    Definition("gae", ("rewards", "values"), lambda xp, d, gamma, lambda_: (gamma * lambda_, _delta(d, gamma))),
    Definition("vtrace", ("rewards", "values", "log_rhos"), _vtrace, _vtrace_advantages),
    Definition(
        "retrace", ("rewards", "q_values", "log_rhos", "next_state_values"), _retrace, _retrace_advantages
    ),
    Definition("lambda_returns", ("rewards", "values"), _lambda_returns, start=True),
    Definition(
        "discounted_returns", ("rewards", "bootstrap_value"), lambda xp, d, gamma, lambda_: (gamma, d["rewards"]),
        start=True, hyperparameters=("gamma",), settings=(1, 2, 3),
    ),
    Definition(
        "eligibility_traces", ("gradients",), lambda xp, d, gamma, lambda_: (gamma * lambda_, d["gradients"]),
        reverse=False,
    ),
    Definition(
        "episodic_prefix_sum", ("inputs",), lambda xp, d, gamma, lambda_: (gamma, d["inputs"]),
        reverse=False, hyperparameters=(), settings=(3,),
    ),
)  # fmt: skip


def data(definition: Definition, kind: str, steps: int) -> dict[str, np.ndarray]:
    """Float64 arrays [steps, settings, environments], of fewer environments the longer they are.

    Rewards are normal, or uniform in [0, 1]; values are then what is to be expected up to the window's end. Both are
    1 off, normally. Log ratios are those of a policy some updates old.
    """
    rng = np.random.default_rng(0)
    rows = min(64, max(1, 10**5 // steps))
    shape = (len(SETTINGS), rows)
    rewards = rng.normal(size=(steps, *shape)) if kind == "zero_mean" else rng.random((steps, *shape))
    values = rng.normal(size=(steps + 1, *shape))
    if kind == "one_sign":
        gamma = np.array(SETTINGS)[:, 0]
        values += 0.5 * scan(gamma, np.ones((steps + 1, len(SETTINGS))), reverse=True)[..., None]
    found = {
        "rewards": rewards,
        "values": values,
        "log_rhos": 0.1 * rng.normal(size=(steps, *shape)),
        "q_values": values[:-1],
        "next_state_values": values[1:],
        "bootstrap_value": values[-1],
        "gradients": rewards,
        "inputs": rewards,
    }
    return {name: found[name] for name in definition.arrays}


def _start(d):
    return d["values"][-1] if "values" in d else d["bootstrap_value"]


def exact(definition: Definition, d, gamma, lambda_):
    """The result in float64."""
    w, u = definition.maps(np, d, gamma, lambda_)
    w, u = np.broadcast_arrays(w, u)
    if definition.start:
        u = np.concatenate([u[:-1], u[-1:] + w[-1] * _start(d)])
    x = scan(w, u, reverse=definition.reverse)
    return x if definition.result is None else definition.result(np, d, gamma, lambda_, x)


def ours(definition: Definition):
    """The library's result, by the default implementation."""

    def run(d, gamma, lambda_):
        hyper = {k: v for k, v in (("gamma", gamma), ("lambda_", lambda_)) if k in definition.hyperparameters}
        estimate = getattr(rtj, definition.name)(**d, **hyper)
        return estimate.advantages if isinstance(estimate, rtj.Estimate) else estimate

    return jax.jit(run)


def own_scan(definition: Definition):
    """What is written by hand: all of it, the carry too, in the dtype of the data.

    The loop's numbers are float32, rounded to the dtype after each product and sum: loops over 16-bit floats convert
    all steps in each step on a CPU.
    """

    def run(d, gamma, lambda_):
        dtype = d[definition.arrays[0]].dtype
        info = jnp.finfo(dtype)
        kept = partial(lax.reduce_precision, exponent_bits=info.nexp, mantissa_bits=info.nmant)
        gamma, lambda_ = (x.astype(dtype)[None] for x in (gamma, lambda_))
        w, u = (x.astype(jnp.float32) for x in definition.maps(jnp, d, gamma, lambda_))

        def step(carry, wu):
            x = kept(wu[1] + kept(wu[0] * carry))
            return x, x

        start = _start(d).astype(jnp.float32) if definition.start else jnp.zeros(u.shape[1:], jnp.float32)
        x = lax.scan(step, start, (jnp.broadcast_to(w, u.shape), u), reverse=definition.reverse)[1].astype(dtype)
        return x if definition.result is None else definition.result(jnp, d, gamma, lambda_, x)

    return jax.jit(run)


def measure(definition: Definition, kind: str, steps: int, mine, by_hand) -> list[dict[str, Any]]:
    """A row for each setting: the relative errors in each dtype, None where a number is too large for the dtype."""
    gamma, lambda_ = np.array(SETTINGS).T[..., None]
    kept = [x.astype(np.float32) for x in (gamma, lambda_)]
    wide = data(definition, kind, steps)
    best = exact(definition, wide, gamma, lambda_)
    kept_best = exact(definition, wide, *map(_wide, kept))

    def relative(error):
        found = np.sqrt(np.mean(np.square(error), (0, 2)) / np.mean(np.square(best), (0, 2)))
        return [_number(x) for x in found]

    found: dict[str, dict[str, list]] = {}
    for dtype in DTYPES:
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = {k: x.astype(jnp.dtype(dtype)) for k, x in wide.items()}
            of_rounded = exact(definition, {k: _wide(x) for k, x in rounded.items()}, *map(_wide, kept))
            before = _wide(mine({k: x.astype(np.float32) for k, x in rounded.items()}, *kept))
            after = _wide(mine(rounded, *kept))
            found[dtype] = {
                "inputs": relative(of_rounded - kept_best),
                "computation": relative(before - of_rounded),
                "output": relative(after - before),
                "total": relative(after - best),
                "own_scan": relative(_wide(by_hand(rounded, *kept)) - best),
            }
    hyperparameters = relative(kept_best - best)
    return [
        {
            "estimator": definition.name,
            "data": kind,
            "gamma": SETTINGS[i][0],
            "lambda_": SETTINGS[i][1],
            "steps": steps,
            "hyperparameters": hyperparameters[i],
            **{dtype: {part: x[i] for part, x in parts.items()} for dtype, parts in found.items()},
        }
        for i in definition.settings
    ]


def _number(x) -> float | None:
    return float(f"{x:.2g}") if np.isfinite(x) else None


def _wide(x):
    return np.asarray(x).astype(np.float64)


def work(rows: list) -> Iterator[tuple[str, list, Callable[[], list]]]:
    """What is measured: its name, the list that keeps it, and what measures it."""
    for definition in DEFINITIONS:
        functions = ours(definition), own_scan(definition)
        for kind, steps in itertools.product(KINDS, STEPS):
            yield f"{definition.name} {kind} {steps}", rows, partial(measure, definition, kind, steps, *functions)


def table(rows) -> str:
    """The total in each dtype, and that of a scan by hand, at the middle one of the lengths."""
    lengths = list(dict.fromkeys(r["steps"] for r in rows))
    steps = lengths[len(lengths) // 2]
    heads = ("estimator", "data", "gamma", "lambda", *(d for dtype in DTYPES for d in (dtype, "own scan")))
    form = "{:20} {:10} {:>7} {:>6}" + " {:>9}" * 2 * len(DTYPES)
    lines = [f"Relative errors at {steps} steps", form.format(*heads)]
    for r in rows:
        if r["steps"] == steps:
            errors = [r[dtype][part] for dtype in DTYPES for part in ("total", "own_scan")]
            numbers = ["overflow" if x is None else f"{x:.1e}" for x in errors]
            lines.append(form.format(r["estimator"], r["data"], r["gamma"], r["lambda_"], *numbers))
    return "\n".join(lines)


PLOTTED = (0.999, 1.0)
"""The setting that is plotted; prefix sums have 1 only."""


def plot(report, file, kind: str = "png") -> None:
    """A column for each estimator, a row for each kind of data; a line ends where a number is too large, or 0."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(r["estimator"] for r in report["rows"]))
    figure, panels = plt.subplots(
        len(KINDS), len(names), figsize=(1 + 1.8 * len(names), 5.6), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    colors = dict(zip(DTYPES, ("tab:orange", "tab:purple", "tab:green"), strict=True))
    styles = {"total": "-", "computation": ":", "own_scan": "--"}
    words = {"total": "all", "computation": "arithmetic alone", "own_scan": "lax.scan by hand, carry in the dtype"}
    for (row, of_kind), (column, name) in itertools.product(enumerate(KINDS), enumerate(names)):
        axes = panels[row, column]
        plotted = (1.0, 1.0) if name == "episodic_prefix_sum" else PLOTTED
        wanted = (name, of_kind, *plotted)
        chosen = [r for r in report["rows"] if (r["estimator"], r["data"], r["gamma"], r["lambda_"]) == wanted]
        for (dtype, color), (part, style) in itertools.product(colors.items(), styles.items()):
            y = [r[dtype][part] or np.nan for r in chosen]
            axes.loglog([r["steps"] for r in chosen], y, style, color=color, marker=".", markersize=4, linewidth=1.4)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if row == 0:
            axes.set_title(f"{name}\n" + rf"$\gamma = {plotted[0]:g}, \lambda = 1$", fontsize=9)
        else:
            axes.set_xlabel("steps")
            axes.set_xticks(STEPS[::2])
    for axes, of_kind in zip(panels[:, 0], KINDS, strict=True):
        axes.set_ylabel({"zero_mean": "zero-mean data", "one_sign": "data of one sign"}[of_kind] + "\nrelative error")
    for dtype, color in colors.items():
        panels[0, 0].plot([], [], color=color, label=dtype)
    for part, style in styles.items():
        panels[0, 0].plot([], [], style, color="black", label=words[part])
    figure.legend(loc="outside lower center", ncols=len(colors) + len(styles), frameon=False, fontsize=9)
    figure.savefig(file, format=kind, dpi=130)
    plt.close(figure)
