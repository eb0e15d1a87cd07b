"""What is wrong in the Create form is told at once, each sentence under its field, and the fields are marked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.models import family_for
from app.paths import Home
from app.request import MAX_SEED, GenerationRequest
from app.ui.context import Context
from app.ui.create import _estimate, _still, _submit
from app.ui.form import FIXED, NAMES, values_of
from app.ui.mistakes import TITLES, as_value, before_queueing, look, sentence
from tests.app.ui.desk import Desk
from tests.app.ui.tab import Tab

SMALL = {"Width": 64, "Height": 64, "Frames": 5, "Steps": 2}
NewTab = Callable[..., Tab]


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with Desk(Home(tmp_path)) as desk:
        yield Context(desk, desk.home)


def form(family: str = "starter", **changes: Any) -> list[Any]:
    return list((values_of(GenerationRequest(model=family, prompt="a ball")) | changes).values())


def test_every_field_has_a_title() -> None:
    assert {*NAMES, "seed"} - {"seed_mode"} == set(TITLES)


def test_all_mistakes_are_told_at_once_as_the_request_says_them(context: Context) -> None:
    wrong: dict[str, Any] = {
        "frames": 12.5,
        "steps": 0,
        "guidance": -3,
        "count": 5000,
        "gpus": 99,
        "seed_mode": FIXED,
        "seed": "x",
    }
    made, found = look(context, form(**wrong))
    assert made is None or found
    assert found == {
        "frames": "12.5 is not possible; it must be a whole number from 1 to 10,000.",
        "steps": "0 is not possible; it must be a whole number from 1 to 1,000.",
        "guidance": "-3 is not possible; it must be a number from 0 to 100.",
        "seed": f'"x" is not possible; it must be a whole number from 0 to {MAX_SEED:,}.',
        "count": "5000 is not possible; it must be a whole number from 1 to 1,000.",
        "gpus": "99 is not possible; it must be a whole number from 1 to 64.",
    }


def test_what_the_model_lacks_is_told_with_what_is_mistyped(context: Context) -> None:
    values = form("wan2.1-flf2v-14b-720p", frames=0, scheduler="wild")
    found = look(context, values)[1]
    assert list(found) == ["scheduler", "image", "last_image", "frames"]
    wrong = before_queueing(context, values)
    assert wrong["model"] == "press Fetch, or choose another model.", "that it is not here stands beside Fetch"
    assert sentence({"model": wrong["model"]}) == "Nothing was queued; look at Model."


def test_a_model_that_is_not_here_is_told_at_the_model_and_not_by_the_estimate(context: Context) -> None:
    assert _estimate(context, tuple(form("wan2.1-t2v-1.3b"))) == ""
    assert "The desk makes no clips" in _estimate(context, tuple(form()))


def test_an_unknown_model_is_told_where_the_known_ones_stand_and_no_command(context: Context) -> None:
    told = json.loads(as_value(before_queueing(context, form(model="nothing-like-it"))))["fields"]["model"]
    assert "the list of models has all" in told
    assert "--models" not in told


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seed_mode": FIXED, "seed": ""}, "seed"),
        ({"seed_mode": FIXED, "seed": str(MAX_SEED), "count": 2}, "seed"),
        ({"model": "wonder"}, "model"),
        ({"image": "gone.png"}, "image"),
        ({"loras": "rubbish"}, "loras"),
        ({"carried": "rubbish"}, "carried"),
    ],
)
def test_each_mistake_belongs_to_its_field(context: Context, changes: dict[str, Any], field: str) -> None:
    assert list(look(context, form(**changes))[1]) == [field]


def test_what_is_wrong_is_not_queued_and_named_beside_the_button(context: Context) -> None:
    notice, value, jobs = _submit(context, tuple(form(frames=0, steps=0, count=0)))
    assert "Nothing was queued; look at Frames, Steps and Clips." in notice
    assert list(json.loads(value)["fields"]) == ["frames", "steps", "count"]
    assert json.loads(value)["asked"] > 0
    assert jobs == ()
    assert context.service.snapshot().waiting == ()
    assert sentence({"": "The disk is full.", "fps": "x"}) == "Nothing was queued; look at FPS. The disk is full."
    assert json.loads(as_value({})) == {"fields": {}, "asked": 0}


def test_how_many_clips_are_in_the_queue_is_told_as_long_as_they_are(context: Context) -> None:
    notice, _, jobs = _submit(context, tuple(form(count=3)))
    assert "3 clips are in the queue." in notice
    assert _still(context, jobs) == notice
    context.service.remove([jobs[0]])
    assert "2 clips are in the queue." in _still(context, jobs)
    context.service.remove(jobs[1:])
    assert not _still(context, jobs)
    context.service.submit(context.specs(GenerationRequest(prompt="another")))
    assert not _still(context, jobs)


def test_a_form_that_is_right_has_no_mistakes(context: Context) -> None:
    made, found = look(context, form())
    assert found == {}
    assert made is not None
    assert made.request.steps == family_for("starter").defaults.steps


# -- in a browser --


def marked(tab: Tab) -> set[str]:
    """The sentences that the marked fields are tied to."""
    told = "nodes => nodes.map((node) => document.getElementById(node.getAttribute('aria-describedby')).textContent)"
    return {text.partition(":")[0] for text in tab.page.locator("[aria-invalid=true]").evaluate_all(told)}


def test_fields_are_marked_and_their_sentences_stand_right_under_them(tab: Tab) -> None:
    tab.fill(Prompt="typed with care", **SMALL).choose_seed("Fixed", "abc")
    tab.fill(Frames="12.5", Guidance="-3", Clips="5000").generate()
    tab.page.get_by_text("Nothing was queued; look at Frames, Guidance, Seed number and Clips.").wait_for()
    assert marked(tab) == {"Frames", "Guidance", "Seed number", "Clips"}
    for name in ("Frames", "Guidance"):
        field = tab.field(name)
        assert field.evaluate("node => getComputedStyle(node).borderColor") != tab.field("Steps").evaluate(
            "node => getComputedStyle(node).borderColor"
        )
        box = field.bounding_box()
        said = tab.page.locator(f"#kt-why-{name.lower()}").bounding_box()
        assert 0 <= said["y"] - box["y"] - box["height"] < 40
    assert tab.field("Frames").evaluate("node => node === document.activeElement")
    tab.expect_value("Prompt", "typed with care")
    tab.fill(Frames=5, Guidance=4, Clips=1).choose_seed("Random")
    tab.page.wait_for_function("() => !document.querySelector('[aria-invalid=true], .kt-wrong, .kt-why p')")
    tab.page.locator("#kt-notice .kt-problem").wait_for(state="detached")


def test_a_mistake_in_what_is_folded_away_is_seen_and_opened(new_tab: NewTab) -> None:
    tab = new_tab()
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.open().page.get_by_role("button", name="More").click()
    tab.field("Shift").fill("0")
    tab.page.locator("#kt-why-shift").wait_for()
    tab.page.get_by_role("button", name="More").click()
    tab.field("Shift").wait_for(state="hidden")
    assert tab.page.locator("#kt-why-shift").is_visible()
    tab.generate()
    tab.page.wait_for_function("() => document.activeElement.closest('#kt-shift')")
    assert marked(tab) == {"Shift"}


def test_what_is_no_model_is_told_at_its_box_and_changes_nothing_else(tab: Tab) -> None:
    tab.fill(Steps=7)
    tab.field("Model").fill("wonder")
    tab.page.keyboard.press("Tab")
    tab.page.locator("#kt-why-model").get_by_text('"wonder" is not known').wait_for()
    assert marked(tab) == {"Model"}
    assert tab.page.locator(".toast-body").count() == 0
    tab.expect_value("Steps", "7")
