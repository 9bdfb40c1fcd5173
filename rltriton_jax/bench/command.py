"""`python -m rltriton_jax bench`: times, ratios, a table, JSON and a plot."""

import argparse
import datetime
import functools
import io
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rltriton_jax._interrupt import INTERRUPTED
from rltriton_jax.bench import cases, cpu, timing
from rltriton_jax.bench.cases import BenchCase
from rltriton_jax.commands import aside, backend, check_files, progress, say, say_where, write, write_text
from rltriton_jax.errors import CommandError
from rltriton_jax.scan.implementation import IMPLEMENTATIONS
from rltriton_jax.versions import versions

LAYOUTS = ("time_major", "batch_major")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="two shapes, and no hand-written baselines")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row to FILE, as it is measured")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a plot: ratio to the yardstick by shape")


def run(options: argparse.Namespace) -> int:
    platform = backend()
    check_files(options.json, options.plot)
    _check_plot(options)
    report: dict[str, Any] = {"environment": environment(), "interrupted": False, "rows": []}
    work = list(_work(report, platform, options.quick))
    done = 0
    try:
        with progress("timing", total=len(work), unit="case") as bar:
            for name, kept, one in work:
                bar.set_postfix_str(name)
                kept += aside(one)
                done += 1
                bar.update()
                _keep(report, options.json)
    except KeyboardInterrupt:
        report["interrupted"] = True
    if report.get("against_hand_written"):
        print(cpu.table(report["against_hand_written"]))
    if report["rows"]:
        print(table(report["rows"]))
    if report["interrupted"]:
        say(f"interrupted after {done} of {len(work)} cases")
    if done:
        _keep(report, options.json)
        if options.plot is not None:
            write(options.plot, lambda file: plot(report, file, options.plot.suffix[1:].lower()))
        say_where(options.json, options.plot)
    return INTERRUPTED if report["interrupted"] else 0


def _work(report: dict[str, Any], platform: str, quick: bool) -> Iterator[tuple[str, list, Callable[[], list]]]:
    """What is measured: its name, the list that keeps it, and what measures it."""
    on_gpu = platform == "gpu"
    if platform == "cpu":
        report["against_hand_written"] = []
        for steps, rows in cpu.SHAPES:
            name = f"gae {rows} x {steps} against a loop"
            yield name, report["against_hand_written"], functools.partial(cpu.measure, steps, rows)
    shapes = cases.CPU_SHAPES if not on_gpu else cases.QUICK_SHAPES if quick else cases.SHAPES
    for (rows, steps), layout, case in itertools.product(shapes, LAYOUTS, cases.CASES):
        name = f"{case.name} {rows} x {steps} {layout}"
        one = functools.partial(measure, case, rows, steps, layout, on_gpu, baselines=not quick)
        yield name, report["rows"], one


