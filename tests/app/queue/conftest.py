"""The owner of a queue on the stand-in engine, and the same service as another process has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.paths import Home
from app.queue.handing_over import RemoteService
from app.queue.jobs import JobQueue
from app.queue.owner import LocalService
from app.queue.service import Service, open_service
from tests.app.services import QUICK
from tests.app.standin import StandIn
from tests.app.workers import in_thread


@pytest.fixture
def owner(home: Home) -> Iterator[LocalService]:
    made = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    assert isinstance(made, LocalService)
    yield made
    made.stop(now=True)


@pytest.fixture(params=["owner", "client"])
def service(request: pytest.FixtureRequest, owner: LocalService, home: Home) -> Service:
    """The owner itself, then a client of it."""
    if request.param == "owner":
        return owner
    client = open_service(home)
    assert isinstance(client, RemoteService)
    return client


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JobQueue]:
    made = JobQueue(tmp_path / "jobs.sqlite3")
    yield made
    made.close()
