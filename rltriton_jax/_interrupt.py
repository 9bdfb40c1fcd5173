"""What SIGINT and SIGTERM do to `python -m rltriton_jax`."""

import os
import signal
import sys

INTERRUPTED = 130
"""The exit status of what an interrupt ended."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _exit(number, frame):
    os._exit(INTERRUPTED)


def raise_from_now_on() -> None:
    """An interrupt is a KeyboardInterrupt now, by which a command keeps what it has."""
    for number in SIGNALS:
        if signal.getsignal(number) is _exit:
            signal.signal(number, signal.default_int_handler)


# While Python looks for what -m names, sys.argv begins with "-m". Until all is imported an interrupt ends the process:
# an exception can get lost in the import system's callbacks. SIGINT is ignored in what a shell starts with &.
if sys.argv[:1] == ["-m"] and "rltriton_jax" in sys.orig_argv:
    for number in SIGNALS:
        signal.signal(number, _exit)
