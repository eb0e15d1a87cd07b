"""Models: what is here is told, the rest is fetched by a button, watched, stopped; in a browser, with a small hub."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app import catalogue
from app.errors import CannotRunError, UsageError
from app.fetching import Fetching
from app.models import all_families
from app.models.sources.fetching import FetchProgress
from app.models.starter import STARTER
from app.request import GenerationRequest
from app.ui.context import Context
from app.ui.form import FIXED, NAMES, FormFields, values_of
from app.ui.models import _Tab, written
from app.ui.models_view import list_html, panel_html
from tests.app.models.sources.conftest import cache, hub  # noqa: F401
from tests.app.models.sources.fake_hub import Hub
from tests.app.services import until
from tests.app.ui.desk import Desk
from tests.app.ui.hub_page import serving_with_hub
from tests.app.ui.serving import Served
from tests.app.ui.tab import PATIENCE, Tab
from tests.app.ui.test_create_endpoints import ended
from tests.app.ui.test_queue_view import Reader

RUNNING = Fetching(2, "wan", "<Wan>", "running", FetchProgress("downloading", 2**30, 2**32, 2.0**23, 384.0))


# -- markup --


def test_how_a_fetch_stands_is_told_and_escaped() -> None:
    running = Reader(panel_html(RUNNING)).text
    assert "<Wan>" in running
    assert "25%, 1.0 GiB of 4.0 GiB, 8 MiB/s, about 6:24 min left" in running
    assert "Stop" in running
    assert "<Wan> is on this machine now." in Reader(panel_html(replace(RUNNING, state="done"))).text
    failed = Reader(panel_html(replace(RUNNING, state="failed", error="<The disk is full.>"))).text
    assert failed.startswith("<Wan> was not fetched: <The disk is full.>")
    assert panel_html(Fetching()) == ""


def test_each_model_offers_what_can_be_done_with_it() -> None:
    here = catalogue.listed(STARTER)
    away = replace(here, name="a", title="<A>", state="not here", repo="x/a", download=2**31, source="unverified")
    partly = replace(
        away, name="p", title="P", state="partly", fetched=2**30, remedy="P is not whole (vae/x is missing)"
    )
    page = Reader(list_html([here, away, partly], Fetching())).text
    for says in (
        "on this machine", "Use in Create", "<A>", "about 2.0 GiB to fetch", "x/a", "not on this machine", "Fetch",
        "partly on this machine, 1.0 GiB of 2.0 GiB", "Fetch the rest", "P is not whole (vae/x is missing)",
    ):  # fmt: skip
        assert says in page
    busy = list_html([away], RUNNING)
    assert 'aria-disabled="true"' in busy


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (" hf:a/b ", "hf:a/b"),
        ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "hf:Wan-AI/Wan2.1-T2V-1.3B-Diffusers"),
        ("https://huggingface.co/a/b/tree/main", "hf:a/b"),
        ("https://huggingface.co/a/b", "hf:a/b"),
        ("starter", "starter"),
        ("/models/a", "/models/a"),
        ("", ""),
    ],
)
def test_what_is_typed_is_read_as_people_write_it(typed: str, meant: str) -> None:
    assert written(typed) == meant


# -- behind it --


def test_a_model_that_is_not_here_is_refused_before_it_is_queued(desk: Desk) -> None:
    away = next(family for family in all_families() if family.repos)
    with pytest.raises(CannotRunError, match=f"--fetch {away.name}"):
        Context(desk, desk.home).specs(GenerationRequest(model=away.name, prompt="a ball"))
    assert desk.snapshot().waiting == ()


def test_a_mistake_in_the_form_does_not_keep_a_model_from_it(desk: Desk) -> None:
    context = Context(desk, desk.home, form=FormFields(dict.fromkeys(NAMES)))
    values = values_of(GenerationRequest(prompt="a ball", count=3)) | {"frames": 0, "seed_mode": FIXED, "seed": "x"}
    filled = dict(zip(NAMES, _Tab(context).use("starter", *values.values()), strict=False))
    assert (filled["prompt"]["value"], filled["count"]["value"], filled["frames"]["value"]) == ("a ball", 3, 25)


def test_why_a_row_did_nothing_is_told_in_that_row(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: str) -> int:
        raise UsageError("Another one <is> being fetched.")

    monkeypatch.setattr(desk, "fetch", refuse)
    away = next(family for family in all_families() if family.repos)
    tab = _Tab(Context(desk, desk.home))
    rows = tab.act_in_list(pressed(do="fetch", name=away.name))[-1]
    (row,) = (row for row in rows.split("<li ") if "&lt;is&gt; being fetched" in row)
    assert f'data-name="{away.name}"' in row
    assert "being fetched" not in tab.show()[-1]


@pytest.mark.parametrize("typed", ["hf:some/unknown", "https://huggingface.co/some/unknown"])
def test_a_repository_that_is_not_here_is_sent_to_the_button_beside_it(desk: Desk, typed: str) -> None:
    with pytest.raises(UsageError, match="hf:some/unknown is not on this machine, or not all of it: press Fetch"):
        _Tab(Context(desk, desk.home)).use(typed)
    with pytest.raises(UsageError, match="is no repository"):
        _Tab(Context(desk, desk.home)).use("hf:nonsense")


def test_the_list_changes_with_the_fetch_only(desk: Desk) -> None:
    tab = _Tab(Context(desk, desk.home))
    seen = tab.show()[0]
    assert all(update.get("__type__") == "update" for update in tab.refresh(seen))
    desk.fetch("wan2.1-t2v-1.3b")
    assert "wan2.1-t2v-1.3b" in tab.refresh(seen)[1]
    assert tab.progress()["over"] is False
    tab.act(pressed(do="stop"))
    assert tab.progress()["over"] is True


def pressed(**data: str) -> Any:
    """The event of a button that carries these data."""
    return SimpleNamespace(_data=data)


def test_how_a_fetch_ended_is_told_once_until_the_next_action(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the row of a model of the list, else in the panel; dismissed, or gone with whatever is done next, also where
    that is refused.
    """

    def refuse(model: str) -> int:
        raise UsageError(f"{model} is no model.")

    monkeypatch.setattr(desk, "fetch", refuse)
    tab = _Tab(Context(desk, desk.home))
    away = next(family for family in all_families() if family.repos)
    ended = {
        "listed": Fetching(1, away.name, away.title, "failed", error="The network is away."),
        "typed": Fetching(1, "hf:a/b", "a/b", "failed", error="The network is away."),
    }
    acts: tuple[Callable[[], Any], ...] = (
        lambda: tab.act(pressed(do="dismiss")),
        lambda: tab.act(pressed(do="fetch", name=away.name)),
        lambda: tab.fetch_typed("hf:a/b"),
        lambda: tab.use("hf:nonsense"),
    )
    for where, state in ended.items():
        desk.fetched = state
        _, panel, rows = tab.show()
        said = f"{state.title} was not fetched: The network is away."
        assert (said in Reader(panel).text, said in Reader(rows).text) == (where == "typed", where == "listed")
        for act in acts:
            desk.fetched = state
            with contextlib.suppress(UsageError):
                act()
            assert all("The network is away." not in part for part in tab.show()[1:])
    desk.fetched = RUNNING
    tab.act(pressed(do="dismiss"))
    assert desk.fetched == RUNNING


