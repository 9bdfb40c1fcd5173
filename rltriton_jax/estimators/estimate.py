"""What the advantage estimators return, and the base of the estimator objects."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

from rltriton_jax.estimators.arguments import bind

_signature = functools.cache(inspect.signature)


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

    def __new__(cls, *args, **kwargs):
        if args or kwargs:  # copies and pickles are made without
            bind(cls.__name__, _signature(cls), args, kwargs)
        return super().__new__(cls)

    def __call__(self, *args, **kwargs):
        hyperparameters = {f.name: getattr(self, f.name) for f in fields(self)}
        if twice := sorted(hyperparameters.keys() & kwargs.keys()):
            name = twice[0]
            raise TypeError(
                f"{name} is given in the call, but it is a hyperparameter of this {type(self).__name__}, where it is "
                f"{hyperparameters[name]!r}; leave it out, or make another with dataclasses.replace(..., {name}=...)."
            )
        return type(self).function(*args, **hyperparameters, **kwargs)
