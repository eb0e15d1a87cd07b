"""A clock that is set back and ahead by days while jobs wait and run: order, undo and recovery do not believe it."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from app import video
from app.paths import Home
from app.queue.jobs import JobQueue
from app.queue.migrate import MIGRATIONS, open_database
from app.queue.owner import LocalService
from app.queue.recovery import recover
from app.queue.service import open_service
from app.worker.supervisor import created_at, end_leftover
from tests.app.services import QUICK, ended, service_in_thread, spec
from tests.app.standin import StandIn
from tests.app.tiny_clips import noise
from tests.app.workers import in_thread

DAY = 24 * 3600.0


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock finds it days away from the last one."""
    true, jumps = time.time, itertools.cycle([0.0, -3 * DAY, 9 * DAY, -40 * 365 * DAY, DAY])
    monkeypatch.setattr(time, "time", lambda: true() + next(jumps))


@pytest.mark.usefixtures("jumping")
def test_jobs_are_made_in_their_order_and_listed_in_it(home: Home) -> None:
    service = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    try:
        jobs = ended(service, service.submit([spec(home.outputs, seed=seed) for seed in range(7)]))
        assert [job.state for job in jobs] == ["done"] * 7
        assert [job.id for job in service.history().jobs] == [job.id for job in reversed(jobs)], "newest first"
        assert all(job.seconds is None or job.seconds >= 0 for job in jobs)
        assert service.estimate(jobs[0].spec.request).seconds is not None
        assert len(list(home.outputs.glob("ball-*.mp4"))) == 7
    finally:
        service.stop()


def test_a_removal_can_be_undone_after_the_clock_was_set_ahead(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    service = service_in_thread(home, StandIn)
    try:
        jobs = ended(service, service.submit([spec(home.outputs)]))
        removal = service.remove([jobs[0].id])
        true = time.time
        monkeypatch.setattr(time, "time", lambda: true() + 9 * DAY)
        service._purged = float("-inf")
        service._purge()
        assert service.undo(removal)[0].id == jobs[0].id
        assert jobs[0].result is not None
        assert jobs[0].result.output.exists()
    finally:
        service.stop()


def test_a_clip_that_was_complete_is_found_after_the_clock_was_set_back(tmp_path: Path) -> None:
    queue = JobQueue(Home(tmp_path).database)
    queue.submit([spec(tmp_path)])
    job = queue.take()
    assert job is not None
    clip = video.save(noise(), 8, tmp_path, job.spec.stem, {"kinetile": 1, "job": job.uid, "request": {}})
    os.utime(clip.path, (1.0, 1.0))
    assert [one.state for one in recover(queue)] == ["done"]
    queue.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system keeps the time of a process's start")
def test_a_leftover_worker_is_known_after_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as worker:
        created = created_at(worker.pid)
        booted = psutil.boot_time()
        monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: booted + 9 * DAY)
        end_leftover(worker.pid, created, 0.1)
        gone = not psutil.pid_exists(worker.pid)
        worker.kill()
    assert gone


def test_the_history_of_before_keeps_its_order(tmp_path: Path) -> None:
    folder = tmp_path / "first"
    folder.mkdir()
    shutil.copy(MIGRATIONS / "001_jobs.sql", folder)
    base = open_database(tmp_path / "jobs.sqlite3", folder)
    base.executemany(
        "INSERT INTO jobs (uid, state, place, batch, key, words, spec, submitted, ended) "
        "VALUES (?, 'failed', 0, '', '', '', 'no job', 0, ?)",
        [("a", 30.0), ("b", None), ("c", 10.0), ("d", 10.0)],
    )
    base.close()
    base = open_database(tmp_path / "jobs.sqlite3")
    assert base.execute("SELECT uid, turn FROM jobs ORDER BY turn").fetchall() == [
        ("b", None), ("c", 1), ("d", 2), ("a", 3)
    ]  # fmt: skip
    base.close()


def test_a_duration_that_no_clock_measured_is_none(home: Home) -> None:
    service: LocalService = service_in_thread(home, StandIn)
    try:
        (job,) = ended(service, service.submit([spec(home.outputs)]))
        assert job.seconds is not None
        service._queue._base.execute("UPDATE jobs SET ended = started - 60")
        assert service.get([job.id])[0].seconds is None
    finally:
        service.stop()
