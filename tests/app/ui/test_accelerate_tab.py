"""Accelerate: states in words, switches that are kept and act on the next clip."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.answers import Accelerator
from app.engine.several import ON_CPU
from app.errors import CannotRunError, UsageError
from app.paths import Home
from app.request import MAX_GPUS, AccelPreferences, GenerationRequest
from app.ui.accelerate import _Tab, chosen, switched
from app.ui.accelerate_view import MARKS, counts_of, machine_html, state_of, table_html
from app.ui.context import Context
from app.worker import questions
from tests.accel.recorded import machine
from tests.app.ui.desk import Desk
from tests.app.ui.serving import Served
from tests.app.ui.tab import PATIENCE, Tab
from tests.app.ui.test_queue_tab import SMALL, ended
from tests.app.ui.test_queue_view import Reader


def row(**values: Any) -> Accelerator:
    usual: dict[str, Any] = {
        "setting": "attention",
        "stage": "transformer",
        "name": "sgl_amx",
        "title": "SGLang",
        "state": "on",
        "reasons": ("faster",),
        "forced": False,
        "exact": True,
        "reference": False,
    }
    return Accelerator(**{**usual, **values})


@pytest.mark.parametrize(
    ("values", "look", "words"),
    [
        ({"calls": 320, "served": 320}, "proved", "on, automatically: proved by the last clip"),
        ({"calls": 320, "served": 319}, "unproved", "on, automatically: some calls fell back"),
        ({}, "unproved", "on, automatically: not proved by a clip yet"),
        ({"exact": False, "calls": 5, "served": 5}, "unproved", "on, automatically: approximate"),
        ({"reference": True, "calls": 5, "served": 5}, "plain", "on, automatically: plain PyTorch"),
        ({"forced": True, "calls": 5, "served": 5}, "proved", "on, chosen by you: proved by the last clip"),
        ({"state": "off"}, "off", "off"),
        ({"state": "unavailable"}, "unavailable", "unavailable"),
    ],
)
def test_green_is_only_for_what_is_engaged_and_proved(values: dict[str, Any], look: str, words: str) -> None:
    state = state_of(row(**values))
    assert (state.look, state.words) == (look, words)
    assert len(set(MARKS.values())) == len(MARKS), "each look needs a mark of its own"


def test_counts_say_what_fell_back() -> None:
    assert counts_of(row(calls=1320, served=1300)) == "1,300 of 1,320 calls, 20 fell back"
    assert counts_of(row(calls=1, served=1)) == "1 of 1 call"
    assert counts_of(row()) == "–"
    assert counts_of(row(setting="cache", calls=40, served=12)) == "12 of 40 saved"


def test_every_row_carries_its_reason_and_a_switch_with_a_name(desk: Desk) -> None:
    rows = desk.accelerators(GenerationRequest())
    page = Reader(table_html(rows, desk.preferences()))
    switches = [attributes for _, attributes in page.tags if attributes.get("role") == "switch"]
    named = {(one["data-setting"], one["data-name"]): one for one in switches}
    assert len(switches) == len(rows) + 4  # one "automatic" per setting
    assert all(one["aria-label"] for one in switches)
    for item in rows:
        switch = named[item.setting, item.name]
        assert switch["aria-checked"] == ("true" if item.state == "on" else "false")
        assert ("disabled" in switch) == (item.state == "unavailable")
        assert item.reasons
        own = f"{item.setting}={item.name} can't be used here: "
        assert item.reasons[0].removeprefix(own).rstrip(".")[1:] in page.text


def test_kernels_for_another_torch_are_greyed_and_clips_are_made_without(desk: Desk, tmp_path: Path) -> None:
    """Case 50: torch was upgraded under kernels that were built for the one before."""
    torch = {"version": "2.13.0+cpu", "torch": ""}
    run = {"result": {"ok": False, "reason": "ImportError: sgl_kernel.so: undefined symbol: _ZN3c10"}}
    desk._machine = machine("sapphire-rapids", tmp_path, distributions={"torch": torch}, runs={"sgl_kernel": run})
    rows = [row for row in desk.accelerators(GenerationRequest()) if row.name.startswith("sgl_")]
    assert {row.state for row in rows} == {"unavailable"}
    page = Reader(table_html(rows, desk.preferences()))
    assert all("was built for another torch (==2.11.0, found 2.13.0+cpu)" in row.reasons[0] for row in rows)
    assert page.text.count("was built for another torch (==2.11.0, found 2.13.0+cpu)") == len(rows)
    switches = [one for _, one in page.tags if one.get("role") == "switch" and str(one["data-name"]).startswith("sgl_")]
    assert len(switches) == len(rows)
    assert all("disabled" in one for one in switches)
    stages = desk.plan(GenerationRequest()).plan["stages"]
    engaged = [stage[kind]["engaged"] for stage in stages for kind in ("attention", "linear")]
    assert not any(name.startswith("sgl_") for name in engaged)


def test_switches_mean_what_they_say(desk: Desk) -> None:
    rows = desk.accelerators(GenerationRequest())
    engaged = {item.setting: item.name for item in rows if item.state == "on"}
    auto = AccelPreferences()
    on = switched(auto, rows, "linear", "dynamic_int8", True)
    assert on == AccelPreferences(linear="dynamic_int8")
    assert switched(on, rows, "linear", "dynamic_int8", False) == auto
    assert switched(on, rows, "linear", "", True) == auto
    assert switched(auto, rows, "attention", "", False) == AccelPreferences(attention=engaged["attention"])
    assert switched(AccelPreferences(attention="sdpa"), rows, "attention", "sdpa", False) == auto
    with pytest.raises(UsageError, match="no backend for"):
        switched(auto, rows, "attention", "wonder", True)


def test_off_again_is_as_before_and_plain_pytorch_is_a_choice_of_its_own(desk: Desk) -> None:
    """Turning off what a person chose is no choice; turning off what automatic took is one."""
    auto = AccelPreferences()
    first = desk.accelerators(GenerationRequest())
    for item in (item for item in first if item.state == "off" and not item.reference):
        desk.set_preferences(switched(auto, first, item.setting, item.name, True))
        rows = desk.accelerators(GenerationRequest())
        assert switched(desk.preferences(), rows, item.setting, item.name, False) == auto
    taken = {item.setting: item for item in first if item.state == "on"}
    assert switched(auto, first, "vae", taken["vae"].name, False) == AccelPreferences(vae="stock")
    assert switched(auto, first, "vae", "stock", True) == AccelPreferences(vae="stock")
    plain = row(name="sdpa", title="PyTorch attention", reference=True)
    with pytest.raises(
        UsageError, match=r"PyTorch attention is what automatic took, .*press the switch of its row[.]$"
    ):
        switched(auto, [plain], "attention", "sdpa", False)
    caches = [row(setting="cache", name="none", reference=True, state="off"), row(setting="cache", name="mag")]
    assert switched(AccelPreferences(cache="mag:0.1"), caches, "cache", "mag", False) == auto


def test_what_automatic_took_looks_other_than_what_a_person_chose(desk: Desk) -> None:
    rows = desk.accelerators(GenerationRequest())
    taken = next(item for item in rows if item.setting == "vae" and item.state == "on")
    desk.set_preferences(AccelPreferences(vae=taken.name))
    after = desk.accelerators(GenerationRequest())
    found = []
    for shown in (rows, after):
        page = Reader(table_html(shown, AccelPreferences()))
        switches = [one for _, one in page.tags if one.get("data-setting") == "vae" and one["data-name"] == taken.name]
        found += [(one["aria-checked"], one["data-by"], one["aria-label"]) for one in switches]
    label = f"Decoding: {taken.title}"
    assert found == [("true", "automatic", f"{label}, taken automatically"), ("true", "hand", label)]


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_what_bf16_costs_is_told_beside_its_switch_before_it_is_on(dtype: str) -> None:
    markup = table_html([], AccelPreferences(dtype=dtype))
    _, _, choice = markup.partition('role="group" aria-label="Precision"')
    precision = Reader(f"<div {choice.partition('</div>')[0]}</div>")
    assert [one["data-name"] for one in precision.buttons("choose")] == ["auto", "float32", "bfloat16", "float16"]
    assert "bf16 rounds more than fp32, so the picture differs slightly" in precision.text


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_setting_that_does_not_exist_is_refused(setting: str, choice: str) -> None:
    try:
        found = chosen(AccelPreferences(), setting, choice)
    except UsageError:
        return
    assert getattr(found, setting) == choice


def test_what_can_not_run_is_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    with Desk(Home(tmp_path), "skylake-avx2") as desk:
        with pytest.raises(CannotRunError, match="sgl_amx"):
            desk.set_preferences(chosen(desk.preferences(), "attention", "sgl_amx"))
        assert desk.preferences() == AccelPreferences()


def test_the_doctor_is_shown_as_text() -> None:
    page = Reader(machine_html({"have": ["Processor: <b>x</b>"], "missing": []}))
    assert "Processor: <b>x</b>" in page.text
    assert "whatever is not installed is optional" in page.text


def clip(served: Served, prompt: str) -> dict[str, Any]:
    """A finished clip as its endpoint tells it."""
    client = served.client()
    job = client.predict({**SMALL, "prompt": prompt}, api_name="/generate")[0]
    ended(client, job["id"], "done")
    found: dict[str, Any] = client.predict(job["id"], api_name="/job")
    return found


def switch(tab: Tab, setting: str, name: str) -> Any:
    return tab.page.locator(f'#kt-accelerators button[data-setting="{setting}"][data-name="{name}"]')


def test_a_switch_changes_the_next_clips_report_and_is_kept(tab: Tab, served: Served) -> None:
    rows = served.client().predict(api_name="/accelerators")
    name = next(
        item["name"]
        for item in rows
        if item["setting"] == "vae" and not item["reference"] and item["state"] != "unavailable"
    )
    before = clip(served, "before the switch")
    tab.show("Accelerate")
    stock, other = switch(tab, "vae", "stock"), switch(tab, "vae", name)
    other.wait_for(timeout=PATIENCE)
    target, wanted = (stock, "stock") if other.get_attribute("aria-checked") == "true" else (other, name)
    try:
        target.focus()
        tab.page.keyboard.press("Space")
        tab.page.wait_for_function(
            "(name) => document.querySelector(`#kt-accelerators button[data-setting=vae][data-name=${name}]`)"
            ".getAttribute('aria-checked') === 'true'",
            arg=wanted,
        )
        after = clip(served, "after the switch")
        assert before["report"]["vae"] != after["report"]["vae"]
        tab.open().show("Accelerate")
        switch(tab, "vae", wanted).wait_for(timeout=PATIENCE)
        assert switch(tab, "vae", wanted).get_attribute("aria-checked") == "true"
        assert served.client().predict(api_name="/preferences")["vae"] == wanted
    finally:
        served.client().predict("vae", "auto", api_name="/accelerate")
    deadline = time.monotonic() + 30
    while switch(tab, "vae", "").get_attribute("aria-checked") != "true":  # moved elsewhere, seen here
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_the_last_clips_counts_stand_in_the_table(tab: Tab, served: Served) -> None:
    clip(served, "counted")
    tab.show("Accelerate")
    tab.page.locator("#kt-accelerators .kt-count:not(.kt-none)").first.wait_for(timeout=PATIENCE)
    texts = tab.page.locator("#kt-accelerators .kt-count:not(.kt-none)").all_inner_texts()
    assert all(" of " in text and "call" in text for text in texts)
    tab.page.locator("#kt-machine").get_by_text("Processor:").first.wait_for(timeout=PATIENCE)
    assert tab.errors == []


def test_an_impossible_switch_is_refused_by_its_endpoint(served: Served) -> None:
    client = served.client()
    for setting, choice, says in (("attention", "wonder", "wonder"), ("wonder", "x", "is no setting")):
        with pytest.raises(Exception, match=says):
            client.predict(setting, choice, api_name="/accelerate")
    assert client.predict(api_name="/preferences")["attention"] == "auto"
    assert client.predict(api_name="/doctor")["have"]


@pytest.mark.parametrize("model", ["wan2.1-i2v-14b-480p", "wan2.1-flf2v-14b-720p"])
def test_models_that_begin_with_pictures_have_a_table_without_any(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    asked: list[GenerationRequest] = []

    def accelerators(request: GenerationRequest) -> tuple[Accelerator, ...]:
        asked.append(request)
        return ()

    monkeypatch.setattr(desk, "accelerators", accelerators)
    monkeypatch.setattr("app.models.sources.why_not_here", lambda family: "")
    tab = _Tab(Context(desk, desk.home), None)  # type: ignore[arg-type]
    assert tab.rows(model) == ()
    assert [request.model for request in asked] == [model]


def test_the_table_is_for_as_many_gpus_as_create_asks_for(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a prompt, since guidance's branches are dealt out; where so many can't be had, for one, and that is said."""
    asked: list[tuple[int, bool]] = []
    planned = desk.accelerators

    def accelerators(request: GenerationRequest) -> tuple[Accelerator, ...]:
        asked.append((request.accel.gpus, bool(request.prompt)))
        if request.accel.gpus > 2:
            raise CannotRunError(
                f"gpus={request.accel.gpus}: this machine has 2 GPUs that can be used; take at most 2."
            )
        return planned(request)

    monkeypatch.setattr(desk, "accelerators", accelerators)
    tab = _Tab(Context(desk, desk.home), None)  # type: ignore[arg-type]
    desk.set_preferences(AccelPreferences(vae="stock"))
    told = {gpus: [Reader(part).text for part in tab.show("starter", gpus)[1:]] for gpus in (1, 2, 3, None, 0.5)}
    assert [count for count, _ in asked] == [1, 2, 3, 1, 1, 1]
    assert all(prompt for _, prompt in asked)
    together = "For clips that 2 GPUs make together"
    assert {gpus: together in table for gpus, (table, _) in told.items()} == {
        gpus: gpus == 2 for gpus in (1, 2, 3, None, 0.5)
    }
    assert "take at most 2. The table is for one device." in told[3][1]
    assert [problem for gpus, (_, problem) in told.items() if gpus != 3] == [""] * 4


