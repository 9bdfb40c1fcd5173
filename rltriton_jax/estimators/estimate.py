"""What the advantage estimators return, and the base of the estimator objects."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple


class Estimate(NamedTuple):
    """Advantages for the policy and targets for the critic, each with the structure and shape of `rewards`.

    Nothing is stopped implicitly: wrap `targets` (and usually `advantages`) in `jax.lax.stop_gradient` for a loss.
    """

    advantages: Any
    targets: Any


@dataclass(frozen=True)
class Estimator:
    """A function together with its hyperparameters, which are the leaves of a pytree.

    `jax.vmap` over a batch of them sweeps, `jax.grad` with respect to one gives meta-gradients.
    """

    function: ClassVar[Callable[..., Any]]

    def __call__(self, *args, **kwargs):
        return type(self).function(*args, **{f.name: getattr(self, f.name) for f in fields(self)}, **kwargs)
