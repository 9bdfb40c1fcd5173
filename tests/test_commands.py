"""What the commands share: interrupts, result files, progress."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from rltriton_jax import _interrupt
from rltriton_jax.commands import aside, check_files, progress, write, write_text
from rltriton_jax.errors import CommandError

STAGES = {
    "compiling": ("train --steps 100000000 --out OUT", r"compiling +0%", signal.SIGTERM),
    "training": ("train --steps 100000000 --out OUT", r"training +\d+% [1-9]", signal.SIGINT),
    "timing": ("bench --json OUT/bench.json", r"timing +0%", signal.SIGINT),
}


@pytest.mark.parametrize("stage", STAGES)
def test_an_interrupt_ends_a_command_at_once(stage, tmp_path):
    pytest.importorskip("gymnax" if stage != "timing" else "tqdm")
    arguments, sign, number = STAGES[stage]
    words = [word.replace("OUT", str(tmp_path)) for word in arguments.split()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-m", "rltriton_jax", *words], **pipes)
    try:
        seen = next(line for line in process.stderr if re.search(sign, line))
        begin = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        took = time.monotonic() - begin
    finally:
        process.kill()
    # Within 2 s on a machine that is not busy with other tests.
    assert process.returncode == 130 and took < 6 and "Traceback" not in err, (seen, took, err)
    assert "interrupted after" in err and all("\r" not in line for line in err)
    if words[0] == "train":
        result = json.loads(out)
        assert result["interrupted"] and (result["steps"] > 0) == (stage == "training")
        assert (result["steps_per_second"] is None) == (stage == "compiling")
        assert (tmp_path / "CartPole-v1-gae-seed0.json").read_text() == out
        assert (tmp_path / "CartPole-v1-gae-seed0.png").exists() == (stage == "training")


def test_an_interrupt_while_jax_is_imported_is_not_lost(tmp_path):
    (tmp_path / "jax.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    print('lost')\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "rltriton_jax", "doctor"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 130 and not done.stdout + done.stderr


def test_importing_the_library_leaves_signals_alone():
    assert signal.getsignal(signal.SIGINT) is not _interrupt._exit
    assert signal.getsignal(signal.SIGTERM) is not _interrupt._exit


def test_what_runs_aside_gives_its_result_and_its_error():
    assert aside(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        aside(divmod, 7, 0)


def test_a_file_is_the_old_one_or_the_new_one_whole(tmp_path):
    path = tmp_path / "result.json"
    write_text(path, "old")

    def half(file):
        file.write(b"ne")
        assert path.read_text() == "old"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, half)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    write_text(path, "new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("name", ["", "folder", "missing/file", "file/file", "n" * 300, "/dev/null", "/proc/file"])
def test_a_path_that_cannot_be_written_is_named(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    with pytest.raises(CommandError, match="cannot be written"):
        check_files(tmp_path / name)
    check_files(tmp_path / "file", tmp_path / "new", None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "kept"


def test_a_log_has_few_lines(capsys):
    pytest.importorskip("tqdm")
    with progress("working", total=1000, unit="step") as bar:
        for _ in range(1000):
            bar.set_postfix_str("return 1.0", refresh=False)
            bar.update()
    err = capsys.readouterr().err
    lines = err.split()
    assert "\r" not in err and len(err.splitlines()) <= 3, err
    assert {"0/1000", "1000/1000,"} <= set(lines)


def test_a_log_has_a_line_a_few_seconds_apart(capsys, monkeypatch):
    pytest.importorskip("tqdm")
    now = [0.0]
    with progress("working", total=100, unit="step") as bar:
        monkeypatch.setattr(bar, "_time", lambda: now[0])
        bar.last_print_t = bar.start_t = 0.0
        for _ in range(100):
            now[0] += 1
            bar.update()
    assert 10 <= len(capsys.readouterr().err.splitlines()) <= 25


def test_a_terminal_has_a_bar_that_fits_it(monkeypatch):
    pytest.importorskip("tqdm")
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, b"".join(n.to_bytes(2, sys.byteorder) for n in (24, 80, 0, 0)))
    with open(its, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with progress("training", total=10**12, unit="step", unit_scale=True) as bar:
            bar.set_postfix_str("return -1234.5", refresh=False)
            bar.update(5 * 10**11)
        text = ""
        # A terminal hands on what was written in pieces; closing the bar ends its line.
        while not text.endswith("\n") and select.select([ours], [], [], 10)[0]:
            text += os.read(ours, 65536).decode()
    drawn = [line for line in re.split(r"[\r\n]+", text) if "%|" in line]
    assert drawn and all(len(line) <= 80 for line in drawn)
    assert "return -1234.5" in drawn[-1] and "50%|" in drawn[-1]
