"""Which implementation runs: the choice per call, and its default."""

from contextlib import AbstractContextManager

import jax

IMPLEMENTATIONS = ("triton", "associative_scan", "scan", "interpret")

_default = jax.make_user_context(None)


def check_implementation(name: str | None) -> str | None:
    if name is not None and name not in IMPLEMENTATIONS:
        raise ValueError(
            f"implementation is {name!r}; use None (chosen by platform) or one of {', '.join(IMPLEMENTATIONS)}."
        )
    return name


def resolve_implementation(name: str | None) -> str | None:
    """The named implementation, else the default one; None is left for the lowering to choose by platform."""
    return _default.value if check_implementation(name) is None else name


def set_default_implementation(name: str | None) -> None:
    """Sets the implementation of calls that name none, for the whole process.

    The default is part of every trace's identity: a function that `jax.jit` has cached is traced again when it changes.
    A thread inside `with default_implementation(...)` keeps that one. `None` lets the platform choose.

    Args:
      name: "triton", "associative_scan", "scan", "interpret" or None.

    Raises:
      ValueError: for any other name.
    """
    _default.set_global(check_implementation(name))


def default_implementation(name: str | None) -> AbstractContextManager[None]:
    """A context in which calls that name no implementation take this one: `with default_implementation("scan"):`.

    It holds for the thread that enters it, until the block ends; `set_default_implementation` is for the process. The
    default is part of every trace's identity: a function that `jax.jit` has cached is traced again when it changes.
    `None` lets the platform choose.

    Args:
      name: "triton", "associative_scan", "scan", "interpret" or None.

    Raises:
      ValueError: for any other name.

    >>> import rltriton_jax as rtj
    >>> with rtj.default_implementation("scan"):
    ...     returns = rtj.discounted_returns(jax.numpy.ones(3), gamma=0.5)
    >>> print(returns)
    [1.75 1.5  1.  ]
    """

    return _default(check_implementation(name))
