"""kill -9 at random moments: every job ends exactly once, no clip is doubled, missing or half, nothing is left running.

The short trial uses an engine that makes noise, the long one (`--test --long`) the starter.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from app.paths import Home
from app.queue.jobs import JobQueue
from app.video import mp4, read_metadata
from app.worker.supervisor import ROOT
from tests.app.services import spec, until

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kill -9")


def test_killed_at_random_moments(home: Home) -> None:
    trial(home, "standin", jobs=12, kills=4, longest=1.5)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_two_hundred_starter_jobs_killed_twenty_times(home: Home) -> None:
    trial(home, "starter", jobs=200, kills=20, longest=8.0)


def trial(home: Home, engine: str, jobs: int, kills: int, longest: float) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    queue = JobQueue(home.database)
    # Few names for many jobs: they must come apart by number.
    asked = queue.submit([spec(home.outputs, f"a red ball {i}", seed=i % 7) for i in range(jobs)])
    queue.close()
    processes: set[int] = set()
    moments = []
    for _ in range(kills):
        with start(home, engine) as owner:
            early = chance.random() < 0.2  # while it starts, else while it makes clips
            moment = chance.uniform(0, 1 if early else longest)
            if not early:
                until(functools.partial(makes_a_clip, home), 120)
            time.sleep(moment)
            processes |= processes_of(home)
            moments.append(round(moment, 2))
            owner.send_signal(signal.SIGKILL)
    with start(home, engine) as owner:
        assert owner.wait(3600) == 0
    print(f"killed after {moments} s")
    assert len(moments) == kills
    settled(home, [job.uid for job in asked])
    nothing_runs(processes)


def start(home: Home, engine: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.app.queue_owner", str(home.root), engine]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.DEVNULL)


def makes_a_clip(home: Home) -> bool:
    """Whether the worker of the owner that runs now has been given a job."""
    base = sqlite3.connect(home.database)
    running = base.execute("SELECT COUNT(*) FROM jobs WHERE state = 'running'").fetchone()[0]
    base.close()
    return bool(running and processes_of(home))


def processes_of(home: Home) -> set[int]:
    """The workers of this home and everything below them."""
    found: set[int] = set()
    for process in psutil.process_iter(["cmdline"]):
        if "--home" in (process.info["cmdline"] or []) and str(home.root) in process.info["cmdline"]:
            found.add(process.pid)
            found.update(child.pid for child in process.children(recursive=True))
    return found


def nothing_runs(processes: set[int]) -> None:
    assert processes, "no worker was ever seen"
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in processes if psutil.pid_exists(pid)], timeout=10)
    assert not alive, [process.cmdline() for process in alive]


def settled(home: Home, uids: list[str]) -> None:
    """Every job ended exactly once, and the folder holds exactly the clips of those that are done."""
    base = sqlite3.connect(home.database)
    assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    base.close()
    queue = JobQueue(home.database)
    assert queue.waiting() == queue.running() == ()
    history = queue.history(limit=10_000).jobs
    queue.close()
    assert sorted(job.uid for job in history) == sorted(uids)
    states = Counter(job.state for job in history)
    print(dict(states))
    assert set(states) <= {"done", "crashed"}, [job.error for job in history if job.state not in ("done", "crashed")]
    made = {job.uid: job.result for job in history if job.result is not None}
    assert set(made) == {job.uid for job in history if job.state == "done"}
    clips = sorted(home.outputs.glob("*.mp4"))
    owners = [read_metadata(path)["job"] for path in clips]
    assert len(set(owners)) == len(owners), "a clip is doubled"
    assert set(owners) == set(made)
    for path, uid in zip(clips, owners, strict=True):
        result = made[uid]
        assert result is not None
        assert (result.output, result.poster) == (path, path.with_suffix(".png"))
        assert mp4.read(path).frames == 5
    assert sorted(path.stem for path in home.outputs.glob("[!.]*.png")) == sorted(path.stem for path in clips)


def test_the_check_of_the_folder_can_fail(home: Home, tmp_path: Path) -> None:
    queue = JobQueue(home.database)
    (job,) = queue.submit([spec(home.outputs)])
    queue.close()
    with pytest.raises(AssertionError):
        settled(home, [job.uid])
