"""A training run in pieces that can be interrupted, and what it has come to."""

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import numpy as np

from rltriton_jax.commands import aside, progress
from rltriton_jax.train import ppo
from rltriton_jax.train.config import Config
from rltriton_jax.train.environments import Environment
from rltriton_jax.train.estimates import implementation_of


@dataclass
class Training:
    """What there is of a run at any time; after `run` all of it."""

    config: Config
    environment: Environment
    updates: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(environment steps, mean return of the episodes that ended in the rollout)"""
    returns: np.ndarray | None = None
    """Of the evaluation's episodes, and `ended` says which of them ended."""
    ended: np.ndarray | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def steps(self) -> int:
        return self.updates * self.config.rollout

    @property
    def total(self) -> int:
        return self.config.num_updates * self.config.rollout

    def run(self) -> None:
        """Compiles, trains and evaluates; an interrupt ends it at once."""
        options = {"total": self.total, "unit": "step", "unit_scale": True}
        try:
            with progress("compiling", **options) as bar, self._timed("total"):
                aside(self._run, bar)
        except KeyboardInterrupt:
            self.interrupted = True

    def _run(self, bar) -> None:
        config = self.config
        key, key_eval = jax.random.split(jax.random.key(config.seed))
        with self._timed("compile"):
            init, update = map(jax.jit, ppo.make_learner(config, self.environment))
            carry = init.lower(key).compile()(key)
            update = update.lower(carry).compile()
        bar.set_description_str("training", refresh=False)
        bar.reset()
        begin = time.perf_counter()
        while self.updates < config.num_updates:
            carry, mean_return = update(carry)
            mean_return = float(mean_return)
            if self.interrupted:  # the main thread reports already
                return
            self.updates += 1
            self.seconds["train"] = time.perf_counter() - begin
            if not math.isnan(mean_return):
                self.curve.append((self.steps, mean_return))
                bar.set_postfix_str(f"return {mean_return:.1f}", refresh=False)
            bar.update(config.rollout)
        bar.close()
        evaluate = jax.jit(ppo.make_evaluate(config, self.environment))
        self.returns, self.ended = map(np.asarray, evaluate(carry.train.params, key_eval))

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = time.perf_counter() - begin

    def result(self) -> dict[str, Any]:
        """Everything but the curve, as JSON has it: None where there is no number."""
        train = self.seconds.get("train")
        return {
            **asdict(self.config),
            "implementation": implementation_of(self.config, jax.default_backend()),
            "steps": self.steps,
            "interrupted": self.interrupted,
            "device": jax.devices()[0].device_kind,
            "jax": jax.__version__,
            "eval_mean_return": _rounded(None if self.returns is None else self.returns.mean()),
            "eval_std_return": _rounded(None if self.returns is None else self.returns.std()),
            "eval_episodes_ended": None if self.ended is None else int(self.ended.sum()),
            "compile_seconds": _rounded(self.seconds.get("compile")),
            "train_seconds": _rounded(train),
            "total_seconds": _rounded(self.seconds.get("total")),
            "steps_per_second": None if train is None else round(self.steps / train),
        }


def _rounded(number) -> float | None:
    return round(float(number), 2) if number is not None and math.isfinite(number) else None
