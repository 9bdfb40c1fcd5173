"""The bench: it verifies, reports and plots."""

import json

import jax
import numpy as np
import pytest

pytest.importorskip("tqdm", reason="the bench's progress bar needs tqdm")
pytest.importorskip("matplotlib", reason="the bench's plot needs matplotlib")

from rltriton_jax.__main__ import CommandError, main
from rltriton_jax.bench import cases, command


def test_the_bench_reports_every_case(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cases, "CPU_SHAPES", ((8, 16),))
    where = ["--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b.png")]
    assert main(["bench", *where]) == 0
    report = json.loads((tmp_path / "b.json").read_text())
    assert {r["estimator"] for r in report["rows"]} == {c.name for c in cases.CASES}
    assert all(r["microseconds"] > 0 and r["ratio_to_yardstick"] > 0 for r in report["rows"])
    assert {"device", "date", "jax"} <= report["environment"].keys()
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    assert "episodic_prefix_sum" in capsys.readouterr().out


def test_nothing_is_timed_that_is_wrong():
    with pytest.raises(CommandError, match="nothing was timed"):
        command._verify("gae", np.ones(3), np.zeros(3))


@pytest.mark.parametrize("case", cases.CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("time_major", [True, False])
def test_the_yardstick_reads_and_writes_as_much_as_the_estimator(case, time_major):
    arrays = case.inputs(np.random.default_rng(0), 4, 8, time_major)
    moved = sum(a.nbytes for name, a in arrays.items() if name != "bootstrap_value")
    results = jax.tree.leaves(case.yardstick()(arrays))
    assert case.bytes(4, 8) == moved + sum(r.nbytes for r in results)
    assert len(jax.tree.leaves(case.function(time_major)(arrays))) == case.outputs
