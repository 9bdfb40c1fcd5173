"""README's Python runs, in the order in which it is read, on several devices and on one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax

README = Path(__file__).parent.parent / "README.md"


def blocks():
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


def test_the_examples_run():
    names: dict = {}
    with jax.numpy_dtype_promotion("standard"):
        for block in blocks():
            exec(block, names)
    assert len(blocks()) >= 3 and names["advantages"].shape == (128, 64)


def test_the_examples_run_on_one_device():
    program = "\n".join([*blocks(), "assert jax.device_count() == 1"])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=one_device())
    assert done.returncode == 0, done.stderr[-2000:]


def one_device():
    """This process's environment without the devices that conftest.py asks for, and without others."""
    kept = [f for f in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in f]
    return {**os.environ, "XLA_FLAGS": " ".join(kept), "JAX_PLATFORMS": "cpu"}
