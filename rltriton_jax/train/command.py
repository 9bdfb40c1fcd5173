"""`python -m rltriton_jax train`: what is checked before a training run, and what is kept of it."""

import argparse
import contextlib
import importlib
import io
import json
from pathlib import Path

import numpy as np

from rltriton_jax._interrupt import INTERRUPTED
from rltriton_jax.commands import aside, backend, check_files, say, say_where, write, write_text
from rltriton_jax.errors import CommandError
from rltriton_jax.train.config import Config
from rltriton_jax.train.options import add_settings, config_from


def add_options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for results (default %(default)s)")


def run(options: argparse.Namespace) -> int:
    training, files = aside(_prepared, options)
    training.run()
    line = json.dumps(training.result(), allow_nan=False)
    print(line)
    if training.interrupted:
        say(f"interrupted after {training.steps} of {training.total} steps")
    if training.updates or not any(file.exists() for file in files):
        write_text(files[0], line + "\n")
        if training.updates:
            write(files[1], lambda file: _plot(file, training))
        say_where(*files[: 2 if training.updates else 1])
    else:
        say("the results of an earlier run stay as they are")
    return INTERRUPTED if training.interrupted else 0


def _prepared(options: argparse.Namespace):
    """A run that can begin, and the files for its results: all that they need is known to be there."""
    backend()
    config = config_from(options)
    try:
        import matplotlib

        from rltriton_jax.train import environments, training

        matplotlib.use("Agg")
        import matplotlib.pyplot

        with contextlib.redirect_stdout(io.StringIO()):  # Brax prints what it does without
            if config.estimator in ("rlax", "brax"):
                importlib.import_module(config.estimator)
            environment = environments.make(config.env)
    except ImportError as error:
        extras = {"brax": "examples,brax", "rlax": "examples,test"}
        wanted = config.env if config.env.startswith("brax/") else config.estimator
        extra = extras.get(wanted.split("/")[0], "examples")
        raise CommandError(f"{error}; install what it needs with: pip install 'rltriton-jax[{extra}]'") from error
    except ValueError as error:
        raise CommandError(f"--env {error}") from error
    except OSError as error:  # some are downloaded
        raise CommandError(f"--env {config.env} cannot be made: {error}") from error
    return training.Training(config, environment), _files(options.out, config)


def _files(out: Path, config: Config) -> list[Path]:
    """Where the results go, in a folder that is made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--out {out} cannot be written: {error.strerror}") from error
    name = f"{config.env.replace('/', '-')}-{config.estimator}-seed{config.seed}"
    files = [out / f"{name}.{kind}" for kind in ("json", "png")]
    check_files(*files)
    return files


def _plot(file, training) -> None:
    import matplotlib.pyplot as plt

    config = training.config
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    if training.curve:
        label = "training, mean of episodes ended per rollout"
        axes.plot(*zip(*training.curve), color="#2a6f97", linewidth=1.6, label=label)
    else:
        axes.set_xlim(0, training.steps)
    if training.returns is not None:
        mean = float(np.mean(training.returns))
        label = f"evaluation, mean of {len(training.returns)}: {mean:.1f}"
        axes.axhline(mean, color="#c1121f", linewidth=1.2, linestyle="--", label=label)
    title = f"PPO with {config.estimator} on {config.env}, seed {config.seed}"
    if training.interrupted:
        title += f", interrupted after {training.steps} steps"
    axes.set(title=title, xlabel="environment steps")
    axes.set_ylabel("episode return")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e3:g}k" if x else "0")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="lower right")
    figure.savefig(file, format="png", dpi=150)
    plt.close(figure)
