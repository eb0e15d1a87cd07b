"""How a command line ends that is told to, or that nobody hears any more: in order, with one sentence and its code."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
posix = pytest.mark.skipif(os.name == "nt", reason="signals and terminals as POSIX has them")


def stopped_early(stop: Callable[[subprocess.Popen[str]], None], folder: Path, errors: int) -> tuple[int, str]:
    """`stop` a batch that looks at the machine; its exit code and what it said after that."""
    preset = folder / "ball.json"
    preset.write_text(json.dumps({"kinetile": 1, "request": {"prompt": "a red ball", "steps": 100}}), encoding="utf-8")
    command = [sys.executable, "-u", "-m", "app.cli", "--headless", str(preset), "--home", str(folder / "home")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT) as run:
        assert run.stdout is not None
        assert any("Looking at the machine" in line for line in run.stdout)
        stop(run)
        rest, _ = run.communicate(timeout=120)
    return run.returncode, rest


@posix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_polite_end_before_the_first_clip_leaves_no_owner_behind(tmp_path: Path, name: str) -> None:
    code, rest = stopped_early(lambda run: run.send_signal(getattr(signal, name)), tmp_path, subprocess.STDOUT)
    assert code == 130, rest
    assert "Stopped on request: 0 of 1 made" in rest
    assert "Traceback" not in rest
    assert not (tmp_path / "home" / "owner.json").exists()


@posix
def test_a_closed_terminal_ends_a_batch_in_order(tmp_path: Path) -> None:
    """It leads a session of its own, with a terminal that goes away while it looks at the machine."""
    import pty

    child, terminal = pty.fork()
    if child == 0:
        home = ["--home", str(tmp_path / "home"), "--json"]
        out = os.open(tmp_path / "out.json", os.O_CREAT | os.O_WRONLY)
        os.dup2(out, 1)
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "app.cli", "--headless", "starter-rocket", *home])
    said = b""
    while b"Looking at the machine" not in said:
        said += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    document = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (document["exit_code"], document["clips"][0]["state"]) == (130, "waiting")
    assert not (tmp_path / "home" / "owner.json").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("words", [["--models"], ["--headless", "starter-rocket", "--dry-run"]])
def test_output_that_a_full_disk_refuses_is_told_in_one_sentence(tmp_path: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "app.cli", *words]
    variables = {**os.environ, "KINETILE_HOME": str(tmp_path)}
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=variables, check=False
        )
    assert done.returncode == 3
    assert done.stderr.startswith("Something can't be printed or written ([Errno 28]"), done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "owner.json").exists()
