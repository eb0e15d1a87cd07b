"""The queue and the history for programs: one named endpoint per action, plain data in and out."""

from __future__ import annotations

from typing import Any

from app.plain import to_data
from app.queue.jobs import ENDED, Job, Removal
from app.ui.context import Context
from app.ui.endpoints import add_endpoints
from app.ui.queue_view import is_shown

MOST = 500
"""Most jobs of one answer."""


def add(context: Context) -> None:
    """Register the endpoints on the page that is being built."""

    def shown(job: Job) -> dict[str, Any]:
        is_shown(job, context)
        return job_data(job)

    def queue() -> dict[str, Any]:
        """What runs (with its progress) and what waits, the next job first."""
        now = context.service.snapshot()
        return {
            "running": job_data(now.running) if now.running else None,
            "progress": to_data(now.progress) if now.progress else None,
            "waiting": [job_data(job) for job in now.waiting],
        }

    def history(search: str = "", offset: int = 0, limit: int = 50) -> dict[str, Any]:
        """What has ended, newest first, at most 500. `search`: every word of it stands in the prompt or name."""
        found = context.service.history(search, max(0, offset), max(0, min(limit, MOST)), ENDED)
        return {"total": found.total, "jobs": [shown(job) for job in found.jobs]}

    def job(id: int) -> dict[str, Any]:
        """One job: state, request, files, error."""
        return shown(context.service.get([id])[0])

    def job_move(id: int, place: int) -> dict[str, Any]:
        """Give a waiting job another place; 0 is the next one."""
        context.service.move(id, place)
        return queue()

    def job_hold(id: int, held: bool = True) -> dict[str, Any]:
        """Keep a waiting job from being begun, or release it."""
        context.service.hold([id], held)
        return queue()

    def job_cancel(id: int) -> dict[str, Any]:
        """Stop a job: a running one within a step, a waiting one by ending it as cancelled."""
        context.service.cancel([id])
        return queue()

    def job_remove(ids: list[int]) -> dict[str, Any]:
        """Take waiting jobs out of the queue, or ended ones with their files out of the history. Returns what
        `job_undo` takes.
        """
        removal = context.service.remove(ids)
        return {"token": removal.token, "ids": list(removal.ids)}

    def job_undo(token: str) -> list[dict[str, Any]]:
        """Bring removed jobs back; possible for ten minutes, after which their files go."""
        return [job_data(one) for one in context.service.undo(Removal(token, ()))]

    def job_retry(id: int) -> dict[str, Any]:
        """Queue a failed, cancelled or crashed job anew."""
        return job_data(context.service.retry(id))

    def job_duplicate(id: int, new_seed: bool = False) -> dict[str, Any]:
        """Queue the same clip once more, with `new_seed` a sibling of it."""
        return job_data(context.service.duplicate(id, new_seed))

    def job_settings(id: int) -> dict[str, Any]:
        """The request of a job as it was asked for, with the seed that it got: what "Use these settings" fills in."""
        return context.service.get([id])[0].spec.again.model_dump(mode="json")

    add_endpoints(
        queue,
        history,
        job,
        job_move,
        job_hold,
        job_cancel,
        job_remove,
        job_undo,
        job_retry,
        job_duplicate,
        job_settings,
    )


def job_data(job: Job) -> dict[str, Any]:
    """A job as plain data."""
    data: dict[str, Any] = {
        "id": job.id,
        "state": job.state,
        "held": job.held,
        "name": job.spec.name,
        "prompt": job.spec.request.prompt,
        "request": job.spec.request.model_dump(mode="json"),
        "adjustments": [adjustment.model_dump(mode="json") for adjustment in job.spec.adjustments],
        "notes": list(job.spec.notes),
        "submitted": job.submitted,
        "started": job.started,
        "ended": job.ended,
        "error": job.error.message if job.error else None,
    }
    if job.result is not None:
        data |= {
            "output": str(job.result.output),
            "poster": str(job.result.poster),
            "timings": job.result.timings,
            "report": job.result.report,
            "ran_on": job.result.ran_on,
            "warnings": list(job.result.warnings),
        }
    return data
