"""Very many clips are queued from the page only once a person has said yes to just so many."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.estimate import Estimate, Times
from app.paths import Home
from app.request import GenerationRequest
from app.ui.context import Context
from app.ui.create import _estimate, _submit
from app.ui.form import values_of
from app.ui.many import MANY
from tests.app.ui.desk import Desk
from tests.app.ui.serving import Served
from tests.app.ui.tab import Tab


class Estimating(Desk):
    """A desk that knows what one clip takes."""

    found = Estimate(6.0, {}, "from 3 clips made here", 0, 0, 0, 0)

    def estimate(self, request: GenerationRequest, folder: Path | None = None) -> Estimate:
        return self.found


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with Estimating(Home(tmp_path)) as desk:
        yield Context(desk, desk.home)


def submit(context: Context, count: int, agreed: int = 0) -> tuple[str, int]:
    """What is said, and how many clips it queued."""
    values = values_of(GenerationRequest(prompt="a ball")) | {"count": count}
    notice, _, jobs = _submit(context, tuple(values.values()), agreed)
    assert len(jobs) == len(context.service.snapshot().waiting)
    return re.sub(r"<[^>]+>", " ", notice).strip(), len(jobs)


def test_many_clips_are_asked_about_with_the_time_they_take(context: Context) -> None:
    said, queued = submit(context, 1_000)
    assert "Nothing was queued yet: 1,000 clips take about 1 h 40 min, from 3 clips made here." in said
    assert said.endswith("Queue 1,000 clips")
    assert queued == 0


@pytest.mark.parametrize("agreed", [-1, 1, 999])
def test_a_yes_to_fewer_is_none_to_more(context: Context, agreed: int) -> None:
    assert submit(context, 1_000, agreed)[1] == 0


def test_a_yes_queues_them(context: Context) -> None:
    assert submit(context, MANY + 1, agreed=MANY + 1) == (f"{MANY + 1} clips are in the queue.", MANY + 1)


def test_a_hundred_clips_are_not_asked_about(context: Context) -> None:
    assert submit(context, MANY)[1] == MANY


def test_where_the_time_is_not_known_it_is_said(context: Context, tmp_path: Path) -> None:
    words = "Nothing was queued yet: the time is not known"
    desk = context.service
    assert isinstance(desk, Estimating)
    desk.found = replace(desk.found, seconds=None, basis=Times().basis)
    assert f"{words}, as no such clip was made here yet." in submit(context, MANY + 1)[0]
    with Desk(Home(tmp_path / "other")) as other:  # it can't tell anything
        assert f"{words}." in submit(Context(other, other.home), MANY + 1)[0]


def test_the_form_and_the_question_word_the_same_time_alike(context: Context) -> None:
    def beside_the_form(count: int) -> str:
        values = values_of(GenerationRequest(prompt="a ball")) | {"count": count}
        return re.sub(r"<[^>]+>", "", _estimate(context, tuple(values.values()))).partition(" · ")[0]

    assert beside_the_form(1) == "about 6.0 s, from 3 clips made here"
    for count in (MANY + 1, 1_000):
        assert f"Nothing was queued yet: {beside_the_form(count)}." in submit(context, count)[0]
    desk = context.service
    assert isinstance(desk, Estimating)
    desk.found = replace(desk.found, seconds=None, basis=Times().basis)
    assert f"Nothing was queued yet: {beside_the_form(101)}." in submit(context, MANY + 1)[0]


def test_a_person_is_asked_and_asked_anew_for_another_number(tab: Tab, served: Served) -> None:
    notice: Any = tab.page.locator("#kt-notice")
    tab.fill(Prompt="far too many", Clips=150, Steps=40).generate()
    notice.get_by_role("alert").get_by_text("Nothing was queued yet: ").wait_for()
    tab.fill(Clips=101)
    notice.get_by_role("alert").wait_for(state="detached")
    client = served.client()
    assert client.predict(api_name="/queue")["waiting"] == []
    tab.generate()
    notice.get_by_role("button", name="Queue 101 clips").click()
    try:
        notice.get_by_text(re.compile("(101|100) clips are in the queue.")).wait_for()
    finally:
        now = client.predict(api_name="/queue")
        client.predict([job["id"] for job in now["waiting"]], api_name="/job_remove")
        if now["running"]:
            client.predict(now["running"]["id"], api_name="/job_cancel")
    assert len(now["waiting"]) in (100, 101)
    assert tab.errors == []
