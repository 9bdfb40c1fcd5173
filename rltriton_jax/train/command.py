"""`python -m rltriton_jax train`: options, progress, evaluation, results."""

import argparse
import json
import math
import time
from dataclasses import asdict
from pathlib import Path

import jax
import numpy as np

from rltriton_jax.errors import CommandError
from rltriton_jax.scan.implementation import IMPLEMENTATIONS
from rltriton_jax.train.config import Config
from rltriton_jax.train.estimates import ESTIMATES, implementation_of


def add_options(parser: argparse.ArgumentParser) -> None:
    defaults = Config()
    parser.add_argument("--env", default=defaults.env, help="a Gymnax environment, or brax/NAME (default %(default)s)")
    parser.add_argument("--steps", type=int, default=defaults.steps, help="environment steps (default %(default)s)")
    parser.add_argument("--num-envs", type=int, default=defaults.num_envs, help="parallel environments (%(default)s)")
    parser.add_argument("--num-steps", type=int, default=defaults.num_steps, help="steps per rollout (%(default)s)")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--estimator", choices=ESTIMATES, default=defaults.estimator, help="default %(default)s")
    parser.add_argument("--implementation", choices=IMPLEMENTATIONS, help="of the scan; left out, the platform's own")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for results (default %(default)s)")


def run(options: argparse.Namespace) -> None:
    config = Config(**{k: v for k, v in vars(options).items() if k in Config.__dataclass_fields__})
    _check(config)
    out = _writable(options.out)
    try:
        import matplotlib
        from tqdm import tqdm

        from rltriton_jax.train import environments, ppo

        environment = environments.make(config.env)
    except ImportError as error:
        extra = "examples,brax" if "brax" in config.env + config.estimator else "examples"
        raise CommandError(f"{error}; install what it needs with: pip install 'rltriton-jax[{extra}]'") from error
    except ValueError as error:
        raise CommandError(f"--env {error}") from error
    matplotlib.use("Agg")

    rollout = config.num_envs * config.num_steps
    curve: list[tuple[int, float]] = []
    with tqdm(total=config.num_updates * rollout, unit="step", unit_scale=True, desc=config.env) as bar:

        def report(update, mean_return):
            bar.update(int(update) * rollout - bar.n)
            if not math.isnan(mean_return):
                curve.append((int(update) * rollout, float(mean_return)))
                bar.set_postfix_str(f"mean episode return {float(mean_return):.1f}")

        key, key_eval = jax.random.split(jax.random.key(config.seed))
        begin = time.perf_counter()
        try:
            compiled = jax.jit(ppo.make_train(config, environment, report)).lower(key).compile()
        except ImportError as error:
            raise CommandError(f"--estimator {config.estimator} needs a library: {error}") from error
        except ValueError as error:
            if not str(error).startswith("implementation="):
                raise
            raise CommandError(str(error).splitlines()[0]) from error
        compiled_at = time.perf_counter()
        params, _ = jax.block_until_ready(compiled(key))
        jax.effects_barrier()
        trained_at = time.perf_counter()
    returns, ended = map(np.asarray, jax.jit(ppo.make_evaluate(config, environment))(params, key_eval))

    result = {
        **asdict(config),
        "implementation": implementation_of(config, jax.default_backend()),
        "steps": config.num_updates * rollout,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "eval_mean_return": round(float(returns.mean()), 2),
        "eval_std_return": round(float(returns.std()), 2),
        "eval_episodes_ended": int(ended.sum()),
        "compile_seconds": round(compiled_at - begin, 2),
        "train_seconds": round(trained_at - compiled_at, 2),
        "total_seconds": round(time.perf_counter() - begin, 2),
        "steps_per_second": round(config.num_updates * rollout / (trained_at - compiled_at)),
    }
    stem = out / f"{config.env.replace('/', '-')}-{config.estimator}-seed{config.seed}"
    line = json.dumps(result)
    stem.with_suffix(".json").write_text(line + "\n")
    _plot(stem.with_suffix(".png"), config, curve, returns)
    print(line)


def _check(config: Config) -> None:
    for name in ("steps", "num_envs", "num_steps"):
        if getattr(config, name) < 1:
            raise CommandError(f"--{name.replace('_', '-')} is {getattr(config, name)}; it must be at least 1")
    rollout = config.num_envs * config.num_steps
    if rollout % config.minibatches:
        raise CommandError(
            f"--num-envs {config.num_envs} times --num-steps {config.num_steps} is {rollout}, which must be a multiple "
            f"of the {config.minibatches} minibatches"
        )
    if config.steps < rollout:
        raise CommandError(f"--steps is {config.steps}, less than one rollout of {rollout} steps")
    if not 0 <= config.seed < 2**32:
        raise CommandError(f"--seed is {config.seed}; it must be from 0 to {2**32 - 1}")


def _writable(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CommandError(f"--out {out} cannot be written: {error.strerror}") from error
    return out


def _plot(path: Path, config: Config, curve, returns) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    if curve:
        axes.plot(*zip(*curve), color="#2a6f97", linewidth=1.6, label="training, mean of episodes ended per rollout")
    mean = float(np.mean(returns))
    axes.axhline(
        mean, color="#c1121f", linewidth=1.2, linestyle="--", label=f"evaluation, mean of {len(returns)}: {mean:.1f}"
    )
    axes.set(title=f"PPO with {config.estimator} on {config.env}, seed {config.seed}", xlabel="environment steps")
    axes.set_ylabel("episode return")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e3:.0f}k" if x else "0")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)
