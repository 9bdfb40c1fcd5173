"""GAE on a CPU against the reverse `lax.scan` written by hand: what `python -m rltriton_jax bench` runs there first."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rltriton_jax.bench import cases
from rltriton_jax.scan.lowering import implementation_on

SHAPES = tuple((steps, rows) for steps in (16, 128, 2048) for rows in (1, 64, 2048))
"""(steps, rows), time-major."""

SECONDS, PAIRS, COMPILATIONS = 1.0, 15, 5
"""For how long a pair of functions is timed, at least how often, and how often both are compiled."""


def measure(steps: int, rows: int) -> list[dict[str, Any]]:
    """One row: the medians of interleaved pairs, in microseconds, and compile times, in milliseconds."""
    ours, hand = cases.CASES[0].function(True), cases.plain_scan(1)
    return [
        {
            "steps": steps,
            "rows": rows,
            "implementation": implementation_on("cpu"),
            "forward": _compare(ours, hand, steps, rows),
            "gradient": _compare(_gradient(ours), _gradient(hand), steps, rows),
        }
    ]


def _gradient(function):
    """That of the sum of squared advantages with respect to rewards and values."""

    def run(arrays):
        def loss(rewards, values):
            return jnp.sum(function({**arrays, "rewards": rewards, "values": values}) ** 2)

        return jax.grad(loss, (0, 1))(arrays["rewards"], arrays["values"])

    return jax.jit(run)


def _compare(ours, hand, steps: int, rows: int) -> dict[str, float]:
    arrays = cases.CASES[0].inputs(np.random.default_rng(0), rows, steps, time_major=True)
    compiled, milliseconds = zip(*(_compiled(f, arrays) for f in (ours, hand)))
    us = [1e6 * t for t in _interleaved(compiled, arrays)]
    return {
        "microseconds": round(us[0], 2),
        "hand_written_microseconds": round(us[1], 2),
        "ratio": round(us[0] / us[1], 2),
        "compile_milliseconds": round(milliseconds[0], 1),
        "compile_ratio": round(milliseconds[0] / milliseconds[1], 2),
    }


def _compiled(function, arrays) -> tuple[Callable[..., Any], float]:
    """The compiled function, and the quickest of several times from tracing to the end of compilation."""

    def timed():
        jax.clear_caches()
        begin = time.perf_counter()
        compiled = function.lower(arrays).compile()
        return compiled, 1e3 * (time.perf_counter() - begin)

    made = [timed() for _ in range(COMPILATIONS)]
    return made[0][0], min(taken for _, taken in made)


def _interleaved(functions, arrays) -> list[float]:
    """The median time of a call of each function, called in turn."""
    times: list[list[float]] = [[] for _ in functions]
    jax.block_until_ready([function(arrays) for function in functions])
    end = time.perf_counter() + SECONDS
    while len(times[0]) < PAIRS or time.perf_counter() < end:
        for function, taken in zip(functions, times, strict=True):
            begin = time.perf_counter()
            jax.block_until_ready(function(arrays))
            taken.append(time.perf_counter() - begin)
    return [statistics.median(taken) for taken in times]


def table(rows) -> str:
    heads = ("steps x rows", "implementation", "forward us", "ratio", "gradient us", "ratio", "compile", "gradient's")
    lines = ["{:>14} {:16} {:>11} {:>6} {:>12} {:>6} {:>8} {:>11}".format(*heads)]
    for r in rows:
        forward, gradient = r["forward"], r["gradient"]
        lines.append(
            f"{r['steps']:>5} x {r['rows']:<6} {r['implementation']:16} {forward['microseconds']:11.1f} "
            f"{forward['ratio']:6.2f} {gradient['microseconds']:12.1f} {gradient['ratio']:6.2f} "
            f"{forward['compile_ratio']:8.2f} {gradient['compile_ratio']:11.2f}"
        )
    return "\n".join(["GAE, ratios to a hand-written reverse lax.scan (unroll 1)", *lines])
