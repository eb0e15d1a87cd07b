"""Clips of plans: seconds, likeness, predictions; frames are planted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel.measuring.clips import REFERENCE, Contender, Made, contenders, qualities, race, seconds_for
from accel.measuring.timing import Stopped
from accel.plan import make_plan
from accel.readouts.results import AUTOMATIC, PROMPTS, Clip
from accel.types import Memory, Preferences
from tests.accel.recorded import machine, model

PLAIN = Preferences(linear="stock")
INT8 = Preferences(linear="dynamic_int8")
BAD = Preferences(linear="bad")
PLANS = (
    Contender(REFERENCE, PLAIN),
    Contender(AUTOMATIC, Preferences()),
    Contender("automatic with dynamic_int8", INT8, ("transformer", "linear", "dynamic_int8")),
)


def frames(value: int) -> Any:
    return np.full((2, 16, 16, 3), value, np.uint8)


class Maker:
    """Makes grey clips: the reference's are 100, int8's are `off` brighter; each step takes a second."""

    def __init__(self, off: int = 1) -> None:
        self.off, self.asked = off, list[tuple[str, str, int]]()

    def __call__(self, preferences: Preferences, prompt: str, steps: int) -> Made:
        self.asked.append((preferences.linear, prompt, steps))
        if preferences == BAD:
            raise RuntimeError("it can't\nbe made")
        seconds = {"load": 2.0, "text": 0.5, "denoise": float(steps), "decode": 3.0 + len(self.asked)}
        report = {"linear": {"transformer": {"served": 3, "calls": 4}}, "attention": {}, "vae": {}}
        return Made(frames(100 + self.off * (preferences == INT8)), seconds, steps, "few words", "float32", report)


def test_the_reference_comes_first_and_every_approximate_backend_that_can_run(tmp_path: Path) -> None:
    here = machine("zen5", tmp_path)
    found = contenders(here, model(), make_plan(here, model()))
    assert [one.name for one in found] == [REFERENCE, "plain bfloat16", AUTOMATIC, "automatic with dynamic_int8"]
    reference = found[0].preferences
    assert (reference.dtype, reference.attention, reference.linear, reference.vae) == (
        "float32", "sdpa", "stock", "stock"
    )  # fmt: skip
    assert found[-1].approximate == ("transformer", "linear", "dynamic_int8")
    for one in found:
        make_plan(here, model(), one.preferences)


def test_step_caches_are_contenders_and_one_that_measures_first_makes_a_clip_more(tmp_path: Path) -> None:
    here = machine("zen5", tmp_path)
    told = {"first_block": "", "mag": "", "taylorseer": "it has no proj_out"}
    stages = tuple(replace(stage, caches=told if stage.stage == "transformer" else {}) for stage in model().stages)
    found = contenders(here, replace(model(), stages=stages), make_plan(here, model()))
    first, mag = [one for one in found if one.preferences.cache != "auto"]
    assert (first.name, first.approximate) == ("automatic with first_block", ("transformer", "cache", "first_block"))
    assert (mag.preferences, mag.rehearsed) == (Preferences(cache="mag"), True)
    maker = Maker()
    race((found[0], mag), maker, "a ball", 4, 20, rounds=2)
    assert [steps for _, _, steps in maker.asked] == [1, 4, 4, 4, 1, 4, 1, 4]
    maker = Maker()
    qualities("small", (found[0], mag), maker, ("a", "b"), 6, "64x64")
    assert [prompt for _, prompt, _ in maker.asked] == ["a", "b", "a", "a", "b"]


def test_a_model_too_large_for_float32_is_compared_in_the_plans_dtype(tmp_path: Path) -> None:
    here = replace(machine("zen5", tmp_path), memory=Memory(2**32, 2**32, "4 GiB"))
    stages = tuple(replace(stage, parameters=10**9) for stage in model().stages)
    large = replace(model(), stages=stages)
    found = contenders(here, large, make_plan(here, large))
    assert [one.preferences.dtype for one in found[:2]] == ["bfloat16", "auto"]


def test_seconds_likeness_and_what_a_preset_would_take() -> None:
    maker = Maker()
    reference, automatic, int8 = race(PLANS, maker, "a ball", 4, 20, rounds=2)
    assert [(name, steps) for name, _, steps in maker.asked[:4]] == [
        ("stock", 1),
        ("stock", 4),
        ("auto", 1),
        ("auto", 4),
    ]
    assert (reference.psnr, reference.ssim) == (None, None)
    assert automatic.psnr == 100
    assert int8.psnr == pytest.approx(48.13, abs=0.01)
    assert reference.per_step == 1.0
    assert reference.seconds["decode"] == 5.0, "the least of both rounds"
    assert reference.predicted == 2.0 + 0.5 + 20 + 5.0
    assert (reference.served, reference.calls, reference.rounds) == (3, 4, 2)


def test_a_plan_that_fails_says_why_and_the_others_go_on() -> None:
    plans = (*PLANS[:2], Contender("bad", BAD), PLANS[2])
    found = race(plans, Maker(), "a ball", 2, 20, warm=False)
    assert [clip.failed for clip in found] == ["", "", "it can't be made", ""]
    assert found[3].psnr is not None
    alone = race((Contender("bad", BAD), PLANS[1]), Maker(), "a ball", 2, 20)
    assert alone[1].psnr is None, "without the reference there is nothing to compare with"


def test_it_stops_when_told() -> None:
    maker = Maker()
    with pytest.raises(Stopped):
        race(PLANS, maker, "a ball", 2, 20, should_stop=lambda: len(maker.asked) >= 2)
    with pytest.raises(Stopped):
        qualities("m", PLANS, maker, ["a"] * 9, 2, "", should_stop=lambda: len(maker.asked) >= 4)
    assert len(maker.asked) == 4


def test_quality_is_that_of_all_prompts_together() -> None:
    maker = Maker(off=2)
    told: list[tuple[int, int]] = []
    prompts = [f"prompt {number}" for number in range(PROMPTS)]
    (found,), notes = qualities(
        "starter", PLANS, maker, prompts, 5, "small", tell=lambda done, of, text: told.append((done, of))
    )
    assert (found.model, found.stage, found.kind, found.backend) == ("starter", "transformer", "linear", "dynamic_int8")
    assert (found.prompts, found.size, notes) == (PROMPTS, "small", ())
    assert found.psnr == pytest.approx(42.11, abs=0.01)
    assert found.psnr == found.worst_psnr
    assert found.why_not == ""
    assert told[0] == (0, 2 * PROMPTS)
    assert told[-1] == (2 * PROMPTS - 1, 2 * PROMPTS)
    assert {steps for _, _, steps in maker.asked} == {5}
    (poor,), _ = qualities("starter", PLANS, Maker(off=30), prompts, 5, "small")
    assert "18.6 dB" in poor.why_not


def test_an_approximate_plan_that_fails_has_no_quality() -> None:
    plans = (PLANS[0], Contender("bad", BAD, ("transformer", "linear", "bad")), PLANS[2])
    found, notes = qualities("m", plans, Maker(), ["a", "b"], 2, "")
    assert [one.backend for one in found] == ["dynamic_int8"]
    assert notes == ("bad made no clips to compare: it can't be made",)
    assert "2 prompts only" in found[0].why_not


def test_the_time_of_many_clips_is_known_beforehand() -> None:
    clips = [Clip(plan.name, "", "", {"load": 1.0}, 1.0, 1, 11.0) for plan in PLANS]
    assert seconds_for(clips, PLANS, 20) == 2 * 10 * 20
