"""The bench: it verifies, reports and plots."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

pytest.importorskip("tqdm", reason="the bench's progress bar needs tqdm")
pytest.importorskip("matplotlib", reason="the bench's plot needs matplotlib")

import matplotlib.pyplot as plt

import rltriton_jax as rtj
from rltriton_jax.__main__ import main
from rltriton_jax.bench import cases, command, cpu, scaling
from rltriton_jax.errors import CommandError

EIGHTH = cases.BenchCase("eighth", ("inputs", "done", "initial"), rtj.episodic_prefix_sum, 1)


def test_the_bench_reports_every_case(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cases, "CPU_SHAPES", ((8, 16),))
    monkeypatch.setattr(cpu, "SHAPES", ((16, 8),))
    monkeypatch.setattr(cpu, "SECONDS", 0.01)
    where = ["--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b.png")]
    assert main(["bench", *where]) == 0
    report = json.loads((tmp_path / "b.json").read_text())
    assert {r["estimator"] for r in report["rows"]} == {c.name for c in cases.CASES}
    assert all(r["microseconds"] > 0 and r["ratio_to_yardstick"] > 0 for r in report["rows"])
    (against,) = report["against_hand_written"]
    assert (against["steps"], against["rows"]) == (16, 8) and against["implementation"] == "chunked_scan"
    for what in ("forward", "gradient"):
        assert against[what]["ratio"] > 0 and against[what]["compile_ratio"] > 0
    assert {"device", "date", "jax"} <= report["environment"].keys()
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    assert "episodic_prefix_sum" in capsys.readouterr().out


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn."""
    figures, close = [], plt.close
    monkeypatch.setattr(plt, "close", lambda figure: (figures.append(figure), close(figure)))
    return figures


def test_an_eighth_estimator_is_one_line(drawn, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cases, "CPU_SHAPES", ((8, 16),))
    monkeypatch.setattr(cases, "CASES", (*cases.CASES, EIGHTH))
    monkeypatch.setattr(cpu, "SHAPES", ())
    assert main(["bench", "--json", str(tmp_path / "b.json"), "--plot", str(tmp_path / "b.png")]) == 0
    names = [c.name for c in cases.CASES]
    assert list(dict.fromkeys(r["estimator"] for r in json.loads((tmp_path / "b.json").read_text())["rows"])) == names
    assert "eighth" in capsys.readouterr().out
    assert [t.get_text() for t in drawn[0].legends[0].get_texts()] == names
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_a_report_from_a_file_is_plotted_whatever_its_estimators(count, drawn, tmp_path):
    names = [f"estimator {i}" for i in range(count)]
    measured = {"steps": 8, "implementation": "triton", "ratio_to_yardstick": 1}
    rows = [
        {"estimator": name, "rows": n, "layout": layout, **measured}
        for n in (2, 4)
        for layout in command.LAYOUTS
        for name in names
    ]
    command.plot({"environment": {"device": "toy", "date": "today"}, "rows": rows}, tmp_path / "b.png")
    assert [t.get_text() for t in drawn[0].legends[0].get_texts()] == names
    for axes in drawn[0].axes:
        bars = sorted((b.get_x(), b.get_x() + b.get_width()) for b in axes.patches)
        edges = [edge for bar in bars for edge in bar]
        assert len(bars) == 2 * count and edges == sorted(edges), "bars overlap"
        assert len({b.get_facecolor() for b in axes.patches}) == count
        for shape, group in enumerate((bars[:count], bars[count:])):
            assert not group or np.isclose(group[0][0] + group[-1][1], 2 * shape), "bars are off their shape"


def test_what_was_measured_before_a_failure_is_in_the_file(tmp_path, monkeypatch):
    def measure(case, *_, **__):
        if case.name != "gae":
            raise MemoryError
        return [{"estimator": case.name}]

    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setattr(cpu, "SHAPES", ())
    with pytest.raises(MemoryError):
        main(["bench", "--json", str(tmp_path / "b.json")])
    assert json.loads((tmp_path / "b.json").read_text())["rows"] == [{"estimator": "gae"}]


