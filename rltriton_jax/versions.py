"""What is installed."""

import importlib.metadata
import re


def versions(*names: str) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: (3, 7) for "3.7rc1"."""
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])