# -- a page of its own --


@pytest.fixture
def served(hub: Hub, tmp_path: Path) -> Iterator[Served]:  # noqa: F811
    with serving_with_hub(hub, tmp_path) as made:
        yield made


def test_a_program_fetches_a_model_and_makes_a_clip_of_it(served: Served, hub: Hub) -> None:  # noqa: F811
    client = served.client()
    with pytest.raises(Exception, match="is no repository"):
        client.predict("hf:nonsense", api_name="/fetch")
    wanted = {"model": f"hf:{hub.repo}", "prompt": "a ball", "width": 64, "height": 32, "frames": 5, "steps": 1}
    with pytest.raises(Exception, match=f"--fetch hf:{hub.repo}"):
        client.predict(wanted, api_name="/generate")
    assert client.predict(hub.repo, api_name="/fetch") == 1
    state = until(lambda: now if (now := client.predict(api_name="/fetching"))["state"] != "running" else None)
    assert (state["state"], state["error"]) == ("done", "")
    assert state["progress"]["done"] == state["progress"]["total"] > 0
    (job,) = client.predict(wanted, api_name="/generate")
    assert ended(client, job["id"])["state"] == "done"
    (first, *_) = client.predict(api_name="/models")
    assert (first["name"], first["here"], first["state"]) == ("starter", True, "here")


@pytest.fixture
def page(served: Served, chromium: Any) -> Iterator[Tab]:
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    yield Tab(context.new_page(), served.url).open()
    context.close()


