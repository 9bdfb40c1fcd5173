"""Which implementation runs, and for which GPU: the choice per call, and contexts for what a call leaves open."""

import re
from contextlib import AbstractContextManager

import jax

IMPLEMENTATIONS = ("triton", "chunked_scan", "associative_scan", "scan", "interpret")

_default = jax.make_user_context(None)
_targets = jax.make_user_context(())


def check_implementation(name: str | None) -> str | None:
    if name is not None and not (isinstance(name, str) and name in IMPLEMENTATIONS):
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
      name: "triton", "chunked_scan", "associative_scan", "scan", "interpret" or None.

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
      name: "triton", "chunked_scan", "associative_scan", "scan", "interpret" or None.

    Raises:
      ValueError: for any other name.

    >>> import rltriton_jax as rtj
    >>> with rtj.default_implementation("scan"):
    ...     returns = rtj.discounted_returns(jax.numpy.ones(3), gamma=0.5)
    >>> print(returns)
    [1.75 1.5  1.  ]
    """

    return _default(check_implementation(name))


def lowering_for(*targets: str) -> AbstractContextManager[None]:
    """A context in which the kernel is compiled for a GPU that need not be there: `with lowering_for("sm_90"):`.

    For looking at what a GPU would run, and for `jax.export`, on a machine without one. It holds for the thread that
    enters it, and is part of a trace's identity: a function that `jax.jit` has cached is traced and lowered again. It
    needs the kernel's packages and JAX's plugin for CUDA, but no device.

    Args:
      targets: an NVIDIA architecture such as "sm_90" for programs lowered for cuda, an AMD one such as "gfx942" for
        rocm, or one of each.

    Raises:
      ValueError: for a name of another form.

    >>> import jax, rltriton_jax as rtj
    >>> traced = jax.jit(rtj.discounted_returns).trace(jax.numpy.ones(3))
    >>> with rtj.lowering_for("sm_90"):
    ...     text = traced.lower(lowering_platforms=("cpu",)).as_text()  # ("cuda",) needs the kernel's packages
    """
    for target in targets:
        if not isinstance(target, str) or not re.fullmatch(r"sm_\d+|gfx[0-9a-f]+", target):
            raise ValueError(f"target is {target!r}; name a GPU's architecture, such as 'sm_90' or 'gfx942'.")
    return _targets(targets)


def lowering_target(platform: str) -> str | None:
    """What `lowering_for` names for this platform, cuda or rocm; None leaves it to the device that is there."""
    family = "sm_" if platform == "cuda" else "gfx"
    return next((target for target in _targets.value if target.startswith(family)), None)
