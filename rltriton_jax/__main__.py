"""`python -m rltriton_jax COMMAND`."""

import argparse
import importlib
import sys

from rltriton_jax.errors import CommandError

COMMANDS = {
    "doctor": ("rltriton_jax.doctor", "check this installation, and say what runs where"),
    "train": ("rltriton_jax.train.command", "train PPO on a Gymnax environment"),
    "bench": ("rltriton_jax.bench.command", "time the estimators on this machine"),
    "scaling": ("rltriton_jax.bench.scaling", "count what moves between devices when a rollout is split over them"),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rltriton_jax", description="Credit assignment in JAX.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    argv = sys.argv[1:] if argv is None else argv
    for name, (module, summary) in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary)
        if name in argv[:1]:
            importlib.import_module(module).add_options(sub)
    options = parser.parse_args(argv)
    try:
        return importlib.import_module(COMMANDS[options.command][0]).run(options) or 0
    except CommandError as error:
        print(f"rltriton_jax {options.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