def test_a_repository_is_fetched_stopped_fetched_on_and_used(page: Tab, hub: Hub) -> None:  # noqa: F811
    hub.delay, hub.piece = 0.2, 3_000
    page.show("Models")
    page.page.locator("#kt-models").get_by_text("Starter", exact=True).wait_for()
    page.page.locator("#kt-other-model textarea, #kt-other-model input").fill(hub.repo)
    page.page.locator("#kt-fetch-model").click()
    bar = page.page.locator("#kt-fetch").get_by_role("progressbar")
    bar.wait_for(timeout=PATIENCE)
    page.page.wait_for_function(
        "() => Number(document.querySelector('#kt-fetch [role=progressbar]')?.getAttribute('aria-valuenow')) > 0",
        timeout=PATIENCE,
    )
    page.page.locator("#kt-fetch").get_by_role("button", name="Stop").click()
    page.page.locator("#kt-fetch").get_by_text("is kept, and the next fetch goes on there").wait_for(timeout=PATIENCE)

    hub.delay = 0.0
    page.page.locator("#kt-fetch-model").click()
    page.page.locator("#kt-fetch").get_by_text("is on this machine now").wait_for(timeout=PATIENCE)
    page.page.locator("#kt-use-model").click()
    page.page.wait_for_function(
        f"() => document.querySelector('.kt-request input')?.value === {json.dumps('hf:' + hub.repo)}", timeout=PATIENCE
    )
    page.fill(Prompt="a ball", Width=64, Height=32, Frames=5, Steps=1)
    page.page.locator("#kt-generate").click()
    page.page.locator("#kt-stage video").first.wait_for(timeout=PATIENCE)
    assert page.errors == []
    outside = [url for url in page.requests if not url.startswith((page.url, "data:", "blob:"))]
    assert outside == []


@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
def test_what_became_of_a_fetch_is_in_sight_of_its_button(
    served: Served,
    hub: Hub,  # noqa: F811
    chromium: Any,
    size: tuple[int, int],
) -> None:
    hub.files = {}
    context = chromium.new_context(viewport=dict(zip(("width", "height"), size, strict=True)))
    page = Tab(context.new_page(), served.url).open()
    page.show("Models")
    assert in_sight(page, "#kt-other-model")
    assert in_sight(page, "#kt-fetch-model")
    last = page.page.locator("#kt-models").get_by_role("button", name="Fetch:").last
    last.click(timeout=PATIENCE)
    ended = page.page.locator("#kt-models li:last-child .kt-ended")
    ended.get_by_text(" was not fetched: ").wait_for(timeout=PATIENCE)
    assert in_sight(page, "#kt-models li:last-child .kt-ended")
    assert in_sight(page, "#kt-models li:last-child button[data-do=fetch]")
    assert not page.page.locator("#kt-fetch").inner_text().strip()
    page.open().show("Models")
    ended.get_by_role("button", name="Dismiss").click(timeout=PATIENCE)
    ended.wait_for(state="detached")
    context.close()


def test_a_failure_of_what_was_typed_covers_no_row_and_goes_with_the_next_action(page: Tab, hub: Hub) -> None:  # noqa: F811
    hub.files = {}
    page.show("Models")
    other = page.page.locator("#kt-other-model textarea, #kt-other-model input")
    other.fill(hub.repo)
    page.page.locator("#kt-fetch-model").click()
    said = page.page.locator("#kt-fetch .kt-ended")
    said.get_by_text(f"{hub.repo} was not fetched: ").wait_for(timeout=PATIENCE)
    page.page.locator("#kt-models li:last-child").scroll_into_view_if_needed()
    box = said.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 0, "it stays over the rows"
    other.fill("hf:nonsense")
    page.page.locator("#kt-use-model").click()
    told = page.page.locator("#tab-models .kt-line-place .kt-problem")
    told.get_by_text("is no repository").wait_for()
    said.wait_for(state="detached")
    assert 0 <= told.bounding_box()["y"] - other.bounding_box()["y"] < 60
    for button in ("#kt-fetch-model", "#kt-use-model"):
        other.fill("")
        page.page.locator(button).click()
        told.get_by_text("Nothing is written there yet").wait_for()
        other.fill("hf:nonsense")
        page.page.locator(button).click()
        told.get_by_text("is no repository").wait_for()
    assert page.page.locator(".toast-body").count() == 0


def in_sight(page: Tab, selector: str) -> bool:
    """Whether an element lies inside the window, as it is scrolled."""
    box, window = page.page.locator(selector).bounding_box(), page.page.viewport_size
    assert box is not None
    assert window is not None
    across = box["x"] >= 0 and box["x"] + box["width"] <= window["width"]
    return bool(across and box["height"] > 0 and box["y"] >= 0 and box["y"] + box["height"] <= window["height"])
