"""LTX-Video's families: the plain pipelines, and the one that takes pictures for any frame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.engine import Engine
from app.errors import UsageError
from app.models import family_for, ltx
from app.models.base import Family
from app.paths import Home
from app.request import GenerationRequest
from tests.app.models.families import as_folder, check_clips, check_facts, check_schedulers, picture, request_for

Tiny = Callable[[str], Path]

SHAPES = {
    ltx.V090: "ltx",
    ltx.V091: "ltx",
    ltx.V095: "ltx-condition",
    ltx.V097: "ltx-condition",
    ltx.V098_DISTILLED: "ltx-condition",
}
each = pytest.mark.parametrize("family", SHAPES, ids=lambda family: family.name)


def test_every_family_is_held_to_something() -> None:
    assert tuple(SHAPES) == ltx.FAMILIES


@each
def test_what_a_family_says_agrees_with_its_files(family: Family, tiny_models: Tiny) -> None:
    check_facts(family, tiny_models(SHAPES[family]))
    check_schedulers(family, tiny_models(SHAPES[family]))


@pytest.mark.parametrize("family", [ltx.V091, ltx.V097, ltx.V098_DISTILLED], ids=lambda family: family.name)
def test_clips_are_made_repeated_and_accelerated(family: Family, tiny_models: Tiny, tmp_path: Path) -> None:
    check_clips(family, tiny_models(SHAPES[family]), tmp_path)


@pytest.mark.parametrize("family", [ltx.V091, ltx.V095], ids=lambda family: family.name)
def test_pictures_decide_the_clip(family: Family, tiny_models: Tiny, tmp_path: Path) -> None:
    home = Home(tmp_path)
    with as_folder(family, tiny_models(SHAPES[family])) as here, Engine(home) as engine:
        text = request_for(here, home)
        first = text.model_copy(update={"image": picture(here, home)})
        asked = [text, first]
        if "last_image" in here.takes:
            asked.append(first.model_copy(update={"last_image": picture(here, home, "last_image")}))
        clips = [engine.generate(request).frames for request in asked]
        for i, one in enumerate(clips):
            assert all(not np.array_equal(one, other) for other in clips[i + 1 :]), "a picture was not looked at"
        assert np.array_equal(clips[0], engine.generate(text).frames)


def test_frames_a_second_are_told_to_the_model(tiny_models: Tiny, tmp_path: Path) -> None:
    with as_folder(ltx.V091, tiny_models("ltx")) as family, Engine(Home(tmp_path)) as engine:
        slow, fast = (engine.generate(request_for(family, Home(tmp_path), fps=fps)) for fps in (8.0, 30.0))
        assert (slow.fps, fast.fps) == (8.0, 30.0)
        assert not np.array_equal(slow.frames, fast.frames)


def test_a_distilled_model_keeps_to_its_steps() -> None:
    done = ltx.V098_DISTILLED.normalise(GenerationRequest(steps=20))
    (adjustment,) = done.adjustments
    assert (adjustment.field, adjustment.asked, adjustment.used, done.request.steps) == ("steps", 20, 8, 8)
    assert adjustment.reason == "LTX-Video 13B 0.9.8 distilled was distilled to 8 steps, so 20 become 8."


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (GenerationRequest(model="ltx", shift=3.0), "shift: LTX-Video 2B 0.9.5 sets its own; remove it."),
        (GenerationRequest(model="ltx-2b-0.9.1", image="a.png", last_image="b.png"), "last_image: LTX-Video 2B 0.9.1"),
        (
            GenerationRequest(model="ltx", last_image="b.png"),
            "image: LTX-Video 2B 0.9.5 leads from a picture to a last",
        ),
        (GenerationRequest(model="ltx", scheduler="unipc"), "scheduler: LTX-Video 2B 0.9.5 has no 'unipc'"),
    ],
)
def test_what_a_model_can_not_take_is_said(request_: GenerationRequest, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        family_for(request_.model).normalise(request_)
    assert str(caught.value).startswith(says)


def test_a_single_step_would_come_out_as_no_number() -> None:
    (adjustment,) = ltx.V090.normalise(GenerationRequest(model="ltx-2b-0.9", steps=1)).adjustments
    assert adjustment.reason == "LTX-Video 2B 0.9 takes at least 2 steps, so 1 becomes 2."
