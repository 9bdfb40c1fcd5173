"""The doctor: what it reports, and what it finds."""

import json
import os
import subprocess
import sys

import jax
import pytest

from rltriton_jax import doctor
from rltriton_jax.__main__ import main
from rltriton_jax.bench import cases
from rltriton_jax.scan.triton import launch


def test_a_sound_installation_is_well(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == [] and report["versions"]["jax"] == jax.__version__
    assert set(report["self_test"]["ulps"]) == {c.name for c in cases.CASES}
    assert report["implementations"]["cpu"] == "chunked_scan"
    assert len(report["devices"]) == jax.device_count()


def test_the_text_names_versions_devices_and_the_verdict(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_self_test", lambda: [("gae", 1.0)])
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"jax {jax.__version__}" in out and "cpu:0" in out and out.strip().endswith("all is well")


def test_a_wrong_result_is_found_and_fails(monkeypatch, capsys):
    original = cases.BenchCase.function

    def function(self, time_major, **options):
        right = original(self, time_major, **options)
        wrong = self.name == "retrace" and not options
        return (lambda arrays: jax.tree.map(lambda x: x + 1e-3, right(arrays))) if wrong else right

    monkeypatch.setattr(cases.BenchCase, "function", function)
    assert main(["doctor"]) == 1
    assert "PROBLEM: retrace is off by" in capsys.readouterr().out


def test_a_gpu_without_the_kernel_is_a_problem_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr(launch, "why_unavailable", lambda: f"import triton failed; {launch.INSTALL}")
    assert not any("kernel" in p for p in doctor._problems({"jax": "0.11.2"}))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    (found,) = [p for p in doctor._problems({"jax": "0.11.2"}) if "kernel" in p]
    assert launch.INSTALL in found


@pytest.mark.parametrize(
    ("versions", "fix"),
    [
        ({"jax": "0.11.2", "jaxlib": "0.10.2"}, "jaxlib==0.11.2"),
        ({"jax": "0.11.2", "jax-cuda12-plugin": "0.11.1"}, "jax-cuda12-plugin==0.11.2"),
        ({"jax": "0.11.2", "jax-triton": "0.4.1", "triton": "3.6.0"}, "pip install -U triton"),
        ({"jax": "0.11.2", "jax-triton": "0.3.1", "triton": "3.9.0"}, "triton<3.7"),
        ({"jax": "0.12.0.1", "jaxlib": "0.12.0", "jax-triton": "0.4.1", "triton": "3.9.0"}, None),
        ({"jax": "0.10.2", "jaxlib": "0.10.2", "jax-triton": "0.3.1", "triton": "3.6.0"}, None),
    ],
)
def test_versions_that_cannot_work_together_are_named_with_the_fix(versions, fix, monkeypatch):
    monkeypatch.setattr(doctor.Path, "exists", lambda self: False)
    found = list(doctor._problems(versions))
    assert len(found) == (fix is not None) and all(fix in p for p in found)


def test_a_gpu_that_jax_does_not_use_is_a_problem(monkeypatch):
    monkeypatch.setattr(doctor.Path, "exists", lambda self: str(self) == "/dev/nvidia0")
    (found,) = doctor._problems({"jax": "0.11.2"})
    assert "does not use" in found and launch.INSTALL in found


def test_a_jax_that_does_not_start_is_one_line():
    command = [sys.executable, "-m", "rltriton_jax", "doctor"]
    done = subprocess.run(command, env={**os.environ, "JAX_PLATFORMS": "nothing"}, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "doctor" in line]
    assert done.returncode == 2 and "JAX_PLATFORMS='nothing'" in said[0] and "Traceback" not in done.stderr
