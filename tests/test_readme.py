"""README's Python runs, in the order in which it is read."""

import re
from pathlib import Path

import jax


def test_the_examples_run():
    text = (Path(__file__).parent.parent / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    names: dict = {}
    with jax.numpy_dtype_promotion("standard"):
        for block in blocks:
            exec(block, names)
    assert len(blocks) >= 3 and names["advantages"].shape == (128, 64)
