"""A crowd at the queue's door: nobody is turned away, and nobody's job is lost or doubled."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from app.paths import Home
from app.queue.service import Service
from tests.app.services import spec

CROWD = 120


def test_a_hundred_and_twenty_at_once_are_all_queued(service: Service, home: Home) -> None:
    with ThreadPoolExecutor(CROWD) as pool:
        asked = [pool.submit(service.submit, [spec(home.outputs, seed=number)], held=True) for number in range(CROWD)]
        jobs = [job for one in asked for job in one.result(120)]
    waiting = service.snapshot().waiting
    assert sorted(job.id for job in waiting) == sorted({job.id for job in jobs})
    assert sorted(job.spec.request.seed or 0 for job in waiting) == list(range(CROWD))
    service.cancel([job.id for job in waiting])
    assert service.history(limit=1).total == CROWD
