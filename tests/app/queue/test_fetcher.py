"""Fetches asked of the queue's owner: one at a time, told about, stopped, ended with the owner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.errors import Cancelled, CannotRunError, UsageError
from app.fetching import Fetching
from app.models.sources.cache import in_cache
from app.models.sources.fetching import FetchProgress
from app.paths import Home
from app.queue.fetcher import Fetcher
from app.queue.handing_over import RemoteService
from app.queue.service import open_service
from tests.app.models.sources.conftest import cache, hub  # noqa: F401
from tests.app.models.sources.fake_hub import Hub, model
from tests.app.services import until


class Slow:
    """A fetch that goes on until it is told to end, or how."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.error: Exception | None = None
        self.changes: list[Fetching] = []
        self.fetcher = Fetcher(lambda: self.changes.append(self.fetcher.state), self.look_up)

    def look_up(self, model: str) -> tuple[str, Any]:
        if model == "wonder":
            raise UsageError("model: wonder is not known.")
        return model.title(), self.bring

    def bring(self, tell: Callable[[FetchProgress], None], stop: Callable[[], bool]) -> Path:
        tell(FetchProgress("downloading", 1, 4))
        while not self.end.wait(0.01):
            if stop():
                raise Cancelled("Stopped; what came is kept.")
        if self.error is not None:
            raise self.error
        return Path("here")


def test_one_at_a_time_with_how_far_it_is() -> None:
    slow = Slow()
    assert slow.fetcher.state == Fetching()
    assert slow.fetcher.start("wan") == 1
    until(lambda: slow.fetcher.state.progress.done)
    assert slow.fetcher.state == Fetching(1, "wan", "Wan", "running", FetchProgress("downloading", 1, 4))
    with pytest.raises(UsageError, match="Wan is being fetched: wait for it, or stop it first"):
        slow.fetcher.start("ltx")
    slow.end.set()
    until(lambda: slow.fetcher.state.is_over)
    assert slow.fetcher.state.state == "done"
    assert slow.fetcher.start("ltx") == 2
    slow.fetcher.close()
    assert [one.state for one in slow.changes] == ["running", "done", "running", "done"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CannotRunError("The disk is full."), "The disk is full."),
        (ValueError("odd"), "for a reason nobody foresaw (odd)"),
    ],
)
def test_a_failure_is_told(error: Exception, said: str) -> None:
    slow = Slow()
    slow.error = error
    slow.end.set()
    slow.fetcher.start("wan")
    until(lambda: slow.fetcher.state.is_over)
    assert slow.fetcher.state.state == "failed"
    assert said in slow.fetcher.state.error


def test_an_unknown_model_is_refused_at_once() -> None:
    slow = Slow()
    with pytest.raises(UsageError, match="wonder"):
        slow.fetcher.start("wonder")
    assert slow.fetcher.state.is_over


def test_a_stop_and_the_end_of_the_owner_both_end_it() -> None:
    slow = Slow()
    slow.fetcher.start("wan")
    slow.fetcher.stop()
    until(lambda: slow.fetcher.state.is_over)
    assert (slow.fetcher.state.state, slow.fetcher.state.error) == ("stopped", "Stopped; what came is kept.")
    slow.fetcher.start("wan")
    slow.fetcher.close()
    assert slow.fetcher.state.state == "stopped"


def test_how_a_fetch_ended_is_told_until_somebody_has_read_it() -> None:
    slow = Slow()
    slow.error = CannotRunError("The disk is full.")
    slow.fetcher.start("wan")
    slow.fetcher.forget()
    assert slow.fetcher.state.state == "running"  # that is another matter
    slow.end.set()
    until(lambda: slow.fetcher.state.is_over)
    slow.fetcher.forget()
    slow.fetcher.forget()
    assert slow.fetcher.state == Fetching(1)
    assert [one.state for one in slow.changes] == ["running", "failed", "none"]


def test_another_process_asks_the_owner(home: Home, hub: Hub, cache: Path) -> None:  # noqa: F811
    hub.files, hub.delay = model(2_000_000), 0.005
    with open_service(home) as owner:
        client = RemoteService(home)
        with pytest.raises(UsageError, match="wonder"):
            client.fetch("wonder")
        number = client.fetch(f"hf:{hub.repo}")
        until(lambda: client.fetching().progress.done)
        assert client.fetching().title == hub.repo
        client.stop_fetching()
        until(lambda: client.fetching().is_over)
        assert owner.fetching().state == "stopped"
        client.forget_fetch()
        assert owner.fetching() == Fetching(number)
        assert not in_cache(hub.repo, cache).is_whole
        hub.delay = 0.0
        assert owner.fetch(f"hf:{hub.repo}") == number + 1
        until(lambda: client.fetching().is_over)
        assert client.fetching().state == "done", client.fetching().error
        assert in_cache(hub.repo, cache).is_whole
