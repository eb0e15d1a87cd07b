"""What an owner that was killed leaves behind is told apart: clips that were complete, posters that came alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app import video
from app.paths import Home
from app.queue.jobs import Job, JobQueue
from app.queue.recovery import recover
from app.worker.supervisor import created_at, end_leftover
from tests.app.services import spec
from tests.app.tiny_clips import noise


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JobQueue]:
    made = JobQueue(Home(tmp_path).database)
    yield made
    made.close()


def begun(queue: JobQueue, folder: Path) -> Job:
    queue.submit([spec(folder)])
    job = queue.take()
    assert job is not None
    return job


def saved(job: Job, uid: str) -> video.SavedClip:
    metadata = {"kinetile": 1, "job": uid, "request": {"prompt": "x"}, "timings": {"denoise": 2.5}, "plan": {"a": 1}}
    return video.save(noise(), 8, job.spec.folder, job.spec.stem, metadata)


def test_a_clip_that_was_complete_makes_its_job_done(queue: JobQueue, tmp_path: Path) -> None:
    job = begun(queue, tmp_path / "clips [1]")
    saved(job, "of another job")
    clip = saved(job, job.uid)
    (now,) = recover(queue)
    assert now.state == "done"
    assert now.result is not None
    assert (now.result.output, now.result.poster) == (clip.path, clip.poster)
    assert now.result.timings == {"denoise": 2.5}
    assert now.result.plan == {"a": 1}


def test_a_job_without_its_clip_has_crashed_and_the_rest_stays_queued(queue: JobQueue, tmp_path: Path) -> None:
    job = begun(queue, tmp_path)
    (waiting,) = queue.submit([spec(tmp_path, seed=4)])
    saved(job, "of another job")
    (now,) = recover(queue)
    assert now.state == "crashed"
    assert now.error is not None
    assert "retry the job" in now.error.message
    assert [one.id for one in queue.waiting()] == [waiting.id]
    assert recover(queue) == ()


def test_a_poster_that_came_alone_goes_and_no_other_file(queue: JobQueue, tmp_path: Path) -> None:
    job = begun(queue, tmp_path)
    saved(job, "of another job")  # ball-3.mp4, ball-3.png
    draft = tmp_path / f".ball-3-{job.uid[:8]}.png.partial"
    draft.write_bytes(b"a poster")
    os.link(draft, tmp_path / "ball-3-2.png")  # named, and then the process died
    (tmp_path / "ball-3-note.png").write_bytes(b"a person's own")
    recover(queue)
    assert not draft.exists()
    left = {path.name for path in tmp_path.glob("[!.]*") if path.suffix in (".png", ".mp4")}
    assert left == {"ball-3.mp4", "ball-3.png", "ball-3-note.png"}


def test_clips_that_are_damaged_or_gone_are_no_clips(queue: JobQueue, tmp_path: Path) -> None:
    begun(queue, tmp_path / "gone")
    job = begun(queue, tmp_path)
    (tmp_path / "ball-3.mp4").write_bytes(b"half of one")
    assert {one.state for one in recover(queue)} == {"crashed"}
    assert (tmp_path / "ball-3.mp4").exists(), job


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_a_leftover_worker_is_ended_but_no_process_that_got_its_number() -> None:
    with sleeper() as other:
        end_leftover(other.pid, created_at(other.pid) - 100, 0.1)
        assert other.poll() is None
        begun_at = time.monotonic()
        end_leftover(other.pid, created_at(other.pid), 0.2)
        assert not psutil.pid_exists(other.pid)
        assert time.monotonic() - begun_at >= 0.2, "it is given the time to end by itself"
    end_leftover(other.pid, 0.0, 0.1)  # is gone: nothing to do


def test_recovering_waits_for_the_worker_of_before(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.queue.recovery.LEFTOVER_SECONDS", 0.1)
    with sleeper() as worker:
        queue.set_fact("worker", {"pid": worker.pid, "created": created_at(worker.pid)})
        recover(queue)
        worker.wait(5)
        assert not psutil.pid_exists(worker.pid)
    assert queue.fact("worker") is None
