"""Create in a real browser, with the real starter: make, watch, cancel, and lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil
import pytest
from playwright.sync_api import expect

from app.models.base import notes_of
from app.presets import encode_code
from app.request import AccelPreferences, GenerationRequest
from app.video import read_metadata, read_request
from tests.app.services import until
from tests.app.ui.serving import Served
from tests.app.ui.tab import PATIENCE, Tab

SMALL = {"Width": 64, "Height": 64, "Frames": 5, "Steps": 2}
LONG = {"Width": 256, "Height": 160, "Frames": 25, "Steps": 400}
LARGEST_SEED = "9007199254740991"

NewTab = Callable[..., Tab]


def test_a_clip_is_made_and_plays_in_place(tab: Tab, served: Served) -> None:
    """Cases 30 and 34: in a stock browser, and from the outputs folder."""
    tab.fill(Prompt="a red ball rolls", **SMALL).generate().expect_clip("a red ball rolls")
    tab.page.wait_for_function("() => document.querySelector('.ks-video').currentTime > 0.2")
    source = tab.page.evaluate("document.querySelector('.ks-video').currentSrc")
    assert source.startswith(f"{served.url}/gradio_api/file=")
    assert str(served.outputs) in source  # from where it lies, not from a copy
    assert "denoise" in tab.stage("times").inner_text()
    assert "float" in tab.stage("accelerators").inner_text()
    assert tab.errors == []


def test_progress_and_preview_come_while_it_is_made(tab: Tab) -> None:
    tab.fill(Prompt="a green box spins", **(LONG | {"Steps": 30})).generate().expect_running()
    tab.page.wait_for_function("() => document.querySelector('.ks-preview').dataset.number > 1")
    assert tab.stage("picture").get_attribute("data-show") == "preview"
    box = tab.stage("box").bounding_box()
    line = tab.stage("line").bounding_box()
    assert "of 30" in tab.stage("now").inner_text()
    tab.expect_clip("a green box spins")
    assert (tab.stage("box").bounding_box(), tab.stage("line").bounding_box()) == (box, line), "the page jumped"


def test_escape_cancels_the_running_clip_and_keeps_the_form(tab: Tab, served: Served) -> None:
    before = sorted(served.outputs.glob("*.mp4")) if served.outputs.exists() else []
    tab.fill(Prompt="a tree in the snow", **LONG).generate().expect_running()
    tab.page.wait_for_function("() => document.querySelector('.ks-now').textContent.startsWith('denoising')")
    tab.page.locator("body").press("Escape")
    tab.page.wait_for_function("() => !window.kinetile.running()")
    said = tab.stage("trouble").inner_text()
    assert said.startswith("“a tree in the snow” was cancelled; nothing was saved.")
    colours = [tab.stage(name).evaluate("node => getComputedStyle(node).color") for name in ("trouble", "settings")]
    assert colours[0] == colours[1], "a cancel looks like an error"
    shown = tab.stage("title").inner_text()
    assert ("Shown is a clip that was made before." in said) == bool(shown), shown
    tab.expect_value("Prompt", "a tree in the snow")
    assert sorted(served.outputs.glob("*.mp4")) == before
    history = served.client().predict(api_name="/history", limit=1)
    assert history["jobs"][0]["state"] == "cancelled"


def test_after_a_cancel_the_next_clip_is_made_without_a_further_click(tab: Tab, served: Served) -> None:
    """Row 42, seen too (gradio issue 10432): nothing that follows is lost with what was cancelled."""
    tab.fill(Prompt="cancelled in front", **LONG).generate().expect_running()
    tab.page.wait_for_function("() => document.querySelector('.ks-now').textContent.startsWith('denoising')")
    tab.fill(Prompt="made behind it", **SMALL).generate()
    tab.page.wait_for_function("() => document.querySelector('#kt-generate').disabled === false")
    served_by = served.client()
    until(lambda: served_by.predict(api_name="/queue")["waiting"])
    tab.page.locator("body").press("Escape")
    tab.expect_clip("made behind it")
    found = served_by.predict(limit=2, api_name="/history")["jobs"]
    assert [job["state"] for job in found] == ["done", "cancelled"]
    tab.fill(Prompt="and one more", **SMALL).generate().expect_clip("and one more")


def test_a_worker_that_is_killed_ends_the_bar_and_not_the_page(tab: Tab, served: Served) -> None:
    """Rows 42 and 47, seen too (Fooocus issue 815, Wan2GP issue 1253): as the system ends one for want of memory; the
    page says so, stays connected, and makes the next clip.
    """
    tab.fill(Prompt="killed on the way", **LONG).generate().expect_running()
    tab.page.wait_for_function("() => document.querySelector('.ks-now').textContent.startsWith('denoising')")
    for child in psutil.Process(served.process.pid).children(recursive=True):
        if "app.worker.process" in child.cmdline():
            child.kill()
    tab.page.wait_for_function("() => !window.kinetile.running()", timeout=PATIENCE)
    assert "SIGKILL" in tab.stage("trouble").inner_text()
    assert tab.stage("now").inner_text().startswith("Ready.")
    assert tab.stage("bar").get_attribute("aria-valuenow") == "0"
    tab.fill(Prompt="made by another", **SMALL).generate().expect_clip("made by another")
    assert tab.errors == []


def test_ctrl_enter_generates_with_the_last_letter_typed(tab: Tab) -> None:
    tab.fill(**SMALL)
    tab.field("Prompt").click()
    tab.page.keyboard.type("a blue cat")
    tab.page.keyboard.press("Control+Enter")
    tab.expect_clip("a blue cat")


def test_closing_the_tab_during_the_first_of_three_stops_nothing(new_tab: NewTab, served: Served) -> None:
    """Case 39: the queue lives in the program; another browser sees what runs, how far it is, and what was made."""
    tab = new_tab().open()
    tab.fill(Prompt="three clips of rain", Clips=3, **(SMALL | {"Steps": 40})).generate().expect_running()
    tab.page.close()
    later = new_tab().open()
    later.page.wait_for_function("() => document.querySelector('.ks-now').textContent.includes('of 40')")
    later.show("Queue and history")
    later.page.locator("#kt-queue .kt-list", has_text="three clips of rain").wait_for()
    later.show("Create")
    later.page.wait_for_function("() => !window.kinetile.running()", timeout=90_000)
    found = served.client().predict("three clips of rain", api_name="/history")
    assert [job["state"] for job in found["jobs"]] == ["done"] * 3
    later.expect_clip("three clips of rain")


def test_two_tabs_see_the_same_work(new_tab: NewTab) -> None:
    first = new_tab().open()
    second = new_tab(beside=first).open()
    first.fill(Prompt="seen by both", **SMALL).generate()
    first.expect_clip("seen by both")
    second.expect_clip("seen by both")
    second.fill(Prompt="and back again", **SMALL).generate()
    first.expect_clip("and back again")


def test_a_reload_keeps_what_was_typed(tab: Tab) -> None:
    tab.fill(Prompt="kept “over” reload\nand lines", Negative_prompt="fog", Guidance=6.5, **SMALL)
    tab.choose_seed("Fixed", LARGEST_SEED)
    tab.page.wait_for_timeout(300)
    tab.open()
    values = {name: tab.field(name).input_value() for name in ("Prompt", "Negative prompt", "Guidance", "Steps")}
    assert values == {
        "Prompt": "kept “over” reload\nand lines",
        "Negative prompt": "fog",
        "Guidance": "6.5",
        "Steps": "2",
    }
    tab.expect_value("Seed number", LARGEST_SEED)
    assert tab.page.get_by_role("radio", name="Fixed").is_checked()


def test_a_broken_store_does_not_break_the_page(tab: Tab) -> None:
    tab.page.evaluate("localStorage.setItem('kinetile-form', 'rubbish')")
    tab.open().expect_value("Steps", "20")


def test_the_largest_seed_reaches_the_clip_unrounded(tab: Tab, served: Served) -> None:
    """Case 21."""
    tab.fill(Prompt="the largest seed", **SMALL).choose_seed("Fixed", LARGEST_SEED).generate()
    tab.expect_clip("the largest seed")
    (clip,) = served.outputs.glob("the-largest-seed*.mp4")
    assert read_request(clip).seed == int(LARGEST_SEED)
    tab.fill(Prompt="something else", Steps=7).choose_seed("Fixed", "5").choose_seed("Random")
    tab.expect_value("Seed number", "")  # nothing stands there that isn't used
    reuse = tab.page.locator(".kt-seeds label", has_text="Reuse")
    assert reuse.get_attribute("title") == f"Takes the seed of the clip that was shown last: {LARGEST_SEED}"
    tab.page.get_by_role("button", name="Use these settings").click()
    for label, value in {"Seed number": LARGEST_SEED, "Prompt": "the largest seed", "Steps": "2"}.items():
        tab.expect_value(label, value)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_longest_numbers_can_be_read_whole(width: int, new_tab: NewTab) -> None:
    tab = new_tab()
    tab.page.set_viewport_size({"width": width, "height": 900})
    tab.open().choose_seed("Fixed", LARGEST_SEED)
    tab.fill(Width=16384, Height=16384, Frames=10000, FPS="239.76", Steps=1000, Guidance="12.5", Clips=1000)
    fields = ("Seed number", "Width", "Height", "Frames", "FPS", "Steps", "Guidance", "Clips")
    room = "field => [field.scrollWidth, field.clientWidth]"
    cut = {name: sizes for name in fields if (sizes := tab.field(name).evaluate(room))[0] > sizes[1]}
    assert cut == {}


def test_a_clip_without_a_prompt_is_called_so_and_counts_no_tokens(tab: Tab) -> None:
    tab.fill(Prompt="a ball", **SMALL)
    tab.page.locator("#kt-tokens").get_by_text("of 64 tokens").wait_for()
    tab.fill(Prompt="")
    said = tab.page.locator("#kt-tokens")
    said.get_by_text(notes_of(GenerationRequest(prompt=""))[0]).wait_for()
    assert "token" not in said.inner_text()
    tab.generate().expect_clip("No prompt (Starter)")


@pytest.mark.parametrize("seed", ["9007199254740993", "1798406481619217043"])
def test_a_seed_beyond_the_largest_is_refused_not_rounded(tab: Tab, seed: str) -> None:
    """Case 21."""
    tab.fill(Prompt="x", **SMALL).choose_seed("Fixed", seed).generate()
    tab.page.locator("#kt-notice .kt-problem").wait_for()
    assert seed in tab.page.locator("#kt-why-seed").inner_text()


def test_a_long_prompt_of_several_lines_is_counted_and_makes_one_clip(tab: Tab, served: Served) -> None:
    """Case 23: how much is read stands below it while it is typed; the whole of it is stored."""
    prompt = "a blue ball rolls over\nthe wide green hill " * 45 + "and above all flies a red kite"
    tab.fill(Prompt=prompt, **SMALL)
    said = tab.page.locator("#kt-tokens")
    said.get_by_text("The starter reads the prompt no further: 64 of ").wait_for()
    assert "tokens used; the full text is kept." in said.inner_text()
    before = served.client().predict(limit=1, api_name="/history")["total"]
    tab.generate().expect_running()
    tab.page.wait_for_function("() => !window.kinetile.running()", timeout=PATIENCE)
    found = served.client().predict(limit=1, api_name="/history")
    assert found["total"] == before + 1
    assert read_metadata(found["jobs"][0]["output"])["asked"]["prompt"] == prompt


def test_a_seed_that_is_typed_is_meant(tab: Tab) -> None:
    assert tab.page.get_by_role("radio", name="Random").is_checked()
    tab.fill(Seed_number="5")
    expect(tab.page.get_by_role("radio", name="Fixed")).to_be_checked()
    tab.expect_value("Seed number", "5").choose_seed("Random").expect_value("Seed number", "")


def test_the_notice_of_clips_goes_with_them(tab: Tab, served: Served) -> None:
    tab.fill(Prompt="many of them", Clips=3, **LONG).generate()
    notice = tab.page.locator("#kt-notice")
    notice.get_by_text("3 clips are in the queue.").wait_for()
    client = served.client()
    for job in (now := client.predict(api_name="/queue"))["waiting"]:
        client.predict([job["id"]], api_name="/job_remove")
    notice.get_by_text("1 clip is in the queue.").wait_for(timeout=PATIENCE)
    client.predict(now["running"]["id"], api_name="/job_cancel")
    expect(notice).to_be_empty(timeout=PATIENCE)


def test_the_models_rules_act_while_typing(tab: Tab) -> None:
    tab.fill(Prompt="a red ball", Frames=27, Width=250)
    length = tab.page.locator("#kt-length")
    tab.page.wait_for_function("() => document.querySelector('#kt-length').textContent.includes('27 frames become 25')")
    assert "256×160 · 25 frames = 3.1 s at 8 fps" in length.inner_text()
    assert "of 64 tokens" in tab.page.locator("#kt-tokens").inner_text()


def test_aspect_and_quality_choose_the_size(tab: Tab) -> None:
    tab.field("Aspect").click()
    tab.page.get_by_role("option", name="1:1").click()
    tab.page.wait_for_function("() => document.querySelector('#kt-length .kt-hint')?.textContent.startsWith('192×192')")
    tab.fill(Width=320, Height=64)
    tab.page.wait_for_function("() => document.querySelector('[aria-label=Aspect]').value === 'Custom'")


def test_a_recent_clip_comes_back_by_keyboard(tab: Tab, served: Served) -> None:
    for prompt in ("the older clip", "the newer clip"):
        tab.fill(Prompt=prompt, **SMALL).generate().expect_clip(prompt)
    tab.page.get_by_role("button", name="Show the clip: the older clip").press("Enter")
    tab.expect_clip("the older clip")


def test_the_share_code_makes_the_same_request(tab: Tab, served: Served) -> None:
    tab.fill(Prompt="to be shared", **SMALL).generate().expect_clip("to be shared")
    tab.page.get_by_role("button", name="Share code", exact=True).click()
    field: Any = tab.page.locator(".ks-code textarea")
    tab.page.wait_for_function("() => document.querySelector('.ks-code textarea').value.startsWith('KT1-')")
    found = served.client().predict(field.input_value(), api_name="/preset_import_text")
    assert "to be shared" in str(found)


def test_no_request_leaves_this_machine(tab: Tab, served: Served) -> None:
    tab.fill(Prompt="stays here", **SMALL).generate().expect_clip("stays here")
    for name in ("Queue", "Presets", "Accelerate", "Create"):
        tab.show(name)
        tab.page.wait_for_timeout(500)
    elsewhere = [url for url in tab.requests if not url.startswith((served.url + "/", "data:", "blob:"))]
    assert elsewhere == []
    assert len(tab.requests) > 20


def test_gpus_together_are_offered_only_where_there_are_several(tab: Tab) -> None:
    """This machine is taken for one without GPUs; what was brought along is shown all the same."""
    tab.page.get_by_role("button", name="More").click()
    expect(tab.field("Shift")).to_be_visible()
    expect(tab.field("GPUs together")).to_be_hidden()
    tab.bring(encode_code(GenerationRequest(prompt="a red ball", accel=AccelPreferences(gpus=2))))
    tab.expect_value("GPUs together", "2").fill(GPUs_together=1)
    tab.field("Steps").click()
    expect(tab.field("GPUs together")).to_be_hidden()
    assert tab.errors == []