def test_two_gpus_have_verdicts_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On CPUs that stand in for them: no cache of steps where each GPU has some of the tokens."""
    monkeypatch.setenv(ON_CPU, "1")
    service = SimpleNamespace(
        preferences=AccelPreferences, accelerators=lambda request: questions.accelerators(request, Home(tmp_path))
    )
    tab = _Tab(Context(service, Home(tmp_path)), None)  # type: ignore[arg-type]
    states = {gpus: {row.name: row.state for row in tab.rows("starter", gpus)} for gpus in (1, 4)}
    assert states[1]["first_block"] == "off"
    assert states[4]["first_block"] == "unavailable"


def test_gpus_that_are_not_here_are_told_above_the_table(tab: Tab) -> None:
    tab.page.get_by_role("button", name="More").first.click()
    tab.page.add_style_tag(content=".kt-gpus { display: block !important }")  # hidden, since there are none
    tab.fill(GPUs_together=MAX_GPUS)
    tab.show("Accelerate")
    problem = tab.page.locator("#kt-accel-problem").get_by_text("The table is for one device.")
    problem.wait_for(timeout=PATIENCE)
    switch(tab, "vae", "").wait_for(timeout=PATIENCE)
    tab.show("Create").fill(GPUs_together=1).show("Accelerate")
    problem.wait_for(state="detached", timeout=PATIENCE)


def test_a_phone_shows_verdicts_and_switches_and_folds_the_rest_away(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.show("Accelerate")
    row = tab.page.locator("tr", has=tab.page.locator('button[data-setting="vae"][data-name="stock"]'))
    why = row.locator(".kt-why")
    switch(tab, "vae", "stock").wait_for(timeout=PATIENCE)
    assert row.locator(".kt-state-cell").is_visible()
    assert why.is_hidden()
    row.get_by_role("button", name="Details of").click()
    why.wait_for()
    assert row.get_by_role("button", name="Details of").get_attribute("aria-expanded") == "true"
    tab.page.set_viewport_size({"width": 1280, "height": 900})
    assert row.locator(".kt-details").is_hidden()
    assert all(one.is_visible() for one in tab.page.locator("#kt-accelerators .kt-why").all())


def test_the_focus_ring_of_a_tab_is_whole(tab: Tab) -> None:
    tab.show("Create").page.keyboard.press("ArrowRight")
    ring = "node => [getComputedStyle(node).outlineStyle, parseFloat(getComputedStyle(node).outlineOffset)]"
    style, offset = tab.page.locator("#kt-tabs [role=tab]:focus").evaluate(ring)
    assert (style, offset <= -2) == ("solid", True), "the row of tabs cuts off what stands out"
