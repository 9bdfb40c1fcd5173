"""Device time on a GPU, wall time elsewhere."""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

CACHE_BYTES = 256 * 2**20
"""Calls take turns on sets of inputs of so many bytes in all: several times a GPU's last cache, so none is in it."""


def num_sets(bytes_per_call: int) -> int:
    """How many sets of inputs to rotate over."""
    return max(2, min(32, -(-CACHE_BYTES // max(1, bytes_per_call))))


def microseconds(function: Callable[..., Any], sets: Sequence[tuple[Any, ...]], *, rounds: int = 4) -> float:
    """The time of one call of a compiled function: the profiler's kernel events on a GPU, else the median of walls."""
    jax.block_until_ready([function(*s) for s in sets[:2]])
    if jax.default_backend() != "gpu":
        return _wall(function, sets, rounds)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(rounds):
                jax.block_until_ready([function(*s) for s in sets])
        return _kernel_events(Path(folder)) / (rounds * len(sets)) / 1e3


def _wall(function, sets, rounds):
    times = []
    for _ in range(max(rounds, 15 // len(sets) + 1)):
        for s in sets:
            begin = time.perf_counter()
            jax.block_until_ready(function(*s))
            times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def _kernel_events(folder: Path) -> float:
    """The sum of all events on the streams of all GPUs, in nanoseconds."""
    (file,) = folder.rglob("*.xplane.pb")
    data = jax.profiler.ProfileData.from_file(str(file))
    return sum(
        event.duration_ns
        for plane in data.planes
        if "GPU" in plane.name
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    )
