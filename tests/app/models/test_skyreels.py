"""SkyReels V2's families on tiny pipelines: diffusion forcing, plain, from a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.engine import Engine
from app.models import skyreels
from app.models.base import Family
from app.paths import Home
from app.request import GenerationRequest
from tests.app.models.families import as_folder, check_clips, check_facts, check_schedulers, request_for

Tiny = Callable[[str], Path]

SHAPES = {
    skyreels.DF_1_3B: "skyreels-forcing",
    skyreels.DF_14B: "skyreels-forcing",
    skyreels.T2V_540P: "skyreels",
    skyreels.T2V_720P: "skyreels",
    skyreels.I2V_1_3B: "skyreels-i2v",
    skyreels.I2V_540P: "skyreels-i2v",
    skyreels.I2V_720P: "skyreels-i2v",
}
each = pytest.mark.parametrize("family", SHAPES, ids=lambda family: family.name)


def test_every_family_is_held_to_something() -> None:
    assert tuple(SHAPES) == skyreels.FAMILIES


@each
def test_what_a_family_says_agrees_with_its_files(family: Family, tiny_models: Tiny) -> None:
    check_facts(family, tiny_models(SHAPES[family]))
    check_schedulers(family, tiny_models(SHAPES[family]))


@pytest.mark.parametrize(
    "family", [skyreels.DF_1_3B, skyreels.T2V_540P, skyreels.I2V_1_3B], ids=lambda family: family.name
)
def test_clips_are_made_repeated_and_accelerated(family: Family, tiny_models: Tiny, tmp_path: Path) -> None:
    check_clips(family, tiny_models(SHAPES[family]), tmp_path)


def test_diffusion_forcing_goes_as_far_as_its_window() -> None:
    (adjustment,) = skyreels.DF_1_3B.normalise(GenerationRequest(model="skyreels-v2", frames=121)).adjustments
    assert (adjustment.field, adjustment.used) == ("frames", 97)


def test_diffusion_forcing_is_told_how_fast_the_clip_will_play(tiny_models: Tiny, tmp_path: Path) -> None:
    """The models know two rates: 16 frames a second, and any other."""
    home = Home(tmp_path / "home")
    with as_folder(skyreels.DF_1_3B, tiny_models("skyreels-forcing")) as family, Engine(home) as engine:
        quick, slow = (engine.generate(request_for(family, home, fps=fps)).frames for fps in (24.0, 16.0))
    assert not np.array_equal(quick, slow)