def test_an_interrupt_keeps_what_was_measured(tmp_path, capsys, monkeypatch):
    measured = cpu.measure

    def measure(steps, rows):
        if rows != 8:
            raise KeyboardInterrupt
        return measured(steps, rows)

    monkeypatch.setattr(cpu, "measure", measure)
    monkeypatch.setattr(cpu, "SHAPES", ((16, 8), (16, 9)))
    monkeypatch.setattr(cpu, "SECONDS", 0.01)
    path = tmp_path / "b.json"
    assert main(["bench", "--json", str(path)]) == 130
    report, said = json.loads(path.read_text()), capsys.readouterr()
    assert report["interrupted"] and len(report["against_hand_written"]) == 1 and not report["rows"]
    assert "16 x 8" in said.out and "interrupted after 1 of" in said.err
    assert said.err.splitlines()[-1] == f"results are in {path}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--json", "/nowhere/b.json"], "/nowhere/b.json cannot be written"),
        (["bench", "--json", "."], ". cannot be written: it is a folder"),
        (["bench", "--json", "/dev/null"], "/dev/null cannot be written: it is a device"),
        (["bench", "--plot", "."], ". cannot be written: it is a folder"),
        (["bench", "--plot", "x.badext"], "Format 'badext' is not supported"),
        (["bench", "--plot", "x"], "is not supported (supported formats"),
        (["bench", "--plot", "a.png", "--json", "./a.png"], "--json and --plot are one file"),
        (["bench", "--quik"], "unrecognized arguments: --quik"),
        (["scaling", "--json", "/nowhere/s.json"], "/nowhere/s.json cannot be written"),
        (["scaling", "--devices", "1"], "each number must be 2 or more"),
        (["scaling", "--devices", "8", "3"], "--devices is 3"),
        (["scaling", "--devices", "4"], "start it in a process of its own"),
        (["doctor", "--json", "x"], "unrecognized arguments: x"),
        (["dcotor"], "invalid choice: 'dcotor'"),
        ([], "arguments are required: COMMAND"),
    ],
)
def test_what_a_person_gets_wrong_is_one_line_and_a_failure(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "progress", lambda *_, **__: pytest.fail("it began"))
    assert jax.devices() and main(arguments) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert message in error and error.startswith("rltriton_jax") and not list(tmp_path.iterdir())


def test_a_person_sees_one_line_and_no_traceback():
    command = [sys.executable, "-m", "rltriton_jax", "scaling", "--devices", "1"]
    result = subprocess.run(command, capture_output=True, text=True)
    said = [line for line in result.stderr.splitlines() if "scaling:" in line]
    assert result.returncode == 2 and len(said) == 1 and "Traceback" not in result.stderr


def test_nothing_is_timed_that_is_wrong():
    with pytest.raises(CommandError, match="nothing was timed"):
        command._verify("gae", np.ones(3), np.zeros(3))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("%p = f32[1,16]{1,0} collective-permute(%x), channel_id=1", [("collective-permute", 16, 64)]),
        ("%g = f32[4,2,1,8]{3,2,1,0} all-gather(%x), dimensions={0}", [("all-gather", 64, 256)]),
        ("%s = ((f32[1,2,16]{2,1,0}), f32[2,2,16]{2,1,0}) all-gather-start(%x), dimensions={0}",
         [("all-gather", 64, 256)]),
        ("%r = (f32[8]{0}, pred[3]{0}) all-reduce(%x, %y), to_apply=%add", [("all-reduce", 11, 35)]),
        ("%d = f32[2,2,16]{2,1,0} all-gather-done(%s)", []),
        ("%f = f32[8]{0} fusion(%all-gather-done), calls=%c", []),
    ],
)  # fmt: skip
def test_collectives_are_read_off_compiled_text(line, found):
    assert scaling.collectives(line) == found


@pytest.mark.parametrize("name", ["terminated", "truncated", "done"])
def test_flags_are_drawn_as_0_and_1(name):
    case = cases.BenchCase("toy", (name,), lambda **_: None, 1)
    assert set(np.unique(case.inputs(np.random.default_rng(0), 64, 64, True)[name])) == {0, 1}


@pytest.mark.parametrize("case", [*cases.CASES, EIGHTH], ids=lambda c: c.name)
@pytest.mark.parametrize("time_major", [True, False])
def test_the_yardstick_reads_and_writes_as_much_as_the_estimator(case, time_major):
    arrays = case.inputs(np.random.default_rng(0), 4, 8, time_major)
    moved = sum(a.nbytes for a in arrays.values() if a.ndim > 1)
    results = jax.tree.leaves(case.yardstick()(arrays))
    assert case.bytes(4, 8) == moved + sum(r.nbytes for r in results)
    assert len(jax.tree.leaves(case.function(time_major)(arrays))) == case.outputs
