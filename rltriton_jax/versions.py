"""What is installed."""

import contextlib
import importlib.metadata
import re


def versions(*names: str) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, KeyError):
            version = importlib.metadata.version(name)
            if version:  # what an installation that broke off leaves behind has none
                found[name] = version
    return found


def numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: (3, 7) for "3.7rc1" and "3.7.0+git123"; none of what is no version."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()
