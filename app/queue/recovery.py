"""After a kill -9: what the jobs that were running left behind, and what they are now.

A clip's file carries its job's uid, so a job whose clip was complete under its final name is done, whatever the
database had been told; any other that was running has crashed. A poster without its clip goes.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

from app.errors import UsageError
from app.queue.jobs import Job, JobError, JobQueue, JobResult
from app.video import outputs, read_metadata
from app.worker.supervisor import SAVING_SECONDS, end_leftover

LEFTOVER_SECONDS = SAVING_SECONDS + 5.0
"""How long a worker whose owner died may take to end by itself; as a rule it stops within a step."""


def recover(queue: JobQueue) -> tuple[Job, ...]:
    """Bring the queue of an owner that was killed in order; returns the jobs that had been running, as they are now."""
    leftover = queue.fact("worker")
    if isinstance(leftover, dict):
        end_leftover(int(leftover["pid"]), float(leftover["created"]), LEFTOVER_SECONDS)
    queue.set_fact("worker", None)
    return tuple(_settle(queue, job) for job in queue.running())


def _settle(queue: JobQueue, job: Job) -> Job:
    try:
        result = _made(job)
        if result is None:
            _remove_lone_posters(job.spec.folder, outputs.safe_stem(job.spec.stem))
        outputs.remove_drafts(job.spec.folder, job.uid)
    except (OSError, ValueError):  # a folder that is out of reach must not keep the rest from being made
        result = None
    if result is not None:
        return queue.finish(job.id, result)
    begun = time.strftime("%H:%M", time.localtime(job.started))
    error = JobError(
        f"Kinetile was ended while it made this clip (begun at {begun}): retry the job to make it again.", "Crashed"
    )
    return queue.fail(job.id, "crashed", error)


def _made(job: Job) -> JobResult | None:
    """The clip that carries the job's uid, if it lies there under a final name."""
    for path in _candidates(job):
        try:
            metadata = read_metadata(path)
        except UsageError:
            continue
        if metadata.get("job") == job.uid:
            return _result(path, metadata)
    return None


def _candidates(job: Job) -> Iterator[Path]:
    """Clips under a name that the job may have got. Their times say nothing: a clock may have been set back."""
    for stem in (outputs.safe_stem(job.spec.stem), outputs.FALLBACK_STEM):
        numbered = re.compile(f"{re.escape(stem)}(-[0-9]+)?")
        found = job.spec.folder.glob(f"{_literal(stem)}*.mp4")
        yield from sorted(path for path in found if numbered.fullmatch(path.stem))


def _result(path: Path, metadata: dict[str, object]) -> JobResult:
    def part(name: str) -> dict[str, object]:
        found = metadata.get(name)
        return dict(found) if isinstance(found, dict) else {}

    timings = {key: float(str(value)) for key, value in part("timings").items()}
    note = "Kinetile was ended just after this clip was saved; the time that saving took is not known."
    return JobResult(path, path.with_suffix(".png"), part("plan"), part("report"), timings, (note,))


def _remove_lone_posters(folder: Path, stem: str) -> None:
    """A poster gets its name just before its clip. One that came alone is still the same file as its draft."""
    for draft in folder.glob(f".{_literal(stem)}-*.png.partial"):
        for poster in folder.glob(f"{_literal(stem)}*.png"):
            with contextlib.suppress(OSError):
                if poster.samefile(draft) and not poster.with_suffix(".mp4").exists():
                    poster.unlink()


def _literal(text: str) -> str:
    """`text` for `glob`, where brackets and stars mean something."""
    return "".join(f"[{c}]" if c in "[]*?" else c for c in text)
