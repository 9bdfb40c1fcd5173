"""What the advantage estimators return, and the base of the estimator objects."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from numbers import Number
from typing import Any, ClassVar, NamedTuple

import jax
from jax import export

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

    `jax.vmap` over a batch of them sweeps, `jax.grad` with respect to one gives meta-gradients. Two are equal if their
    numbers are and their arrays are the same objects; so each can be hashed, and passed to `jax.jit` as a function.
    """

    function: ClassVar[Callable[..., Any]]

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # Before `dataclass` would make those that compare and hash arrays.
        cls.__eq__, cls.__hash__ = Estimator.__eq__, Estimator.__hash__

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

    def _identity(self):
        leaves, structure = jax.tree.flatten([getattr(self, f.name) for f in fields(self)])
        return type(self), structure, tuple(x if isinstance(x, Number) else f"object {id(x)}" for x in leaves)

    def __eq__(self, other):
        return self._identity() == other._identity() if isinstance(other, Estimator) else NotImplemented

    def __hash__(self):
        return hash(self._identity())


def let_export_serialize() -> None:
    """Lets `jax.export` write programs that take or return an `Estimate` or one of the package's estimator objects."""
    export.register_namedtuple_serialization(Estimate, serialized_name="rltriton_jax.Estimate")
    for cls in Estimator.__subclasses__():
        export.register_pytree_node_serialization(
            cls,
            serialized_name=f"rltriton_jax.{cls.__name__}",
            serialize_auxdata=lambda _: b"",
            deserialize_auxdata=lambda _: (),
            from_children=lambda aux_data, children, cls=cls: cls(*children),
        )
