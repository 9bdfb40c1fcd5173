"""What the commands share: result files, calls that Ctrl-C gets through, progress."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import jax

from rltriton_jax.errors import CommandError


def aside(function: Callable[..., Any], *args) -> Any:
    """The function's result, by a thread of its own: signals reach the main thread as it waits, but not inside XLA."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(lambda: jax.block_until_ready(function(*args))).result()
    finally:
        pool.shutdown(wait=False)


def backend() -> str:
    """JAX's default backend."""
    try:
        return jax.default_backend()
    except (AssertionError, RuntimeError) as error:
        platforms = os.environ.get("JAX_PLATFORMS", "")
        why = str(error) or "it found no such device"
        raise CommandError(f"JAX does not start with JAX_PLATFORMS={platforms!r}: {why}") from error


def check_files(*paths: Path | None) -> None:
    """An error unless each can be written, as `write` does it."""
    for path in paths:
        if path is None:
            continue
        try:
            if path.exists() and not path.is_file():
                raise CommandError(f"{path} cannot be written: it is a {'folder' if path.is_dir() else 'device'}")
            partial = _partial(path)
            partial.touch()
            partial.unlink()
        except OSError as error:
            folder = "" if path.absolute().parent.is_dir() else ", its folder"
            raise CommandError(f"{path} cannot be written{folder}: {error.strerror}") from error


def write(path: Path, save: Callable[[IO[bytes]], Any]) -> None:
    """Has `save` fill a file beside `path`, which then takes its place: no reader sees half of it."""
    partial = _partial(path)
    try:
        with partial.open("wb") as file:
            save(file)
        partial.replace(path.resolve())
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    write(path, lambda file: file.write(text.encode()))


def _partial(path: Path) -> Path:
    path = path.resolve()  # a link stays one
    return path.with_name(f".{path.name}.{os.getpid()}")


def say_where(*paths: Path | None) -> None:
    """The last line of a command, on standard error: standard output is for programs too."""
    if written := [str(path) for path in paths if path is not None]:
        say(f"results are in {' and '.join(written)}")


def say(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def progress(description: str, **options):
    """tqdm's bar on a terminal, as wide as it is; in a file a line every few seconds."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise CommandError(f"{error}; install what it needs with: pip install 'rltriton-jax[examples]'") from error

    class Lines(tqdm):
        @staticmethod
        def status_printer(file: Any):
            return lambda text: print(text, file=file, flush=True)

    start, end = "{desc} {percentage:3.0f}%", "{n_fmt}/{total_fmt}{postfix} [{elapsed}<{remaining}, {rate_fmt}]"
    if sys.stderr.isatty():
        return tqdm(desc=description, dynamic_ncols=True, bar_format=f"{start}|{{bar}}| {end}", **options)
    return Lines(desc=description, mininterval=5, miniters=1, bar_format=f"{start} {end}", **options)
