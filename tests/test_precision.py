"""The precision study: its references, its split, its committed table and what README quotes of it."""

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import reference

from rltriton_jax.__main__ import main
from rltriton_jax.bench import precision

ROOT = Path(__file__).parent.parent
REPORT = json.loads((ROOT / "rltriton_jax" / "bench" / "results" / "precision.json").read_text())
DEFINITIONS = {d.name: d for d in precision.DEFINITIONS}


@pytest.mark.parametrize("kind", precision.KINDS)
@pytest.mark.parametrize("name", DEFINITIONS)
def test_the_exact_results_are_those_of_the_definitions(name, kind):
    definition = DEFINITIONS[name]
    d = precision.data(definition, kind, 12)
    gamma, lambda_ = np.array(precision.SETTINGS).T[..., None]
    hyper = {k: v for k, v in (("gamma", gamma), ("lambda_", lambda_)) if k in definition.hyperparameters}
    want = getattr(reference, name)(**d, **hyper)[0]
    chosen = list(definition.settings)
    got = precision.exact(definition, d, gamma, lambda_)
    np.testing.assert_allclose(got[:, chosen], want[:, chosen], rtol=1e-10, atol=1e-12)
    by_hand = precision.own_scan(definition)(
        {k: x.astype("float32") for k, x in d.items()}, *(x.astype("float32") for x in (gamma, lambda_))
    )
    np.testing.assert_allclose(by_hand[:, chosen], want[:, chosen], rtol=1e-5, atol=1e-4)


def test_a_sum_of_ones_costs_its_output_and_sticks_at_256_in_a_bfloat16_scan(monkeypatch):
    definition = DEFINITIONS["episodic_prefix_sum"]
    monkeypatch.setattr(precision, "data", lambda *_: {"inputs": np.ones((1000, len(precision.SETTINGS), 1))})
    functions = precision.ours(definition), precision.own_scan(definition)
    (row,) = precision.measure(definition, "one_sign", 1000, *functions)
    assert row["bfloat16"]["inputs"] == row["bfloat16"]["computation"] == row["float32"]["total"] == 0
    assert 0 < row["bfloat16"]["output"] == row["bfloat16"]["total"] < 0.002
    sums = np.arange(1, 1001)
    stuck = np.sqrt(np.mean((np.minimum(sums, 256) - sums) ** 2) / np.mean(sums**2))
    assert row["bfloat16"]["own_scan"] == pytest.approx(stuck, rel=0.02)


def test_what_float16_cannot_hold_has_no_number(monkeypatch):
    definition = DEFINITIONS["episodic_prefix_sum"]
    monkeypatch.setattr(precision, "data", lambda *_: {"inputs": np.full((10, len(precision.SETTINGS), 1), 1e4)})
    functions = precision.ours(definition), precision.own_scan(definition)
    (row,) = precision.measure(definition, "one_sign", 10, *functions)
    assert row["float16"]["computation"] == 0 and row["float16"]["total"] is row["float16"]["own_scan"] is None
    assert row["bfloat16"]["total"] < 0.01


def test_the_command_writes_the_table_and_the_plot(tmp_path, capsys, monkeypatch):
    pytest.importorskip("tqdm", reason="the bench's progress bar needs tqdm")
    pytest.importorskip("matplotlib", reason="the bench's plot needs matplotlib")
    monkeypatch.setattr(precision, "STEPS", (8, 16))
    monkeypatch.setattr(precision, "DEFINITIONS", (DEFINITIONS["gae"], DEFINITIONS["episodic_prefix_sum"]))
    where = ["--json", str(tmp_path / "p.json"), "--plot", str(tmp_path / "p.png")]
    assert main(["bench", "--precision", *where]) == 0
    report = json.loads((tmp_path / "p.json").read_text())
    assert len(report["rows"]) == 2 * 2 * (4 + 1) and {r["steps"] for r in report["rows"]} == {8, 16}
    assert all(len(r[dtype]) == 5 for r in report["rows"] for dtype in precision.DTYPES)
    assert "time" not in report["environment"]
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "Relative errors at 16 steps" in capsys.readouterr().out


def test_a_study_is_not_quick(capsys):
    assert main(["bench", "--precision", "--quick"]) == 2
    assert "--quick: not allowed with argument --precision" in capsys.readouterr().err


def test_the_committed_table_is_whole():
    found = [(r["estimator"], r["data"], r["gamma"], r["lambda_"], r["steps"]) for r in REPORT["rows"]]
    assert found == [
        (d.name, kind, *precision.SETTINGS[i], steps)
        for d in precision.DEFINITIONS
        for kind in precision.KINDS
        for steps in precision.STEPS
        for i in d.settings
    ]


RETURNS = ("discounted_returns", "lambda_returns", "eligibility_traces", "episodic_prefix_sum")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits_the_rounding_of_data_and_result_outweighs_the_arithmetic(dtype):
    """By far where nothing cancels."""
    for row in REPORT["rows"]:
        errors, share = row[dtype], 0.04 if row["estimator"] in RETURNS else 0.5
        if errors["total"] is not None:
            assert errors["computation"] <= share * np.hypot(errors["inputs"], errors["output"]), row


def test_returns_in_bfloat16_are_as_good_as_the_dtype_at_a_million_steps():
    """And a scan whose carry is bfloat16 too is not."""
    for row in REPORT["rows"]:
        if row["estimator"] in RETURNS:
            assert row["bfloat16"]["total"] <= float(jnp.finfo("bfloat16").eps)
            assert row["steps"] < 10**6 or row["bfloat16"]["own_scan"] >= 5 * row["bfloat16"]["total"], row


def test_readme_quotes_the_table():
    section = re.search(r"\n## Precision\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.S)[1]
    _, _, *lines = [line for line in section.splitlines() if line.startswith("|")]
    assert len(lines) >= 5
    for line in lines:
        name, kind, gamma, lambda_, *numbers = [cell.strip() for cell in line.strip("| ").split("|")]
        wanted = (name.strip("`"), kind.replace(" ", "_"), float(gamma), float(lambda_), 10**4)
        (row,) = [
            r for r in REPORT["rows"] if (r["estimator"], r["data"], r["gamma"], r["lambda_"], r["steps"]) == wanted
        ]
        quoted = [row[dtype][part] for dtype in precision.DTYPES for part in ("total", "own_scan")]
        assert numbers == ["overflow" if x is None else f"{x:.1e}" for x in quoted], line
