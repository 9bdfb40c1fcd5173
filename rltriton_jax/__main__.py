"""`python -m rltriton_jax COMMAND`."""

import argparse
import importlib
import os
import sys

from rltriton_jax._interrupt import INTERRUPTED, raise_from_now_on
from rltriton_jax.commands import say
from rltriton_jax.errors import CommandError

COMMANDS = {
    "doctor": ("rltriton_jax.doctor", "check this installation, and say what runs where"),
    "train": ("rltriton_jax.train.command", "train PPO on a Gymnax environment"),
    "bench": ("rltriton_jax.bench.command", "time the estimators on this machine"),
    "scaling": ("rltriton_jax.bench.scaling", "count what moves between devices when a rollout is split over them"),
}


class Parser(argparse.ArgumentParser):
    def error(self, message):
        """One line, as for every other mistake, and not the usage before it."""
        raise CommandError(f"{message}; --help lists the options")


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    who = " ".join(["rltriton_jax", *(name for name in argv[:1] if name in COMMANDS)])
    try:
        options = parser(argv).parse_args(argv)
        run = importlib.import_module(COMMANDS[options.command][0]).run
        raise_from_now_on()
        return run(options) or 0
    except CommandError as error:
        say(f"{who}: {' '.join(str(error).splitlines())}")
        return 2
    except KeyboardInterrupt:
        say(f"{who}: interrupted")
        return INTERRUPTED


def parser(argv: list[str]) -> Parser:
    """Of all commands; only the one in `argv` is imported, and has its options."""
    parser = Parser(prog="python -m rltriton_jax", description="Credit assignment in JAX.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name in argv[:1]:
            importlib.import_module(module).add_options(sub)
    return parser


if __name__ == "__main__":
    status = main()
    if status == INTERRUPTED:
        # A thread may still be inside XLA, where the interpreter would wait for it.
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)
