"""A full disk, a cancel at a bad moment, an owner that can't be made: nothing is lost and nothing left behind."""

from __future__ import annotations

import errno
import threading
from typing import Any
from unittest.mock import Mock

import pytest

from app.engine import Engine
from app.errors import CannotRunError, DatabaseError
from app.models.base import Family
from app.paths import Home
from app.queue.jobs import Job, JobQueue, JobResult
from app.queue.owner import LocalService
from app.queue.service import open_service
from tests.app.engines import SpoilStep
from tests.app.services import ended, service_in_thread, spec
from tests.app.standin import StandIn
from tests.app.workers import in_thread


def test_a_clip_that_is_there_is_never_written_down_as_failed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when a finished clip is to be recorded, and Kinetile is stopped meanwhile."""
    service = service_in_thread(home, StandIn)
    tried = threading.Event()

    def full(*_: Any) -> Job:
        tried.set()
        raise DatabaseError("database or disk is full")

    monkeypatch.setattr(service._queue, "finish", full)
    (job,) = service.submit([spec(home.outputs)])
    assert tried.wait(60)
    service.stop()
    again = service_in_thread(home, StandIn)
    assert [one.state for one in again.get([job.id])] == ["done"]
    again.stop()


def test_latents_that_turn_to_nan_fail_the_page_s_job_by_step_and_backend(
    home: Home, tiny_family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 16: the job is failed with its reason, nothing lies in the folder, and the next job is made."""
    owner = service_in_thread(home, Engine)
    with monkeypatch.context() as spoiled:
        SpoilStep(spoiled, step=3, times=9)
        (job,) = ended(owner, owner.submit([spec(home.outputs, steps=4)]))
    assert (job.state, job.result) == ("failed", None)
    assert job.error is not None
    assert "latent values are not finite at step 3 of 4, with " in str(job.error.message)
    assert [path for path in home.outputs.rglob("*") if path.is_file()] == []
    (after,) = ended(owner, owner.submit([spec(home.outputs, steps=4)]))
    assert after.state == "done"
    owner.stop()


def test_a_cancel_between_taking_and_beginning_a_job_counts(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = service_in_thread(home, StandIn)
    taken, go_on = threading.Event(), threading.Event()
    take = owner._queue.take

    def slowly(*batches: Any) -> Job | None:
        job = take(*batches)
        if job is not None:
            taken.set()
            go_on.wait(60)
        return job

    monkeypatch.setattr(owner._queue, "take", slowly)
    (job,) = owner.submit([spec(home.outputs)])
    assert taken.wait(60)
    owner.cancel([job.id])
    go_on.set()
    assert ended(owner, [job])[0].state == "cancelled"
    owner.stop()


def test_an_owner_whose_door_can_not_be_made_leaves_nothing_behind(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("app.queue.handing_over.Door._write_card", full)
        with pytest.raises(CannotRunError, match="No space left"):
            open_service(home, seconds=1, launch=in_thread(StandIn))
    assert "dispatcher" not in [thread.name for thread in threading.enumerate()]
    service = open_service(home, seconds=1, launch=in_thread(StandIn))
    assert service.owner
    service.stop()


def test_what_the_database_can_not_do_is_a_sentence(home: Home) -> None:
    queue = JobQueue(home.database)
    queue._base.execute("PRAGMA max_page_count = 1")
    with pytest.raises(DatabaseError, match=r"database or disk is full.*free some space"):
        queue.submit([spec(home.outputs, prompt="x" * 90_000) for _ in range(20)])
    assert queue.waiting() == ()
    queue.close()


def test_a_database_that_can_not_be_written_for_a_while_loses_no_end(
    owner: LocalService, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = owner._queue.finish
    refused: list[int] = []

    def full(identity: int, result: JobResult, took: Any = None) -> Job:
        if len(refused) < 2:
            refused.append(identity)
            raise DatabaseError("database or disk is full")
        return finish(identity, result, took)

    monkeypatch.setattr(owner._queue, "finish", full)
    jobs = ended(owner, owner.submit([spec(home.outputs, seed=1), spec(home.outputs, seed=2)]))
    assert [job.state for job in jobs] == ["done", "done"]
    assert refused == [jobs[0].id] * 2


@pytest.mark.parametrize("fault", ["disk", "encoder"])
def test_a_clip_that_could_not_be_saved_is_not_begun(home: Home, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Cases 32 and 34: the page's clips too; the next one is made when the fault is mended."""
    begun: list[int | None] = []

    class Watched(StandIn):
        def generate(self, request: Any, *arguments: Any, **options: Any) -> Any:
            begun.append(request.seed)
            return super().generate(request, *arguments, **options)

    service = service_in_thread(home, Watched)
    with monkeypatch.context() as patched:
        if fault == "disk":
            patched.setattr("app.video.outputs.shutil.disk_usage", lambda _: Mock(free=1000))
        else:
            patched.setenv("IMAGEIO_FFMPEG_EXE", str(home.root / "gone"))
        (failed,) = ended(service, service.submit([spec(home.outputs, seed=1)]))
    assert failed.error is not None
    assert ("free some space" if fault == "disk" else "ffmpeg at ") in failed.error.message
    (made,) = ended(service, service.submit([spec(home.outputs, seed=2)]))
    assert made.state == "done"
    assert begun == [2]
    service.stop()
