"""Queue and history: through a browser, through the endpoints, and with twenty thousand clips."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from app.errors import UsageError
from app.plain import to_json
from app.queue.jobs import JobResult
from app.ui.context import Context
from app.ui.queue import _Tab
from app.ui.queue_view import PAGE, View
from tests.app.ui.desk import Desk, spec
from tests.app.ui.serving import Served
from tests.app.ui.tab import PATIENCE, Tab

SMALL = {"model": "starter", "width": 64, "height": 64, "frames": 5, "steps": 2}
MANY = 20_000


@pytest.fixture
def events(desk: Desk) -> _Tab:
    return _Tab(Context(desk, desk.home))


def pressed(**data: object) -> Any:
    """What the browser sends for a pressed button."""
    return gr.EventData(None, {name: str(value) for name, value in data.items()})


def submit(desk: Desk, count: int) -> list[int]:
    return [job.id for job in desk.submit([spec(f"clip {n}", desk.home.outputs, n) for n in range(count)])]


def fill(desk: Desk, count: int) -> None:
    """Done jobs, straight into the database: submitting and finishing each would take minutes."""
    one = spec("a red ball rolls", desk.home.outputs)
    result = to_json(JobResult(desk.home.outputs / "x.mp4", desk.home.outputs / "x.png", {}, {}, {}))
    base = desk.queue._base
    base.executemany(
        "INSERT INTO jobs (uid, state, place, batch, key, words, spec, result, submitted, ended, turn) "
        "VALUES (?, 'done', ?, '', '', ?, ?, ?, ?, ?, ?)",
        [(f"u{n}", n, f"a red ball rolls {n}", to_json(one), result, n, n, n) for n in range(count)],
    )
    base.commit()


def test_twenty_thousand_clips_are_never_sent_at_once(desk: Desk, events: _Tab) -> None:
    """Row 42, seen too (stable-diffusion-webui issue 2650): one page of them, whatever there is."""
    fill(desk, MANY)
    began = time.perf_counter()
    view, _, history, _ = events.refresh(View())
    print(f"one page of {MANY}: {time.perf_counter() - began:.3f} s, {len(history) / 1024:.0f} KiB")
    assert history.count('data-do="open"') == PAGE
    assert f"1 to {PAGE} of {MANY:,} clips" in history
    assert len(history) < 100 * 1024
    view, _, history, *_ = events.act(view, pressed(do="page", to=MANY - 4))
    assert history.count('data-do="open"') == 4
    view, _, history, _ = events.searched(view, "BALL 19999", "All")
    assert (view.offset, history.count('data-do="open"')) == (0, 1)


def test_what_looks_as_before_is_not_sent_again(desk: Desk, events: _Tab) -> None:
    submit(desk, 2)
    view, queue, _, _ = events.refresh(View())
    assert "clip 0" in queue
    view, *again = events.refresh(view)
    assert again == [gr.skip()] * 3
    desk.submit([spec("new", desk.home.outputs)])
    assert "new" in events.refresh(view)[1]


def test_the_order_is_what_the_buttons_say(desk: Desk, events: _Tab) -> None:
    one, two, three = submit(desk, 3)
    events.act(View(), pressed(do="down", job=one, place=0))
    assert [job.id for job in desk.snapshot().waiting] == [two, one, three]
    events.act(View(), pressed(do="first", job=three, place=2))
    assert [job.id for job in desk.snapshot().waiting] == [three, two, one]
    events.act(View(), pressed(do="up", job=one, place=2))
    assert [job.id for job in desk.snapshot().waiting] == [three, one, two]
    events.act(View(), pressed(do="hold_all"))
    assert all(job.held for job in desk.snapshot().waiting)
    events.act(View(), pressed(do="release", job=one))
    assert [job.held for job in desk.snapshot().waiting] == [True, False, True]


def test_removing_all_and_undoing_it(desk: Desk, events: _Tab) -> None:
    ids = submit(desk, 3)
    *_, notice = events.act(View(), pressed(do="remove_all"))
    assert desk.snapshot().waiting == ()
    assert "3 jobs removed" in notice
    token = notice.split('data-token="')[1].split('"')[0]
    *_, notice = events.undo(View(), pressed(do="undo", token=token))
    assert [job.id for job in desk.snapshot().waiting] == ids
    assert "3 jobs are back" in notice


def test_removing_a_clip_says_when_its_files_go(desk: Desk, events: _Tab) -> None:
    made, waiting = submit(desk, 2)
    desk.queue.take()
    desk.queue.finish(made, JobResult(Path("x.mp4"), Path("x.png"), {}, {}, {}))
    *_, notice = events.act(View(), pressed(do="remove", job=waiting))
    assert "files" not in notice
    *_, notice = events.act(View(), pressed(do="remove", job=made))
    assert "Its files go after 10 minutes." in notice


@pytest.mark.parametrize(
    "data", [{}, {"do": "format disk"}, {"do": "up", "job": "x" * 1000}, {"do": "retry", "job": 99}]
)
def test_what_no_button_says_is_refused(events: _Tab, data: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        events.act(View(), pressed(**data))


def test_the_same_through_the_endpoints(served: Served) -> None:
    client = served.client()
    running = client.predict({**SMALL, "prompt": "holds the queue", "steps": 400}, api_name="/generate")
    first, second = (
        client.predict({**SMALL, "prompt": f"endpoint {n}"}, api_name="/generate")[0]["id"] for n in range(2)
    )
    client.predict(second, 0, api_name="/job_move")
    waiting = client.predict(api_name="/queue")["waiting"]
    assert [job["id"] for job in waiting][:2] == [second, first]
    removed = client.predict([first], api_name="/job_remove")
    assert first not in [job["id"] for job in client.predict(api_name="/queue")["waiting"]]
    assert [job["id"] for job in client.predict(removed["token"], api_name="/job_undo")] == [first]
    twin = client.predict(first, True, api_name="/job_duplicate")
    assert twin["request"]["seed"] != client.predict(first, api_name="/job")["request"]["seed"]
    client.predict([first, twin["id"]], api_name="/job_remove")
    client.predict(second, api_name="/job_cancel")
    client.predict(running[0]["id"], api_name="/job_cancel")
    ended(client, running[0]["id"], "cancelled")
    again = client.predict(second, api_name="/job_retry")
    ended(client, again["id"], "done")
    settings = client.predict(again["id"], api_name="/job_settings")
    assert (settings["prompt"], settings["steps"], settings["seed"]) == ("endpoint 1", 2, again["request"]["seed"])


def ended(client: Any, job: int, state: str) -> None:
    deadline = time.monotonic() + PATIENCE / 1000
    while (found := client.predict(job, api_name="/job"))["ended"] is None:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    assert found["state"] == state, found


def make(served: Served, prompt: str, **values: object) -> dict[str, Any]:
    """A finished clip."""
    client = served.client()
    job: dict[str, Any] = client.predict({**SMALL, "prompt": prompt, **values}, api_name="/generate")[0]
    ended(client, job["id"], "done")
    return job


def card(tab: Tab, words: str) -> Any:
    return tab.page.locator("#kt-history .kt-card", has_text=words)


def test_a_clip_of_the_history_plays_and_gives_its_settings_back(tab: Tab, served: Served) -> None:
    job = make(served, "history plays this", steps=3, seed=2**53 - 1)
    tab.show("Queue and history")
    card(tab, "history plays this").click()
    video = tab.page.locator("#kt-clip video")
    video.evaluate("video => video.play()")
    tab.page.wait_for_function("document.querySelector('#kt-clip video').currentTime > 0.1")
    assert f"job {job['id']}" not in tab.page.locator("#kt-clip").inner_text()
    tab.page.get_by_role("button", name="Use these settings").click()
    tab.page.wait_for_function("document.querySelector('.kt-request').offsetParent !== null")
    tab.expect_value("Prompt", "history plays this")
    tab.page.locator("#kt-source").get_by_text("Taken over: settings of “history plays this”, made ").wait_for()
    tab.expect_value("Steps", "3")
    tab.expect_value("Seed number", str(2**53 - 1))
    assert tab.errors == []


def test_deleting_a_clip_can_be_undone_with_the_keyboard(tab: Tab, served: Served) -> None:
    make(served, "delete and bring back")
    tab.show("Queue and history")
    card(tab, "delete and bring back").click()
    tab.page.get_by_role("button", name="Delete this clip and its files").press("Enter")
    card(tab, "delete and bring back").wait_for(state="detached")
    tab.page.locator("#kt-clip article").wait_for(state="detached")
    tab.page.locator("#kt-queue-notice button").wait_for()
    tab.page.keyboard.press("Control+z")
    card(tab, "delete and bring back").wait_for()
    tab.page.locator("#kt-clip article").wait_for()
    assert (served.outputs / Path(card(tab, "delete and bring back").locator("img").get_attribute("src")).name).exists()


def test_searching_finds_every_word_in_any_case(tab: Tab, served: Served) -> None:
    make(served, "a Blue whale dives deep")
    make(served, "a blue bird")
    tab.show("Queue and history")
    tab.page.get_by_label("Search prompts").fill("WHALE blue")
    card(tab, "a blue bird").wait_for(state="detached")
    assert card(tab, "whale dives").count() == 1
    tab.page.get_by_label("Search prompts").fill("whale bird")
    tab.page.get_by_text("No clip has").wait_for()


def test_the_queue_is_the_same_in_every_browser(new_tab: Callable[..., Tab], served: Served) -> None:
    client = served.client()
    long = client.predict({**SMALL, "prompt": "long one", "steps": 600}, api_name="/generate")[0]["id"]
    ids = [client.predict({**SMALL, "prompt": f"queued {n}"}, api_name="/generate")[0]["id"] for n in range(3)]
    one, other = new_tab().open().show("Queue and history"), new_tab().open().show("Queue and history")

    def order(tab: Tab) -> list[str]:
        rows: list[str] = tab.page.locator("#kt-queue .kt-list .kt-name").all_inner_texts()
        return rows

    one.page.get_by_role("button", name=f"Move job {ids[2]} to the front").click()
    for tab in (one, other):
        tab.page.wait_for_function(
            "document.querySelector('#kt-queue .kt-list .kt-name')?.textContent === 'queued 2'", timeout=PATIENCE
        )
    assert order(one) == order(other) == ["queued 2", "queued 0", "queued 1"]
    down = one.page.get_by_role("button", name=f"Move job {ids[2]} down")
    down.focus()
    down.press("Enter")
    one.page.wait_for_function("document.querySelector('#kt-queue .kt-list .kt-name').textContent === 'queued 0'")
    one.page.wait_for_function(
        f"document.activeElement.dataset.job === '{ids[2]}' && document.activeElement.dataset.do === 'down'"
    )
    other.page.wait_for_function("document.querySelector('#kt-queue .kt-bar').getAttribute('aria-valuenow') > 1")
    other.page.get_by_role("button", name="Remove all waiting jobs").click()
    one.page.locator("#kt-queue .kt-list").wait_for(state="detached")
    other.page.get_by_role("button", name=f"Cancel job {long}").click()
    one.page.get_by_text("Nothing is waiting").wait_for(timeout=PATIENCE)
    one.open().show("Queue and history")
    card(one, "long one").get_by_text("cancelled").first.wait_for()
    ended(client, long, "cancelled")


def test_holding_and_queueing_once_more_by_clicking(tab: Tab, served: Served) -> None:
    client = served.client()
    long = client.predict({**SMALL, "prompt": "keeps it busy", "steps": 600}, api_name="/generate")[0]["id"]
    job = client.predict({**SMALL, "prompt": "to be held"}, api_name="/generate")[0]["id"]
    tab.show("Queue and history")
    tab.page.get_by_role("button", name=f"Hold job {job}").click()
    tab.page.get_by_role("button", name=f"Release job {job}").wait_for()
    assert [one["held"] for one in client.predict(api_name="/queue")["waiting"]] == [True]
    tab.page.get_by_role("button", name=f"Queue job {job} once more").click()
    tab.page.wait_for_function("document.querySelectorAll('#kt-queue .kt-list .kt-name').length === 2")
    twin = next(one for one in client.predict(api_name="/queue")["waiting"] if one["id"] != job)
    assert twin["request"]["prompt"] == "to be held"
    tab.page.get_by_role("button", name=f"Release job {job}").click()
    tab.page.get_by_role("button", name=f"Hold job {job}").wait_for()
    client.predict(long, api_name="/job_cancel")
    ended(client, job, "done")
    ended(client, twin["id"], "done")
    assert tab.errors == []
