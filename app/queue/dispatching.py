"""What a queue's owner wants of whoever takes its jobs: one dispatcher with a worker here, or one per machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from app.job_types import Job
from app.queue.service import JobProgress, Preview


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
