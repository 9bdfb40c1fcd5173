"""`python -m rltriton_jax doctor`: versions, devices, what runs where and why, a self-test, and known trouble."""

import argparse
import importlib.util
import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rltriton_jax.bench import cases
from rltriton_jax.commands import aside, backend
from rltriton_jax.scan.lowering import implementation_on
from rltriton_jax.scan.triton import launch
from rltriton_jax.versions import numbers, versions

PACKAGES = (
    "rltriton-jax", "jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin", "jax-triton",
    "triton", "numpy", "flax", "optax", "gymnax", "brax", "rlax",
)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object, for a bug report")


def run(options: argparse.Namespace) -> int:
    backend()
    report = aside(examine)
    print(json.dumps(report, indent=1) if options.json else text(report))
    return int(bool(report["problems"]))


def examine() -> dict[str, Any]:
    """Everything that the report says; `problems` is empty where all is well."""
    installed = versions(*PACKAGES)
    errors = dict(_self_test())
    problems = [*_problems(installed), *_failures(errors)]
    return {
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "versions": installed,
        "devices": [f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices()],
        "implementations": _implementations(),
        "self_test": {"device": jax.default_backend(), "ulps": errors},
        "problems": problems,
        "notes": list(_notes()),
    }


def _implementations() -> dict[str, str]:
    """What `implementation=None` runs on each platform, and why."""
    reason = launch.why_unavailable()
    why = "" if reason is None else f", as the kernel cannot run: {reason}"
    gpu = {platform: implementation_on(platform) + why for platform in ("cuda", "rocm")}
    return {"cpu": implementation_on("cpu"), **gpu, "others": implementation_on("others")}


def _self_test() -> Iterator[tuple[str, float]]:
    """The error of each estimator on the default device, in both layouts, against float64."""
    for case in cases.CASES:
        worst = 0.0
        for time_major in (True, False):
            arrays = case.inputs(np.random.default_rng(0), 48, 200, time_major)
            worst = max(worst, cases.ulps(case.function(time_major)(arrays), case.reference(arrays, time_major)))
        yield case.name, round(worst, 2)


def _failures(errors: dict[str, float]) -> Iterator[str]:
    for name, error in errors.items():
        if not error <= cases.BOUND:
            yield (
                f"{name} is off by {error} units in the last place on {jax.default_backend()}, where {cases.BOUND} are "
                "the bound; report it, and use implementation='scan' meanwhile"
            )


def _problems(installed: dict[str, str]) -> Iterator[str]:
    """What is known not to work together, each with what mends it."""
    on_gpu = jax.default_backend() == "gpu"
    if on_gpu and (reason := launch.why_unavailable()) is not None:
        yield f"the Triton kernel cannot run: {reason}"
    if not on_gpu and Path("/dev/nvidia0").exists():
        yield f"this machine has an NVIDIA GPU that JAX does not use; install its plugin with {launch.INSTALL}"
    for name in ("jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin"):
        ours, jaxs = installed.get(name), installed.get("jax", jax.__version__)
        if ours is not None and ours.split(".")[:3] != jaxs.split(".")[:3]:
            yield f"{name} {ours} and jax {jaxs} differ; upgrade them together: pip install -U jax {name}=={jaxs}"
    triton, jax_triton = (numbers(installed.get(name, "")) for name in ("triton", "jax-triton"))
    if triton and jax_triton and jax_triton < (0, 4) and triton >= (3, 7):
        yield (
            f"triton {installed['triton']} writes PTX that JAX's ptxas may not read, and jax-triton "
            f"{installed['jax-triton']} cannot ask for older; pip install 'triton<3.7', or 'jax-triton>=0.4.1' on "
            "Python 3.12"
        )
    if triton and jax_triton and jax_triton >= (0, 4) and triton < (3, 7):
        yield (
            f"jax-triton {installed['jax-triton']} needs triton 3.7 or newer, but {installed['triton']} is installed; "
            "pip install -U triton"
        )


def _notes() -> Iterator[str]:
    if launch.why_unavailable() is not None and jax.default_backend() != "gpu":
        yield f"no kernel here, and none needed on {jax.default_backend()}: {launch.why_unavailable()}"
    if sys.platform != "linux":
        yield f"Triton has no wheels for {sys.platform}: the plain JAX implementations run"
    if importlib.util.find_spec("brax") and not hasattr(jax, "device_put_replicated"):
        yield "brax's own ppo.train needs jax.device_put_replicated, which this JAX lacks; its environments work"


def text(report: dict[str, Any]) -> str:
    lines = [f"python {report['python']} on {report['system']}"]
    lines += [f"  {name} {version}" for name, version in report["versions"].items()]
    lines += ["devices", *(f"  {d}" for d in report["devices"])]
    lines += ["implementation=None runs", *(f"  {k}: {v}" for k, v in report["implementations"].items())]
    lines += [f"self-test on {report['self_test']['device']}, error in units in the last place ({cases.BOUND} allowed)"]
    lines += [f"  {name}: {error}" for name, error in report["self_test"]["ulps"].items()]
    lines += [f"note: {n}" for n in report["notes"]]
    lines += [f"PROBLEM: {p}" for p in report["problems"]]
    lines += ["all is well" if not report["problems"] else f"{len(report['problems'])} problem(s)"]
    return "\n".join(lines)
