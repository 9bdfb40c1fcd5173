"""Every notebook runs from the top, and is committed with its figures."""

import json
import os
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def outputs(path):
    cells = json.loads(path.read_text())["cells"]
    return [o for c in cells if c["cell_type"] == "code" for o in c["outputs"]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_committed_with_figures_and_without_errors(path):
    found = outputs(path)
    assert any("image/png" in o.get("data", {}) for o in found)
    assert all(o["output_type"] != "error" for o in found)


def test_the_table_names_every_notebook():
    text = (NOTEBOOKS[0].parent / "README.md").read_text()
    assert all(f"({p.name})" in text for p in NOTEBOOKS) and len(NOTEBOOKS) == 6


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs_from_the_top(path, monkeypatch):
    for package in ("nbclient", "ipykernel", "gymnax", "flashbax"):
        pytest.importorskip(package, reason=f"the notebooks need {package}")
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setitem(os.environ, "XLA_FLAGS", "")  # a notebook sees the devices that a person would
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
