"""What the page is told between two looks: it survives trouble, and names only clips that a browser may have."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.errors import CannotRunError, KinetileError
from app.paths import Home
from app.queue.jobs import JobError, JobResult
from app.queue.service import Event, JobProgress, OwnerGoneError, Subscription
from app.ui import live
from app.ui.context import Context
from app.ui.live import LOOKED_THROUGH, RECENT, Live
from app.ui.queue_view import queue_html
from tests.app.ui.desk import Desk, spec


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(Home(tmp_path / "home")) as made:
        yield made


def finished(desk: Desk, folder: Path) -> tuple[int, Path]:
    """A done job with its clip in `folder`: its id, the clip."""
    (job,) = desk.submit([spec("a red ball", folder)])
    desk.queue.take()
    folder.mkdir(exist_ok=True)
    clip, poster = folder / f"{job.id}.mp4", folder / f"{job.id}.png"
    clip.write_bytes(b"clip")
    poster.write_bytes(b"poster")
    desk.queue.finish(job.id, JobResult(clip, poster, {"stages": []}, {}, {"total": 5.0}))
    return job.id, clip


class News(Subscription):
    """One trouble, then one change of the queue, then nothing."""

    def __init__(self, desk: Desk, trouble: KinetileError) -> None:
        self.told: list[Any] = [trouble, Event("queue")]
        self.over = threading.Event()
        desk.subscribe = lambda: self  # type: ignore[method-assign]

    def get(self, timeout: float | None = None) -> Event | None:
        if not self.told:
            self.over.set()
            return None
        news = self.told.pop(0)
        if isinstance(news, KinetileError):
            raise news
        assert isinstance(news, Event)
        return news

    def close(self) -> None:
        pass


@pytest.mark.parametrize("trouble", [OwnerGoneError("gone"), CannotRunError("late"), KinetileError("a surprise")])
def test_the_listener_goes_on_after_any_trouble(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, trouble: KinetileError
) -> None:
    monkeypatch.setattr(live, "_PATIENCE", 0.01)
    monkeypatch.setattr(Context, "reopen", lambda _: True)
    news, told = News(desk, trouble), Live(Context(desk, desk.home))
    before = told.revision
    told.start()
    try:
        assert news.over.wait(20), "the listener ended with the first trouble"
    finally:
        told.stop()
    assert told.revision != before


def test_trouble_is_a_sentence_for_the_page(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot() -> None:
        raise CannotRunError("The database can't be read.")

    monkeypatch.setattr(desk, "snapshot", snapshot)
    assert Live(Context(desk, desk.home)).poll({}) == {"revision": "", "error": "The database can't be read."}


@pytest.mark.parametrize("state", ["done", "failed", "cancelled", "crashed"])
def test_a_clip_that_ended_runs_no_more_however_it_ended(desk: Desk, state: Any) -> None:
    """Row 42, seen too (Fooocus issue 815): its bar goes, and the page says what became of it."""
    told = Live(Context(desk, desk.home))
    (job,) = desk.submit([spec("a red ball", desk.home.outputs)])
    desk.queue.take()
    desk.progress = JobProgress(job.id, "denoising", 3, 4, 0.7)
    running = told.poll({})["running"]
    assert (running["job"], running["fraction"]) == (job.id, 0.7)
    if state == "done":
        desk.queue.finish(job.id, JobResult(desk.home.outputs / "x.mp4", desk.home.outputs / "x.png", {}, {}, {}))
    else:
        desk.queue.fail(job.id, state, JobError("Because."))
    after = Live(Context(desk, desk.home)).poll({})
    assert after["running"] is None
    assert "preview" not in after
    assert (after["ended"]["job"], after["ended"]["state"]) == (job.id, state)


def test_only_clips_that_the_browser_may_have_are_recent(desk: Desk, tmp_path: Path) -> None:
    inside, _ = finished(desk, desk.home.outputs)
    finished(desk, desk.home.outputs)[1].unlink()
    for _ in range(RECENT):
        finished(desk, tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o777)  # others might put another file there
    assert RECENT + 2 < LOOKED_THROUGH
    told = Live(Context(desk, desk.home)).poll({})
    assert [clip["job"] for clip in told["recent"]] == [inside]
    assert told["total"] == RECENT + 2


@pytest.mark.parametrize(("name", "gpus"), [("sapphire-rapids", 0), ("h200", 1), ("mi300x", 8), ("apple-m3", 0)])
def test_gpus_are_offered_together_where_there_are_several_of_a_kind(desk: Desk, name: str, gpus: int) -> None:
    desk.machine_name = name
    watched = Live(Context(desk, desk.home))
    watched._describe()
    assert watched.machine
    assert watched.poll({})["gpus"] == gpus


def test_a_held_clip_does_not_wait(desk: Desk, tmp_path: Path) -> None:
    desk.submit([spec("held", tmp_path)], held=True)
    told = Live(Context(desk, desk.home)).poll({})
    assert (told["waiting"], told["held"]) == (0, 1)
    desk.submit([spec("next", tmp_path)])
    told = Live(Context(desk, desk.home)).poll({})
    assert (told["waiting"], told["held"]) == (1, 1)
    assert "1 job waiting, 1 held" in queue_html(desk.snapshot())


def test_that_a_clip_went_on_is_no_warning(desk: Desk, tmp_path: Path) -> None:
    (job,) = desk.submit([spec("a ball", tmp_path)])
    desk.queue.take()
    result = JobResult(tmp_path / "a.mp4", tmp_path / "a.png", {"stages": []}, {"resumed": "It went on."}, {})
    desk.queue.finish(job.id, replace(result, warnings=("It went on.", "Something fell back.")))
    told = live.clip_data(desk.get([job.id])[0])
    assert (told["notes"], told["news"]) == (["Something fell back."], ["It went on."])
