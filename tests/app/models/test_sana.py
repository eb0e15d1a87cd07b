"""SANA-Video on a tiny pipeline, from text and from a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.engine import Engine
from app.engine.calling import scheduler_for
from app.models import sana
from app.models.base import Family
from app.paths import Home
from app.request import GenerationRequest
from tests.app.models.families import as_folder, check_clips, check_facts, check_schedulers, picture, request_for

Tiny = Callable[[str], Path]

SHAPES = {
    sana.SANA_480P: "sana",
}
each = pytest.mark.parametrize("family", SHAPES, ids=lambda family: family.name)


def test_every_family_is_held_to_something() -> None:
    assert tuple(SHAPES) == sana.FAMILIES


@each
def test_what_a_family_says_agrees_with_its_files(family: Family, tiny_models: Tiny) -> None:
    check_facts(family, tiny_models(SHAPES[family]), coarser=2)
    check_schedulers(family, tiny_models(SHAPES[family]))


@pytest.mark.parametrize("scheduler", sana.SANA_480P.schedulers)
def test_checkpoints_that_were_saved_for_euler_predict_flows_with_every_scheduler(scheduler: str) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    family = sana.SANA_480P
    request = family.normalise(GenerationRequest(model=family.name, scheduler=scheduler)).request
    made = scheduler_for(request, dict(FlowMatchEulerDiscreteScheduler(shift=3.0).config))
    made.set_timesteps(4)
    assert made.config.get("prediction_type", "flow_prediction") == "flow_prediction"
    assert float(made.sigmas.max()) <= 1, "flows begin at noise alone"


@pytest.mark.parametrize("family", [sana.SANA_480P], ids=lambda family: family.name)
def test_clips_are_made_repeated_and_accelerated(family: Family, tiny_models: Tiny, tmp_path: Path) -> None:
    check_clips(family, tiny_models(SHAPES[family]), tmp_path)


@pytest.mark.parametrize("scheduler", sana.SANA_480P.schedulers)
def test_a_picture_is_taken_with_every_scheduler(tiny_models: Tiny, tmp_path: Path, scheduler: str) -> None:
    home = Home(tmp_path / "home")
    with as_folder(sana.SANA_480P, tiny_models("sana")) as family, Engine(home) as engine:
        request = request_for(family, home, scheduler=scheduler)
        frames = engine.generate(request).frames
        pictured = engine.generate(request.model_copy(update={"image": picture(family, home)})).frames
        assert pictured.shape == frames.shape
        assert not np.array_equal(pictured, frames)
