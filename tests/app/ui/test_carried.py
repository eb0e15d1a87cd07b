"""Accelerators that came with a clip or a preset: told in words where Generate is, and taken away again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.estimate import Estimate
from app.queue.jobs import JobResult
from app.request import AccelPreferences, GenerationRequest
from app.ui.carried import TITLES, in_words, sentence, taken_over, whose
from app.ui.context import Context
from app.ui.create import _estimate
from app.ui.form import NAMES, FormFields, values_of
from app.ui.queue import _Tab
from app.ui.rows import clock
from tests.app.ui.desk import Desk, spec
from tests.app.ui.serving import Served
from tests.app.ui.tab import PATIENCE, Tab
from tests.app.ui.test_queue_tab import SMALL, ended
from tests.app.ui.test_queue_view import Reader


def test_every_setting_has_words() -> None:
    assert TITLES.keys() == AccelPreferences.model_fields.keys()


def test_what_was_taken_over_is_a_sentence_and_no_json() -> None:
    wishes = AccelPreferences(attention="fp8", dtype="bfloat16", text_encoder="free", exact_steps="2", gpus=2)
    said = sentence(values_of(GenerationRequest(accel=wishes))["carried"])
    assert said.endswith(
        ", not from your switches: attention fp8, precision bf16, exact steps 2, text encoder Freed."
    )  # gpus has a field of its own
    assert ("GPUs together", "2") in in_words(wishes)
    assert sentence("") == sentence("{}") == ""
    assert sentence("rubbish") == sentence('{"accel": {"colour": "red"}}') != ""


def test_of_a_clip_only_what_differs_from_the_switches_is_taken_over(tmp_path: Path) -> None:
    made = spec("a ball", tmp_path, accel=AccelPreferences(attention="sdpa", vae="stock", gpus=2), count=3)
    asked = taken_over(made, AccelPreferences(attention="sdpa", vae="direct_conv3d", linear="stock"))
    assert asked.accel == AccelPreferences(vae="stock", gpus=2)
    assert (asked.seed, asked.count, asked.prompt) == (1, 1, "a ball")


@pytest.fixture
def plain_clip(served: Served) -> Any:
    """A clip made while the switches asked for plain PyTorch, and the switches as they were before."""
    client = served.client()
    client.predict("vae", "stock", api_name="/accelerate")
    job = client.predict({**SMALL, "prompt": "made plainly"}, api_name="/generate")[0]
    ended(client, job["id"], "done")
    client.predict("vae", "auto", api_name="/accelerate")
    return client


def asked_of_newest(client: Any, tab: Tab, prompt: str) -> dict[str, Any]:
    """The accelerators that the clip asks for which the form makes now."""
    tab.fill(Prompt=prompt).generate().expect_clip(prompt)
    (job,) = client.predict(prompt, api_name="/history")["jobs"]
    found: dict[str, Any] = client.predict(job["id"], api_name="/job_settings")["accel"]
    return found


def test_a_clips_accelerators_are_told_and_can_be_given_up(tab: Tab, plain_clip: Any) -> None:
    tab.expect_clip("made plainly")
    line = tab.page.locator("#kt-carried .kc-line")
    assert not line.is_visible()
    tab.page.get_by_role("button", name="Use these settings").click()
    line.get_by_text("not from your switches: decoding stock.").wait_for(timeout=PATIENCE)
    assert "{" not in line.inner_text()
    assert asked_of_newest(plain_clip, tab, "plainly again")["vae"] == "stock"
    tab.open()  # kept, and still told
    line.get_by_text("decoding stock").wait_for(timeout=PATIENCE)
    line.get_by_role("button").press("Enter")
    line.wait_for(state="hidden")
    assert asked_of_newest(plain_clip, tab, "by my switches")["vae"] == "auto"
    tab.open().expect_value("Prompt", "by my switches")
    assert not line.is_visible()
    assert tab.errors == []


def test_the_estimate_is_for_what_would_be_queued(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    estimated: list[GenerationRequest] = []

    def estimate(request: GenerationRequest) -> Estimate:
        estimated.append(request)
        return Estimate(2.0, {}, "as measured", 2**30, 2**31, 1, 2**31)

    monkeypatch.setattr(desk, "estimate", estimate)
    context = Context(desk, desk.home)
    asked = GenerationRequest(prompt="a ball", seed=3, accel=AccelPreferences(vae="stock"))
    assert "Accelerate:" not in _estimate(context, tuple(values_of(asked).values()))
    desk.set_preferences(AccelPreferences(dtype="float32", linear="dynamic_int8", vae="direct_conv3d"))
    said = _estimate(context, tuple(values_of(asked).values()))
    assert "about 2.0 s" in said
    assert "Accelerate: Linears dynamic_int8, Precision fp32<" in said, "what the form itself asks for goes before"
    (spec,) = context.specs(asked)
    assert (
        estimated[-1].accel
        == spec.request.accel
        == AccelPreferences(dtype="float32", linear="dynamic_int8", vae="stock")
    )
    monkeypatch.undo()  # what can't be estimated
    desk.set_preferences(AccelPreferences(dtype="bfloat16"))
    assert "Accelerate: Precision bf16" in _estimate(context, tuple(values_of(asked).values()))


def test_a_switch_that_is_moved_is_told_on_create_at_once(tab: Tab, served: Served) -> None:
    client, words = served.client(), tab.page.locator("#kt-estimate").get_by_text("Accelerate: Decoding stock")
    tab.fill(Prompt="a ball")
    tab.page.locator("#kt-estimate").get_by_text("fits").wait_for(timeout=PATIENCE)
    assert words.count() == 0
    client.predict("vae", "stock", api_name="/accelerate")
    try:
        words.wait_for(timeout=PATIENCE)
    finally:
        client.predict("vae", "auto", api_name="/accelerate")
    words.wait_for(state="detached", timeout=PATIENCE)


def test_whose_settings_were_taken_over_is_one_quiet_line(desk: Desk, tmp_path: Path) -> None:
    (job,) = desk.submit([spec("a <red> ball " + "rolls " * 30, tmp_path)])
    desk.queue.take()
    desk.queue.finish(job.id, JobResult(tmp_path / "a.mp4", tmp_path / "a.png", {"stages": []}, {}, {}))
    (job,) = desk.get([job.id])
    context = Context(desk, desk.home, form=FormFields(dict.fromkeys(NAMES)))
    *_, line, _ = _Tab(context).restore(SimpleNamespace(_data={"job": str(job.id)}))
    text = Reader(line).text
    assert text.startswith("Taken over: settings of “a <red> ball rolls")
    assert text.endswith(f"…”, made {clock(job.ended or 0)}.")
    assert len(text) < 120
    assert Reader(whose("Mine")).text == "Taken over: settings of “Mine”."
