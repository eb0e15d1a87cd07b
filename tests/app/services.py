"""What the tests of queue and worker share: small requests, services on the stand-in engine, waiting with an end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from app.models import family_for
from app.paths import Home
from app.queue.dispatch import Patience
from app.queue.jobs import Job, JobSpec
from app.queue.owner import LocalService
from app.queue.service import Service
from app.request import GenerationRequest
from app.worker.supervisor import ProcessWorker
from tests.app.standin import COMMAND
from tests.app.workers import in_thread

QUICK = Patience(start=60.0, silence=2.5, idle=2.5, cancel=1.0, beginning=0.5, end=5.0)
"""Patience of a test; a busy machine may be slow to start a process."""


def spec(folder: Path, prompt: str = "a red ball", seed: int = 3, name: str = "ball", **more: Any) -> JobSpec:
    """A small clip; `more` goes into JobSpec where it fits there, else into the request."""
    own = {key: more.pop(key) for key in ("key", "batch", "origin") if key in more}
    asked = GenerationRequest(
        **{"prompt": prompt, "width": 64, "height": 64, "frames": 5, "steps": 2, "seed": seed, **more}
    )
    return JobSpec(name, asked, family_for(asked.model).normalise(asked).request, folder.absolute(), **own)


def service_in_process(home: Home, **options: Any) -> LocalService:
    """The owner with stand-in workers in processes of their own."""
    options = {"patience": QUICK, "launch": lambda where: ProcessWorker(where, COMMAND), **options}
    return LocalService(home, **options)


def service_in_thread(home: Home, make_engine: Callable[[Home], Any], **options: Any) -> LocalService:
    """The owner with workers in threads."""
    return LocalService(home, **{"patience": QUICK, "launch": in_thread(make_engine), **options})


def until(ready: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What `ready` returns once it is something; fails after that long."""
    end = time.monotonic() + seconds
    while not (found := ready()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return found


def ended(service: Service, jobs: Iterable[Job], seconds: float = 60.0) -> tuple[Job, ...]:
    """The jobs once they are over."""
    ids = [job.id for job in jobs]

    def over() -> tuple[Job, ...] | None:
        found = service.get(ids)
        return found if all(job.is_over for job in found) else None

    result: tuple[Job, ...] = until(over, seconds)
    return result
