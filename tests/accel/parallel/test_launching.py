"""Ranks are ended together, and the one that failed is named. No torch: what a rank does is one line of Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from accel.errors import AccelError
from accel.parallel.launching import BROKEN, MEETING, run_ranks

WAIT = "import os, sys, time\nrank = int(os.environ['RANK'])\n"


def run(line: str, count: int = 2, timeout: float = 60.0) -> str:
    """The sentence that a job of ranks ends with, empty when it ended well."""
    try:
        run_ranks([sys.executable, "-c", WAIT + line], count, timeout)
    except AccelError as error:
        return str(error)
    return ""


def test_ranks_know_who_they_are_and_where_they_meet(tmp_path: Path) -> None:
    names = f"'RANK', 'LOCAL_RANK', 'WORLD_SIZE', {MEETING!r}"
    line = f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').write(','.join(os.environ[name] for name in ({names})))"
    assert run(line, 3) == ""
    *told, meetings = zip(*((tmp_path / str(rank)).read_text().split(",") for rank in range(3)), strict=True)
    assert told == [("0", "1", "2"), ("0", "1", "2"), ("3", "3", "3")]
    assert len(set(meetings)) == 1
    assert not Path(meetings[0]).parent.exists(), "the place where they met was left behind"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sys.exit('no memory' if rank == 1 else 0)", "rank 1 of 2 ended with status 1, and with it the others: no"),
        ("os.kill(os.getpid(), 9) if rank == 0 else time.sleep(600)", "rank 0 of 2 ended with signal 9"),
        (f"sys.exit({BROKEN!r} if rank == 0 else 'out of disk')", "rank 1 of 2 ended with status 1"),
        ("os._exit(7) if rank else time.sleep(600)", "rank 1 of 2 ended with status 7, and with it the others"),
    ],
)
def test_the_rank_that_failed_is_named_and_the_others_are_ended(line: str, said: str) -> None:
    begun = time.monotonic()
    found = run(line)
    assert found.startswith(said)
    assert "\n" not in found
    assert time.monotonic() - begun < 50


def test_time_is_bounded(tmp_path: Path) -> None:
    line = f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').write(str(os.getpid())); time.sleep(600 * rank)"
    assert run(line, timeout=5.0) == "after 5 s rank 1 of 2 had not ended"
    pid = int((tmp_path / "1").read_text())
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a rank watches the pipe that it was given")
def test_ranks_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    line = WAIT + f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').write(str(os.getpid())); time.sleep(600)"
    program = f"""
import sys
from accel.parallel.launching import run_ranks
run_ranks([sys.executable, "-c", {line!r}], 2, 600.0)
"""
    files = [tmp_path / str(rank) for rank in range(2)]
    with subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[3]) as parent:
        _until(lambda: all(file.exists() and file.read_text() for file in files))
        parent.send_signal(signal.SIGKILL)
    _until(lambda: not any(_runs(int(file.read_text())) for file in files))


def _until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except OSError:
        return False
