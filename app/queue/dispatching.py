"""What a queue's owner wants of whoever takes its jobs (one dispatcher with a worker here, or one per machine), and
what is remembered of a clip that was made.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from app.estimate import Measured, engaged_key, forwards_of
from app.job_types import Job, JobResult
from app.queue.service import JobProgress, Preview
from app.request import GenerationRequest
from app.worker.wire import Message


def took(request: GenerationRequest, result: JobResult, said: Message, kept: bool) -> Measured:
    """What a clip took, to reckon with. said: by the worker when it was done. kept: the model was in its memory
    already, so that this clip says nothing of loading.
    """
    size = (int(request.width or 0), int(request.height or 0), int(request.frames or 0))
    within = float(said.get("importing") or 0.0)
    timings = {name: seconds for name, seconds in result.timings.items() if name != "load"}
    if not kept and "load" in result.timings:
        timings["load"] = max(0.0, result.timings["load"] - within)
    timings["import"] = float(said.get("imported") or 0.0)
    engaged, forwards = engaged_key(result.plan), forwards_of(request)
    memory = int(said.get("memory") or 0)
    return Measured(request.model, engaged, *size, int(request.steps or 0), forwards, timings, memory)


class Dispatching(Protocol):
    """See `app.queue.dispatch.Dispatcher`, which is one."""

    batches: set[str] | None
    housekeeping: Callable[[], None]

    def start(self) -> None:
        """Begin to take jobs."""

    def stop(self, now: bool = False, finish: bool = False) -> None:
        """Take no more; running ones are waited for (`finish`), or stopped (at once with `now`) and put back."""

    def wake(self) -> None:
        """The queue has changed."""

    def cancel(self, identity: int, now: bool) -> None:
        """Stop that job if it is running, or is just about to be."""

    def turn(self, wait: Callable[[], None]) -> AbstractContextManager[None]:
        """While entered, this machine's worker makes no clip."""

    @property
    def running(self) -> Job | None:
        """A job that is being made."""

    @property
    def progress(self) -> JobProgress | None:
        """How far it is."""

    @property
    def preview(self) -> Preview | None:
        """Its newest picture."""
