"""Readouts on the page: run, watch, cancel, read, and two plans side by side in a real browser."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import expect

from accel.readouts import chart
from accel.readouts.results import Clip, Measurement, Peak, Place, Results
from app.errors import UsageError
from app.measuring import Measuring, State
from app.paths import Home
from app.request import AccelPreferences, GenerationRequest
from app.ui.accelerate_view import table_html
from app.ui.context import Context
from app.ui.form import values_of
from app.ui.readouts import AUTOMATIC, REFERENCE, SWITCHED, Readouts, bench_of, comparison_of, frame_of, plan_of
from app.ui.readouts_view import compared_html, panel_html, results_html, sides_html
from tests.accel.measuring.planted import row
from tests.app.ui.desk import Desk
from tests.app.ui.serving import Served
from tests.app.ui.tab import PATIENCE, Tab
from tests.app.ui.test_accelerate_tab import row as accelerator
from tests.app.ui.test_queue_tab import SMALL
from tests.app.ui.test_queue_view import Reader

CLIPS = (
    Clip("Plain PyTorch, fp32", "float32", "float32", {"total": 4.0, "denoise": 2.0}, 0.5, 4, 9.0),
    Clip("<Automatic>", "bfloat16", "bfloat16", {"total": 2.0, "denoise": 1.0}, 0.25, 4, 5.0, 38.2, 0.981),
)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(Home(tmp_path)) as made:
        yield made


def results(**changes: Any) -> Results:
    rows = (row("sdpa", 1.0, speedup=1.0), row("<quick>", 0.5, gain=2.0, speedup=2.0))
    made = replace(Measurement("starter", "a clip", "2026-01-02", True, {}, {}, rows, CLIPS), **changes)
    return Results(Place("f", "a machine", {}), peaks=(Peak("cpu", "float32", 0.2, "p"),), measurements=(made,))


# -- markup --


def test_the_panel_offers_what_can_be_done() -> None:
    states: tuple[State, ...] = ("none", "waiting", "running", "done", "failed", "stopped")
    told = {state: Measuring(1, "bench", state, 0.5, "so far", error="it broke") for state in states}
    texts: dict[str, str] = {state: Reader(panel_html(one)).text for state, one in told.items()}
    for state in ("none", "done", "failed", "stopped"):
        assert "Run quick benchmark" in texts[state]
        assert "Cancel" not in texts[state]
    for state in ("waiting", "running"):
        assert "Cancel" in texts[state]
        assert "Run quick" not in texts[state]
    assert "50%, so far" in texts["running"]
    assert "it broke" in texts["failed"]
    assert "so far" in texts["stopped"]


def test_figures_and_stale_ones_are_told_and_escaped() -> None:
    stale = [
        {"name": "<another>", "when": "2025-05-05T00:00", "why": "measured with other versions: torch 1 then, 2 now"}
    ]
    page = Reader(
        results_html({"results": results().to_dict(), "stale": stale, "problems": ["x.json is broken"]}, "starter")
    )
    for says in (
        "<quick>", "2.00x", "plain PyTorch", "<Automatic>", "38.2 dB", "Peak in fp32",
        "Figures of <another> (2025-05-05) are stale: measured with other versions", "x.json is broken",
    ):  # fmt: skip
        assert says in page.text
    assert page.text.count("a clip") == 1
    other = Reader(results_html({"results": results().to_dict(), "stale": [], "problems": []}, "another"))
    assert "Nothing was measured for this model on this machine yet" in other.text


def test_two_plans_are_compared_in_a_sentence() -> None:
    page = Reader(compared_html({"title": "a clip", "clips": [clip.to_dict() for clip in CLIPS]}))
    assert "<Automatic> is 2.00 times as fast" in page.text
    assert "38.2 dB and 0.981 SSIM" in page.text
    assert "Your clip" in page.text
    assert "preset" not in page.text  # none was asked for


def test_the_accelerators_table_shows_what_was_measured() -> None:
    shown = Reader(table_html([accelerator(speedup=1.32, error=1.7e-3, share_of_peak=0.41)], AccelPreferences()))
    for says in ("Speed-up", "1.32x", "1.7e-03", "41%"):
        assert says in shown.text
    none = Reader(table_html([accelerator()], AccelPreferences()))
    assert "1.32x" not in none.text


# -- what is asked for --


def test_choices_are_plans() -> None:
    switched = AccelPreferences(linear="dynamic_int8")
    assert plan_of(AUTOMATIC, switched) == AccelPreferences()
    assert plan_of(SWITCHED, switched) == switched
    assert plan_of(REFERENCE, switched).dtype == "float32"
    with pytest.raises(UsageError, match="reload the page"):
        plan_of("wonder", switched)


@given(st.text(max_size=30))
def test_any_other_choice_is_refused(name: str) -> None:
    try:
        plan_of(name, AccelPreferences())
    except UsageError as error:
        assert "reload the page" in str(error)  # noqa: PT017


def test_two_equal_plans_are_refused() -> None:
    with pytest.raises(UsageError, match="two different plans"):
        comparison_of(GenerationRequest(), (AccelPreferences(), AccelPreferences()), ("a", "b"))


def test_a_comparison_is_one_clip_under_two_plans_and_no_other() -> None:
    request = GenerationRequest(prompt="a ball", count=4, accel=AccelPreferences(linear="dynamic_int8"))
    ask = comparison_of(request, (plan_of(REFERENCE, request.accel), AccelPreferences()), ("a", "b"))
    assert (ask.request.count, ask.request.accel, ask.request.width) == (1, AccelPreferences(), 256)
    bench = bench_of(GenerationRequest(accel=AccelPreferences(linear="dynamic_int8")), True)
    assert (bench.request.steps, bench.request.accel) == (20, AccelPreferences())
    assert bench.request.prompt, "guidance needs one"


def test_frames_are_looked_at_one_by_one(tmp_path: Path) -> None:
    files = []
    for at in range(2):
        files.append(str(tmp_path / f"{at}.npy"))
        np.save(
            files[-1], np.arange(3, dtype=np.uint8)[:, None, None, None] + np.full((3, 2, 2, 3), 100 * at, np.uint8)
        )
    found = frame_of(files, 2)
    assert found is not None
    assert [int(picture[0, 0, 0]) for picture in found] == [1, 101]
    last = frame_of(files, 99)
    assert last is not None
    assert int(last[0][0, 0, 0]) == 2
    assert frame_of([*files[:1], str(tmp_path / "gone.npy")], 1) is None


def test_events_ask_the_service(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context(desk, desk.home)
    part = Readouts(context, None)
    monkeypatch.setattr("app.ui.readouts.read_data", lambda event: event)
    values = values_of(GenerationRequest(prompt="a boat", steps=7)).values()
    panel = part.act("starter", {"do": "quick"}, *values)[0]
    assert desk.asked[0].quick
    assert (desk.asked[0].request.prompt, desk.asked[0].request.steps) == ("a boat", 7)
    assert "the machine&#x27;s peak" in panel
    assert part.progress()["percent"] == 25
    part.act("starter", {"do": "cancel"}, *values)
    assert part.progress()["over"]
    desk.results = results().to_dict()
    shown = part.show("starter")
    assert "Run quick benchmark" in shown[0]
    assert "2.00x" in shown[1]


def test_the_end_of_a_comparison_is_heard_twice_and_the_frame_looked_at_stays(desk: Desk) -> None:
    part = Readouts(Context(desk, desk.home), None)
    desk.state = Measuring(
        number=7, state="done", result={"title": "a clip", "clips": [c.to_dict() for c in CLIPS], "frames": []}
    )
    *_, frame, pair = part.show("starter", 6)
    assert (frame["value"], pair) == (1, 7)
    assert all("value" not in update for update in part.show("starter", 7)[2:])


def test_the_slider_says_which_plan_is_on_which_side() -> None:
    clips = [replace(clip, plan=plan).to_dict() for clip, plan in zip(CLIPS, (REFERENCE, "<mine>"), strict=False)]
    sides = Reader(sides_html({"title": "a clip", "clips": clips})).text
    assert sides.index(f"Left: {REFERENCE}") < sides.index("Right: <mine>")


def test_a_comparison_is_told_beside_its_button_which_waits(desk: Desk) -> None:
    part = Readouts(Context(desk, desk.home), None)
    values = values_of(GenerationRequest(prompt="a boat", steps=7)).values()
    _, _, beside, button, *_ = part.side_by_side(REFERENCE, AUTOMATIC, *values)
    assert "25%, the machine's peak" in Reader(beside).text
    assert "Cancel" in Reader(beside).text
    assert button["interactive"] is False
    assert part.show("starter")[3]["interactive"] is False
    desk.state = replace(desk.state, state="failed", error="it broke")
    _, _, beside, button, *_ = part.show("starter")
    assert (Reader(beside).text.strip(), button["interactive"]) == ("it broke", True)
    desk.state = replace(desk.state, kind="bench")
    assert part.show("starter")[2] == "", "that is told at the top"


# -- in a browser --


def wait_until_over(served: Served) -> dict[str, Any]:
    client = served.client()
    end = time.monotonic() + 280
    while True:
        state: dict[str, Any] = client.predict(api_name="/measuring")
        if state["state"] not in ("waiting", "running"):
            return state
        assert time.monotonic() < end, state
        time.sleep(0.5)


def test_a_benchmark_is_begun_watched_and_cancelled(tab: Tab, served: Served) -> None:
    tab.show("Accelerate")
    panel = tab.page.locator("#kt-measure")
    panel.get_by_role("button", name="Run full benchmark").click()
    panel.get_by_role("progressbar").wait_for(timeout=PATIENCE)
    tab.page.wait_for_function(
        "() => /^[0-9]+%, /.test(document.querySelector('#kt-measure .kt-state')?.textContent || '')", timeout=PATIENCE
    )
    panel.get_by_role("button", name="Cancel").click()
    panel.get_by_role("button", name="Run quick benchmark").wait_for(timeout=PATIENCE)
    assert "Stopped" in panel.inner_text()
    assert wait_until_over(served)["state"] == "stopped"
    assert tab.errors == []


def test_two_plans_of_the_forms_clip_stand_in_a_slider(tab: Tab, served: Served) -> None:
    tab.fill(Prompt="a red ball", Width=SMALL["width"], Height=SMALL["height"], Frames=SMALL["frames"], Steps=2)
    tab.show("Accelerate")
    tab.page.locator("#kt-compare").evaluate("(button) => button.click()")
    tab.page.locator("#kt-comparing").get_by_role("progressbar").wait_for(timeout=PATIENCE)
    assert tab.page.locator("#kt-compare").is_disabled()
    tab.page.locator("#kt-compared .kt-figures").wait_for(timeout=PATIENCE * 2)
    expect(tab.page.locator("#kt-compare")).to_be_enabled()
    text = tab.page.locator("#kt-compared").inner_text()
    for says in ("Plain PyTorch, fp32", "Automatic", "dB", "SSIM"):
        assert says in text
    pictures = tab.page.locator("#kt-slider img")
    eager = (
        "one.loading === 'eager' && one.naturalWidth"  # how far below the window lazy ones wait is the browser's own
    )
    tab.page.wait_for_function(
        f"() => [...document.querySelectorAll('#kt-slider img')].filter((one) => {eager}).length === 2", timeout=30_000
    )
    assert tab.page.evaluate("scrollY") == 0, "nobody scrolled to them"
    assert pictures.count() == 2
    left, right = (one.bounding_box()["x"] for one in tab.page.locator("#kt-sides span").all())
    assert tab.page.locator("#kt-sides span").all_inner_texts() == ["Left: Plain PyTorch, fp32", "Right: Automatic"]
    assert left < right
    sizes = tab.page.evaluate("() => [...document.querySelectorAll('#kt-slider img')].map((one) => one.naturalWidth)")
    assert sizes == [SMALL["width"]] * 2
    before = pictures.first.get_attribute("src")
    tab.page.locator("#kt-frame input[type=number]").fill("3")
    tab.page.locator("#kt-frame input[type=number]").press("Enter")
    tab.page.locator("#kt-frame input[type=range]").press("ArrowRight")
    tab.page.wait_for_function(
        "(before) => document.querySelector('#kt-slider img')?.src !== before", arg=before, timeout=PATIENCE
    )
    assert tab.errors == []
    state = served.client().predict(api_name="/measuring")
    assert [clip["plan"] for clip in state["result"]["clips"]] == ["Plain PyTorch, fp32", "Automatic"]


def test_the_chart_fits_the_window(tab: Tab) -> None:
    markup = results_html({"results": results().to_dict(), "stale": [], "problems": []}, "starter")
    tab.show("Accelerate")
    tab.page.locator("#kt-readouts").evaluate("(node, markup) => { node.innerHTML = markup; }", markup)
    drawn = tab.page.locator("#kt-readouts svg >> visible=true")
    for window, shape in ((1280, chart.WIDE), (390, chart.NARROW)):
        tab.page.set_viewport_size({"width": window, "height": 844})
        expect(drawn).to_have_attribute("viewBox", re.compile(f"0 0 {shape.width} "))
        box = drawn.bounding_box()
        assert box["x"] + box["width"] <= window
        assert box["width"] > 0.9 * shape.width, "its words can be read"


def test_a_quick_benchmark_through_its_endpoint_shows_on_the_page(served: Served, tab: Tab) -> None:
    tab.show("Accelerate")
    assert served.client().predict({**SMALL, "prompt": "a ball"}, True, api_name="/benchmark") >= 1
    tab.page.locator("#kt-measure").get_by_role("progressbar").wait_for(timeout=PATIENCE)
    state = wait_until_over(served)
    assert state["state"] == "done", state["error"]
    tab.page.locator("#kt-readouts svg >> visible=true").wait_for(timeout=PATIENCE)
    assert "plain PyTorch" in tab.page.locator("#kt-readouts").inner_text()
    tab.page.locator("#kt-accelerators .kt-figure:not(.kt-none)").first.wait_for(timeout=PATIENCE)
    kept = served.client().predict(api_name="/readouts")
    assert Results.from_dict(kept["results"]).measurements[0].rows
    assert tab.errors == []


def test_what_can_not_be_compared_is_refused_by_its_endpoint(served: Served) -> None:
    client = served.client()
    with pytest.raises(Exception, match="two different plans"):
        client.predict({"prompt": "a ball"}, {}, {}, api_name="/compare_plans")
    with pytest.raises(Exception, match="nonsense"):
        client.predict({"model": "nonsense"}, True, api_name="/benchmark")
