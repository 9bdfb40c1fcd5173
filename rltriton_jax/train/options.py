"""The settings of a training run as options of the command."""

import argparse
import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

import rltriton_jax as rtj
from rltriton_jax.commands import backend
from rltriton_jax.errors import CommandError
from rltriton_jax.scan.implementation import IMPLEMENTATIONS
from rltriton_jax.train.config import Config
from rltriton_jax.train.estimates import ESTIMATES, takes_implementation

CHOICES = {"estimator": tuple(ESTIMATES), "implementation": IMPLEMENTATIONS}
LARGEST = {int: 2**31 - 1, float: 3.4e38}
"""What JAX counts up to, and computes with."""


def add_settings(parser: argparse.ArgumentParser) -> None:
    """An option for each field of Config."""
    for setting in dataclasses.fields(Config):
        shown = "" if setting.default is None else " (default %(default)s)"
        parser.add_argument(
            _option(setting.name),
            dest=setting.name,
            type=setting.type if setting.type in LARGEST else str,
            default=setting.default,
            choices=CHOICES.get(setting.name),
            metavar=None if setting.name in CHOICES else setting.name.strip("_").upper(),
            help=setting.metadata["help"] + shown,
        )


def _option(name: str) -> str:
    return "--" + name.strip("_").replace("_", "-")


def config_from(options: argparse.Namespace) -> Config:
    """The settings that were given, each alone and all together within what can run."""
    config = Config(**{s.name: getattr(options, s.name) for s in dataclasses.fields(Config)})
    for setting in dataclasses.fields(Config):
        if setting.type in LARGEST:
            _check_limits(setting, getattr(config, setting.name))
    _check_sizes(config)
    _check_implementation(config)
    return config


def _check_limits(setting: dataclasses.Field, value: float) -> None:
    limits = setting.metadata
    # The number of steps is limited by that of updates.
    most = limits.get("most", math.inf if setting.name == "steps" else LARGEST[setting.type])
    low = value > limits["above"] if "above" in limits else value >= limits["least"]
    if not (low and value <= most):
        must = f"more than {limits['above']}" if "above" in limits else f"at least {limits['least']}"
        must += f" and at most {most}" if most < math.inf else ""
        raise CommandError(f"{_option(setting.name)} is {value}; it must be {must}")


def _check_sizes(config: Config) -> None:
    product = f"--num-envs {config.num_envs} times --num-steps {config.num_steps} is {config.rollout}"
    if config.rollout > LARGEST[int]:
        raise CommandError(f"{product}; a rollout has at most {LARGEST[int]} steps")
    if config.rollout % config.minibatches:
        raise CommandError(f"{product}, which must be a multiple of the {config.minibatches} minibatches")
    if config.steps < config.rollout:
        raise CommandError(f"--steps is {config.steps}, less than one rollout of {config.rollout} steps")
    most = LARGEST[int] // (config.epochs * config.minibatches)
    if config.num_updates > most:
        raise CommandError(
            f"--steps is {config.steps}; it must be at most {(most + 1) * config.rollout - 1}, as the optimiser counts "
            "gradient steps in 32 bits"
        )


def _check_implementation(config: Config) -> None:
    name = config.implementation
    if name is None:
        return
    if not takes_implementation(config.estimator):
        raise CommandError(f"--implementation {name} says nothing to --estimator {config.estimator}; leave it out")
    backend()
    try:
        jax.jit(functools.partial(rtj.discounted_returns, implementation=name)).lower(jnp.ones(1))
    except ValueError as error:
        why = str(error).splitlines()[0].removeprefix(f"implementation={name!r} ")
        why = why.replace("use implementation=None, which suits every platform", "leave it out")
        raise CommandError(f"--implementation {name} {why}") from error
