"""Jobs for the tests of the queue: such as wait, and such as are done."""

from __future__ import annotations

from pathlib import Path

from app.queue.jobs import Job, JobQueue, JobResult
from tests.app.services import spec

RESULT = JobResult(Path("/x/a.mp4"), Path("/x/a.png"), {"stages": []}, {"threads": 2}, {"total": 1.5}, ("a note",))


def ids(jobs: tuple[Job, ...]) -> list[int]:
    return [job.id for job in jobs]


def queued(queue: JobQueue, count: int = 1, **more: str) -> list[int]:
    """The ids of jobs that were just submitted, with seeds from 0."""
    return ids(queue.submit([spec(Path("/x"), seed=i, **more) for i in range(count)]))


def finished(queue: JobQueue, count: int = 1, prompt: str = "a red ball", **more: str) -> list[int]:
    made = ids(queue.submit([spec(Path("/x"), f"{prompt} {i}", seed=i, **more) for i in range(count)]))
    for _ in made:
        job = queue.take()
        assert job is not None
        queue.finish(job.id, RESULT)
    return made
