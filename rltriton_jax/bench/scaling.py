"""`python -m rltriton_jax scaling`: what moves between devices, read off programs compiled for simulated ones."""

import argparse
import json
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import rltriton_jax as rtj
from rltriton_jax._interrupt import INTERRUPTED
from rltriton_jax.commands import aside, check_files, say, say_where, write_text
from rltriton_jax.errors import CommandError

DEVICES = (8, 16, 32, 64, 128, 256, 512)
ROWS, STEPS = 512, 65536
BYTES = {"f32": 4, "pred": 1, "bf16": 2, "f16": 2, "f64": 8, "s32": 4, "u8": 1}


def collectives(text: str) -> list[tuple[str, int, int]]:
    """(kind, elements, bytes) of the result of each collective in a compiled program."""
    kinds = "all-gather|all-reduce|collective-permute|all-to-all|reduce-scatter"
    found = []
    for types, kind, started in re.findall(rf"= ([^=]*?) ({kinds})(-start)?\(", text):
        results = [(dtype, math.prod(int(n) for n in shape.split(",") if n)) for dtype, shape in ARRAY.findall(types)]
        if started:  # its type holds operands and results
            results = [max(results, key=lambda r: r[1])]
        found.append((kind, sum(n for _, n in results), sum(n * BYTES[dtype] for dtype, n in results)))
    return found


ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")


def received(text: str, devices: int) -> int:
    """Bytes that one device receives: of an all-gather or all-reduce what the others send, of a permute all."""
    others = (devices - 1) / devices
    return round(sum(n if kind == "collective-permute" else n * others for kind, _, n in collectives(text)))


def expected(split: str, devices: int, rows: int, steps: int) -> int:
    """The cost model of GAE's forward pass, in bytes that one device receives.

    Split over the batch: nothing. Split over time: a composite of two float32 a row from every other device, and one
    row of values from the next. Gathered: what the others hold of rewards, values and flags.
    """
    if split == "batch":
        return 0
    if split == "time":
        return 8 * rows * (devices - 1) + 4 * rows
    return (4 + 4 + 1) * rows * steps * (devices - 1) // devices


def program(split: str, devices: int, rows: int, steps: int, *, backward: bool = False) -> str:
    """The compiled text of GAE on so many devices, its rollout split over batch or time, or over time and gathered."""
    mesh = Mesh(jax.devices()[:devices], ("devices",))
    at = NamedSharding(mesh, P(None, "devices") if split == "batch" else P("devices", None))
    row = NamedSharding(mesh, P("devices") if split == "batch" else P())

    def advantages(r, v, d, last):
        if split == "gathered":
            r, v, d = (jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P())) for x in (r, v, d))
        return rtj.gae(r, v, d, bootstrap_value=last).advantages

    def gradient(r, v, d, last):
        return jax.grad(lambda r, v: jnp.sum(advantages(r, v, d, last) ** 2), (0, 1))(r, v)

    x = jax.ShapeDtypeStruct((steps, rows), jnp.float32, sharding=at)
    flag = jax.ShapeDtypeStruct((steps, rows), jnp.bool_, sharding=at)
    last = jax.ShapeDtypeStruct((rows,), jnp.float32, sharding=row)
    return str(jax.jit(gradient if backward else advantages).lower(x, x, flag, last).compile().as_text())


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--devices", type=int, nargs="+", default=DEVICES, help="how many devices to simulate")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row to FILE")


def run(options: argparse.Namespace) -> int:
    if wrong := [n for n in options.devices if n < 2 or ROWS % n]:
        raise CommandError(f"--devices is {wrong[0]}; each number must be 2 or more and divide {ROWS}")
    check_files(options.json)
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", max(options.devices))
    except RuntimeError as error:
        raise CommandError(f"{error}; start it in a process of its own") from error
    report = {"estimator": "gae", "jax": jax.__version__, "interrupted": False, "rows": []}
    print(f"GAE, {ROWS} environments x {STEPS} steps: bytes that a device receives (and collectives)\n")
    print(line(["devices", "batch, forward", "batch, backward", "time, forward", "time, backward", "time, gathered"]))
    print(line(["---"] * 6))
    try:
        for devices in options.devices:
            cells = [aside(measure, split, devices, backward) for split, backward in COLUMNS]
            report["rows"] += cells
            print(line([str(devices), *(f"{c['bytes']:,} ({c['collectives']})" for c in cells)]), flush=True)
    except KeyboardInterrupt:
        report["interrupted"] = True
        say("interrupted; the devices above are reported")
    if options.json is not None and report["rows"]:
        write_text(options.json, json.dumps(report, indent=1) + "\n")
        say_where(options.json)
    return INTERRUPTED if report["interrupted"] else 0


COLUMNS = (("batch", False), ("batch", True), ("time", False), ("time", True), ("gathered", False))


def measure(split: str, devices: int, backward: bool) -> dict[str, Any]:
    text = program(split, devices, ROWS, STEPS, backward=backward)
    moved, model = received(text, devices), expected(split, devices, ROWS, STEPS)
    if not backward and moved != model:
        raise CommandError(f"{moved} bytes move on {devices} devices ({split}), but the model says {model}")
    size = {"devices": devices, "rows": ROWS, "steps": STEPS, "split": split, "backward": backward}
    return {**size, "bytes": moved, "collectives": len(collectives(text))}


def line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
