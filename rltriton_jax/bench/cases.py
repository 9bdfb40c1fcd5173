"""What the bench times: each estimator with its arguments, its yardstick and plain-JAX baselines."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rltriton_jax as rtj
from rltriton_jax.bench import baselines

SHAPES = ((4096, 128), (16384, 512), (512, 4096), (64, 8192), (65536, 32), (8, 131072))
"""(rows, steps): many environments with short rollouts, down to few with very long ones."""

QUICK_SHAPES = ((4096, 128), (512, 4096))
CPU_SHAPES = ((4096, 128), (64, 1024))
ACTIONS = 4

FLAGS = ("terminated", "truncated", "done")
ONE_PER_ROW = ("bootstrap_value", "initial")
"""Arguments without a time axis: too small to count as traffic."""


@dataclass(frozen=True)
class BenchCase:
    """An estimator as a function of named arrays, `outputs` of which are kept."""

    name: str
    arrays: tuple[str, ...]
    call: Callable[..., Any]
    outputs: int

    def bytes(self, rows: int, steps: int) -> int:
        per_step = sum(ACTIONS if a.startswith("next_") else 1 for a in self.arrays if a not in ONE_PER_ROW)
        return 4 * rows * steps * (per_step + self.outputs)

    def inputs(self, rng, rows: int, steps: int, time_major: bool) -> dict[str, Any]:
        return {name: jax.device_put(_array(name, rng, rows, steps, time_major)) for name in self.arrays}

    def function(self, time_major: bool, **options):
        axis = 0 if time_major else 1

        def run(arrays):
            return self.call(**arrays, time_axis=axis, **options)

        return jax.jit(run)

    def reference(self, arrays, time_major: bool):
        """The sequential scan in float64 on the CPU."""
        with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
            wide = {k: np.asarray(v, np.float64) for k, v in arrays.items()}
            return jax.tree.map(np.asarray, self.function(time_major, implementation="scan")(wide))

    def yardstick(self):
        """An elementwise pass over the same inputs that writes as many outputs: no scan."""

        def run(arrays):
            total = 0.0
            for i, (name, x) in enumerate(arrays.items()):
                if name.startswith("next_"):
                    x = jnp.sum(x, -1)
                if name not in ONE_PER_ROW:
                    total = total + (0.9 + i) * x
            return tuple(total * (k + 1.5) for k in range(self.outputs))

        return jax.jit(run)


BOUND = 64
"""How many units in the last place of the largest value a float32 result may be off."""


def ulps(got, want) -> float:
    """The largest error of float32 results, in units in the last place of the largest value."""
    worst = 0.0
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        scale = np.finfo(np.float32).eps * np.max(np.abs(w), initial=1.0)
        error = np.max(np.abs(np.asarray(g, np.float64) - w), initial=0.0) / scale
        worst = max(worst, float(error) if np.isfinite(error) else np.inf)
    return worst


def _array(name, rng, rows, steps, time_major):
    shape = (steps, rows) if time_major else (rows, steps)
    if name in ONE_PER_ROW:
        return rng.standard_normal(rows, dtype=np.float32)
    if name in FLAGS:
        return (rng.random(shape, dtype=np.float32) < 0.02).astype(np.float32)
    if name.startswith("next_"):
        x = rng.random((*shape, ACTIONS), dtype=np.float32)
        return x / x.sum(-1, keepdims=True) if name == "next_target_probs" else x
    scale = np.float32(0.3 if name == "log_rhos" else 1)
    return scale * rng.standard_normal(shape, dtype=np.float32)


def _advantages(**kwargs):
    return rtj.gae(**kwargs).advantages


CASES = (
    BenchCase("gae", ("rewards", "values", "terminated", "bootstrap_value"), _advantages, 1),
    BenchCase("vtrace", ("rewards", "values", "log_rhos", "terminated", "bootstrap_value"), rtj.vtrace, 2),
    BenchCase("retrace", ("rewards", "q_values", "log_rhos", "terminated", "next_q_values", "next_target_probs"),
              rtj.retrace, 2),
    BenchCase("lambda_returns", ("rewards", "values", "terminated", "bootstrap_value"), rtj.lambda_returns, 1),
    BenchCase("discounted_returns", ("rewards", "terminated", "bootstrap_value"), rtj.discounted_returns, 1),
    BenchCase("eligibility_traces", ("gradients", "done"), rtj.eligibility_traces, 1),
    BenchCase("episodic_prefix_sum", ("inputs", "done"), rtj.episodic_prefix_sum, 1),
)  # fmt: skip


def _baseline(function, *args, **options):
    """A function of time-major GAE as one of named arrays, with the estimators' default gamma and lambda."""

    def run(arrays):
        rollout = (arrays[name] for name in ("rewards", "values", "terminated", "bootstrap_value"))
        return function(*args, *rollout, 0.99, 0.95, **options)

    return jax.jit(run)


def plain_scan(unroll: int):
    """GAE as learners write it by hand today."""
    return _baseline(baselines.reverse_scan_gae, unroll=unroll)


def rlax_gae():
    """rlax's GAE, or None where rlax is not installed."""
    try:
        import rlax
    except ImportError:
        return None
    return _baseline(baselines.rlax_gae, rlax)
