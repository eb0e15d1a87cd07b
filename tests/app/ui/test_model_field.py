"""Create's model: what is on this machine is seen in the box, and what is not can be fetched right below it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app import catalogue
from app.errors import UsageError
from app.fetching import Fetching
from app.models import family_for
from app.models.sources.fetching import FetchProgress
from app.paths import Home
from app.ui.context import Context
from app.ui.model_field import ModelField, line_html, title_of
from app.ui.models_view import list_html
from tests.app.models.sources.conftest import cache, hub  # noqa: F401
from tests.app.models.sources.fake_hub import Hub
from tests.app.ui.desk import Desk
from tests.app.ui.hub_page import serving_with_hub
from tests.app.ui.serving import Served
from tests.app.ui.tab import PATIENCE, Tab
from tests.app.ui.test_queue_view import Reader

AWAY = "wan2.1-t2v-1.3b"
RUNNING = Fetching(2, AWAY, "Wan 2.1 T2V 1.3B", "running", FetchProgress("downloading", 2**30, 2**32, 2.0**23, 384.0))


@pytest.fixture
def field(tmp_path: Path) -> Iterator[ModelField]:
    with Desk(Home(tmp_path)) as desk:
        yield ModelField(Context(desk, desk.home))


def test_the_list_marks_what_is_not_here_and_begins_with_what_is(
    monkeypatch: pytest.MonkeyPatch, field: ModelField
) -> None:
    choices = field.choices()
    assert choices[0] == ("Starter", "starter")
    assert ("Wan 2.1 T2V 1.3B · not here, 27.0 GiB", AWAY) in choices
    known = catalogue.listed

    def listed(family: Any) -> Any:
        return replace(known(family), state="here") if family.name == "mochi-1" else known(family)

    monkeypatch.setattr(catalogue, "listed", listed)
    assert [name for _, name in field.choices()][:3] == ["starter", "mochi-1", AWAY]
    partly = replace(known(family_for(AWAY)), state="partly")
    assert title_of(partly) == "Wan 2.1 T2V 1.3B · partly here, 27.0 GiB"


def test_the_line_says_what_there_is_to_do() -> None:
    away = Reader(line_html(AWAY, Fetching())).text
    assert "Not on this machine · 27.0 GiB to fetch · Apache-2.0" in away
    assert f'data-do="fetch" data-name="{AWAY}"' in line_html(AWAY, Fetching())
    assert (
        line_html("starter", Fetching()) == line_html("/models/mine", Fetching()) == line_html("hf:x", Fetching()) == ""
    )
    assert "Fetch" in Reader(line_html("hf:some/unknown", Fetching())).text
    running = Reader(line_html(AWAY, RUNNING)).text
    assert "25%, 1.0 GiB of 4.0 GiB" in running
    assert "Stop" in running
    other = line_html("mochi-1", RUNNING)
    assert "Wan 2.1 T2V 1.3B is being fetched" in other
    assert 'aria-disabled="true"' in other
    failed = line_html(AWAY, replace(RUNNING, state="failed", error="<The disk is full.>"))
    assert "was not fetched: <The disk is full.>" in Reader(failed).text


def test_too_little_room_is_said_before_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    row = catalogue.listed(family_for(AWAY))
    assert row.download is not None
    told = {}
    for free in (row.download - 1, row.download):
        monkeypatch.setattr("shutil.disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        told[free] = (Reader(line_html(AWAY, Fetching())).text, Reader(list_html([row], Fetching())).text)
    size = catalogue.download_text(row)
    assert all(f"{size} to fetch; only {size.removeprefix('about ')} free" in text for text in told[row.download - 1])
    assert all(f"{size} to fetch" in text and "free" not in text for text in told[row.download])


def test_the_line_follows_the_fetch_and_tells_what_is_refused(
    field: ModelField, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, box, _ = field.show((0, "none", ()), AWAY)
    assert box["choices"] == list(seen[2])
    assert all(update.get("__type__") == "update" for update in field.refresh(seen, AWAY))
    assert "Stop" in field.act(seen, AWAY, pressed(do="fetch", name=AWAY))[-1]
    assert "Stop" in field.refresh(seen, AWAY)[-1]
    assert "Fetch" in field.act(seen, AWAY, pressed(do="stop"))[-1]

    def refuse(model: str) -> int:
        raise UsageError("Another one <is> being fetched.")

    monkeypatch.setattr(field.context.service, "fetch", refuse)
    told = field.act(seen, AWAY, pressed(do="fetch", name=AWAY))[-1]
    assert '<p class="kt-problem" role="alert">Another one &lt;is&gt; being fetched.</p>' in told


def pressed(**data: str) -> Any:
    """The event of a button that carries these data."""
    return SimpleNamespace(_data=data)


# -- in a browser --


def choose(tab: Tab, typed: str) -> None:
    """Type into the box as a person does, and take the first that is offered."""
    tab.field("Model").click()
    tab.page.keyboard.type(typed)
    tab.page.keyboard.press("Enter")


def test_what_is_typed_takes_the_place_of_what_stands_there(tab: Tab) -> None:
    for typed, chosen in (("wan 2.1 t2v", "Wan 2.1 T2V 1.3B"), ("moc", "Mochi 1"), ("star", "Starter")):
        tab.field("Model").click()
        tab.page.keyboard.type(typed)
        assert tab.field("Model").input_value() == typed
        tab.page.get_by_role("option", name=chosen).first.wait_for()
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_function(
            "(name) => document.querySelector('#kt-model input').value.startsWith(name)", arg=chosen
        )


@pytest.fixture
def served(hub: Hub, tmp_path: Path) -> Iterator[Served]:  # noqa: F811
    with serving_with_hub(hub, tmp_path) as made:
        yield made


def test_a_model_is_fetched_where_it_was_chosen(tab: Tab, hub: Hub) -> None:  # noqa: F811
    hub.delay, hub.piece = 0.1, 3_000
    tab.fill(Prompt="a ball")
    tab.field("Model").fill(f"hf:{hub.repo}")
    tab.page.keyboard.press("Tab")
    line = tab.page.locator("#kt-model-here")
    line.get_by_text("Not on this machine").wait_for(timeout=PATIENCE)
    line.get_by_role("button", name="Fetch").click()
    line.get_by_role("progressbar").wait_for(timeout=PATIENCE)
    line.get_by_role("button", name="Stop").click()
    line.get_by_text("is kept, and the next fetch goes on there").wait_for(timeout=PATIENCE)
    hub.delay = 0.0
    line.get_by_role("button", name="Fetch").click()
    line.get_by_text("is on this machine now").wait_for(timeout=PATIENCE)
    tab.page.locator("#kt-why-model").wait_for(state="detached", timeout=PATIENCE)
    tab.fill(Width=64, Height=32, Frames=5, Steps=1).generate().expect_clip("a ball")
    assert tab.errors == []


def test_generate_without_the_model_says_so_first_and_leads_to_its_button(tab: Tab) -> None:
    choose(tab, "wan 2.1 i2v")
    line = tab.page.locator("#kt-model-here")
    line.get_by_text("Not on this machine · about 83.9 GiB to fetch").wait_for()
    tab.generate()
    tab.page.get_by_text("Nothing was queued; look at Model and First picture.").wait_for()
    assert line.get_by_role("button", name="Fetch").evaluate("node => node === document.activeElement")
    tab.fill(Steps="0")
    tab.page.locator("#kt-why-steps").wait_for()
    assert tab.field("Model").get_attribute("aria-invalid") == "true", "what is typed later hides it"
    choose(tab, "starter")
    tab.page.wait_for_function("() => !document.querySelector('#kt-why-model')")
    line.wait_for(state="hidden")  # it takes no room
