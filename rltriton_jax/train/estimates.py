"""Where the learner's advantages and targets come from: this library, or what it takes the place of."""

from collections.abc import Callable
from typing import NamedTuple

import jax

import rltriton_jax as rtj
from rltriton_jax.bench import baselines
from rltriton_jax.scan.lowering import implementation_on
from rltriton_jax.train.config import Config


class Steps(NamedTuple):
    """What an estimator may read, [T, N] each but for `last_value` [N]."""

    rewards: jax.Array
    values: jax.Array
    last_value: jax.Array
    final_values: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    log_rhos: jax.Array


def _boundaries(steps: Steps, config: Config):
    """Time limits are truncations: they bootstrap from the value of the true final observation."""
    return {
        "terminated": steps.terminated,
        "truncated": steps.truncated,
        "bootstrap_value": steps.last_value,
        "final_values": steps.final_values,
        "gamma": config.gamma,
        "lambda_": config.lambda_,
        "implementation": config.implementation,
    }


def gae(steps: Steps, config: Config) -> rtj.Estimate:
    return rtj.gae(steps.rewards, steps.values, **_boundaries(steps, config))


def lambda_returns(steps: Steps, config: Config) -> rtj.Estimate:
    targets = rtj.lambda_returns(steps.rewards, steps.values, **_boundaries(steps, config))
    return rtj.Estimate(targets - steps.values, targets)


def vtrace(steps: Steps, config: Config) -> rtj.Estimate:
    return rtj.vtrace(steps.rewards, steps.values, steps.log_rhos, **_boundaries(steps, config))


def _ends(steps: Steps) -> jax.Array:
    """Every end of an episode, taken for a terminal one."""
    return (steps.terminated | steps.truncated).astype(steps.rewards.dtype)


def hand_written(steps: Steps, config: Config) -> rtj.Estimate:
    """The reverse scan that learners in the style of PureJaxRL write."""
    advantages = baselines.reverse_scan_gae(
        steps.rewards, steps.values, _ends(steps), steps.last_value, config.gamma, config.lambda_
    )
    return rtj.Estimate(advantages, advantages + steps.values)


def hand_written_drop_in(steps: Steps, config: Config) -> rtj.Estimate:
    """The same by one call."""
    return rtj.gae(
        steps.rewards,
        steps.values,
        _ends(steps),
        bootstrap_value=steps.last_value,
        gamma=config.gamma,
        lambda_=config.lambda_,
    )


def _by_rlax(library, steps: Steps, config: Config) -> rtj.Estimate:
    advantages = baselines.rlax_gae(
        library, steps.rewards, steps.values, _ends(steps), steps.last_value, config.gamma, config.lambda_
    )
    return rtj.Estimate(advantages, advantages + steps.values)


def rlax(steps: Steps, config: Config) -> rtj.Estimate:
    import rlax

    return _by_rlax(rlax, steps, config)


def rlax_drop_in(steps: Steps, config: Config) -> rtj.Estimate:
    return _by_rlax(rtj.compat.rlax, steps, config)


def _by_brax(compute_gae, steps: Steps, config: Config) -> rtj.Estimate:
    truncation, termination = steps.truncated & ~steps.terminated, steps.terminated
    flags = (f.astype(steps.rewards.dtype) for f in (truncation, termination))
    targets, advantages = compute_gae(
        *flags, steps.rewards, steps.values, steps.last_value, config.lambda_, config.gamma
    )
    return rtj.Estimate(advantages, targets)


def brax(steps: Steps, config: Config) -> rtj.Estimate:
    from brax.training.agents.ppo.losses import compute_gae

    return _by_brax(compute_gae, steps, config)


def brax_drop_in(steps: Steps, config: Config) -> rtj.Estimate:
    return _by_brax(rtj.compat.brax.compute_gae, steps, config)


ESTIMATES: dict[str, Callable[[Steps, Config], rtj.Estimate]] = {
    f.__name__: f
    for f in (
        gae,
        lambda_returns,
        vtrace,
        hand_written,
        hand_written_drop_in,
        rlax,
        rlax_drop_in,
        brax,
        brax_drop_in,
    )
}
"""By the name that `--estimator` takes; those of other libraries need them installed."""


def takes_implementation(estimator: str) -> bool:
    """Whether the learner names an implementation to it: what is not of this library, or stands in for it, has none."""
    return estimator in ("gae", "lambda_returns", "vtrace")


def implementation_of(config: Config, platform: str) -> str:
    """What runs the scan of the estimator on `platform`; for one that is not of this library its own name."""
    if takes_implementation(config.estimator):
        return implementation_on(platform, config.implementation)
    return implementation_on(platform) if config.estimator.endswith("_drop_in") else config.estimator
