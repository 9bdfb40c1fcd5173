"""Which implementation runs: the choice per call, and its default."""

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


class default_implementation:
    """Sets the implementation of calls that name none, as a setter or as a context manager.

    `default_implementation("scan")` sets it from now on; `with default_implementation("scan"):` sets it for the
    block and puts the former one back. The default is one for the whole process and part of every trace's identity:
    a function that `jax.jit` has cached is traced again when it changes. `None` lets the platform choose.

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

    def __init__(self, name: str | None):
        check_implementation(name)
        self._before = _default.get_global()
        _default.set_global(name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _default.set_global(self._before)