def _keep(report: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        write_text(path, json.dumps(report, indent=1) + "\n")


def _check_plot(options: argparse.Namespace) -> None:
    """An error unless matplotlib draws in that format, with all that the format needs."""
    if options.plot is None:
        return
    if options.json is not None and options.plot.resolve() == options.json.resolve():
        raise CommandError(f"--json and --plot are one file, {options.plot}")
    kind = options.plot.suffix[1:].lower()
    try:
        from matplotlib.figure import Figure

        figure = Figure()
        figure.suptitle("some formats need a program that sets text")
        figure.savefig(io.BytesIO(), format=kind or "none")
    except ImportError as error:
        raise CommandError(f"{error}; install what it needs with: pip install 'rltriton-jax[examples]'") from error
    except Exception as error:  # formats differ in what they raise
        raise CommandError(f"--plot {options.plot} cannot be drawn: {' '.join(str(error).split())}") from error


def environment() -> dict[str, str]:
    """What the figures were measured on."""
    date = datetime.date.today().isoformat()
    clock = "kernel events of the profiler" if jax.default_backend() == "gpu" else "median wall time"
    return {
        "device": jax.devices()[0].device_kind,
        "date": date,
        "time": clock,
        **versions("jax", "jaxlib", "jax-triton", "triton", "rltriton-jax", "rlax"),
    }


def measure(case: BenchCase, batch: int, steps: int, layout: str, on_gpu: bool, baselines: bool):
    """One row for each implementation, all from inputs that were checked first."""
    rng = np.random.default_rng(0)
    time_major = layout == "time_major"
    count = timing.num_sets(case.bytes(batch, steps)) if on_gpu else 2
    first = case.inputs(rng, batch, steps, time_major)
    sets = [({name: jnp.roll(x, k) for name, x in first.items()},) for k in range(count)]
    names = ("triton", "associative_scan") if on_gpu else ("chunked_scan", "associative_scan", "scan")
    functions: dict[str, Any] = {name: case.function(time_major, implementation=name) for name in names}
    if baselines and case.name == "gae" and time_major and steps <= 1024:
        functions |= {"hand-written scan": cases.plain_scan(1), "hand-written scan, unroll 16": cases.plain_scan(16)}
        if (rlax := cases.rlax_gae()) is not None:
            functions["rlax"] = rlax
    with ThreadPoolExecutor() as pool:
        reference = pool.submit(case.reference, sets[0][0], time_major)
        yard, *compiled = pool.map(lambda f: f.lower(*sets[0]).compile(), [case.yardstick(), *functions.values()])
    functions = dict(zip(functions, compiled, strict=True))
    for name, function in functions.items():
        _verify(f"{case.name} by {name}", function(*sets[0]), reference.result())
    yardstick = timing.microseconds(yard, sets)
    times = {name: timing.microseconds(function, sets) for name, function in functions.items()}
    return [
        {
            "estimator": case.name,
            "rows": batch,
            "steps": steps,
            "layout": layout,
            "dtype": "float32",
            "implementation": name,
            "microseconds": round(us, 2),
            "yardstick_microseconds": round(yardstick, 2),
            "ratio_to_yardstick": round(us / yardstick, 2),
            "speedup_over_associative_scan": round(times["associative_scan"] / us, 2),
        }
        for name, us in times.items()
    ]


def _verify(what: str, got, want) -> None:
    if not (error := cases.ulps(got, want)) <= cases.BOUND:
        raise CommandError(f"{what} is off by {error:.0f} units in the last place; nothing was timed")


def table(rows) -> str:
    heads = ("estimator", "rows x steps", "layout", "implementation", "us", "/yardstick", "speed-up")
    lines = ["{:20} {:>14} {:12} {:30} {:>9} {:>10} {:>9}".format(*heads)]
    for r in rows:
        shape = f"{r['rows']} x {r['steps']}"
        lines.append(
            f"{r['estimator']:20} {shape:>14} {r['layout']:12} {r['implementation']:30} {r['microseconds']:9.2f} "
            f"{r['ratio_to_yardstick']:10.2f} {r['speedup_over_associative_scan']:9.2f}"
        )
    return "\n".join(lines)


def plot(report, file, kind: str = "png") -> None:
    """A panel for each layout: how many times the yardstick each estimator takes at each shape."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = report["rows"]
    # The report may be from a file, of other estimators than CASES and of another device.
    estimators = list(dict.fromkeys(r["estimator"] for r in rows))
    found = {r["implementation"] for r in rows}
    best = next((i for i in IMPLEMENTATIONS if i in found), "nothing")
    shapes = list(dict.fromkeys((r["rows"], r["steps"]) for r in rows))
    colors = plt.get_cmap("viridis")(np.linspace(0.05, 0.95, len(estimators)))
    pitch = 0.77 / max(1, len(estimators))
    figure, panels = plt.subplots(1, 2, figsize=(12, 4.6), sharey=True, layout="constrained")
    for axes, layout in zip(panels, LAYOUTS, strict=True):
        for i, estimator in enumerate(estimators):
            ratio = {
                (r["rows"], r["steps"]): r["ratio_to_yardstick"]
                for r in rows
                if r["estimator"] == estimator and r["layout"] == layout and r["implementation"] == best
            }
            x = [shapes.index(s) + (i - (len(estimators) - 1) / 2) * pitch for s in ratio]
            axes.bar(x, list(ratio.values()), width=0.9 * pitch, color=colors[i], label=estimator)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set(title=layout.replace("_", "-"), xlabel="rows x steps")
        axes.set_xticks(range(len(shapes)), [f"{n}\nx {t}" for n, t in shapes])
        axes.grid(axis="y", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("time over an elementwise pass\nthrough the same arrays (1 = memory speed)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    where = report["environment"]
    figure.suptitle(f"{best} on {where['device']}, float32, {where['date']}")
    figure.savefig(file, format=kind, dpi=150)
    plt.close(figure)
