"""CogVideoX's families, whose latents, positions and frame counts are unlike any other's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from app.engine import Engine
from app.models import cogvideox
from app.models.base import Family
from app.paths import Home
from app.request import GenerationRequest
from tests.app.models.families import as_folder, check_clips, check_facts, check_schedulers, request_for
from tests.tiny.cogvideox import SIZE

Tiny = Callable[[str], Path]

SHAPES = {
    cogvideox.T2V_2B: "cogvideox-2b",
    cogvideox.T2V_5B: "cogvideox-5b",
    cogvideox.I2V_5B: "cogvideox-i2v",
    cogvideox.T2V_15: "cogvideox-15",
    cogvideox.I2V_15: "cogvideox-15-i2v",
}
each = pytest.mark.parametrize("family", SHAPES, ids=lambda family: family.name)


def test_every_family_is_held_to_something() -> None:
    assert tuple(SHAPES) == cogvideox.FAMILIES


@each
def test_what_a_family_says_agrees_with_its_files(family: Family, tiny_models: Tiny) -> None:
    check_facts(family, tiny_models(SHAPES[family]))
    check_schedulers(family, tiny_models(SHAPES[family]))


@pytest.mark.parametrize(
    "family",
    [
        cogvideox.T2V_2B,
        cogvideox.I2V_5B,
        cogvideox.T2V_15,
        pytest.param(cogvideox.T2V_5B, marks=pytest.mark.long),
        pytest.param(cogvideox.I2V_15, marks=pytest.mark.long),
    ],
    ids=lambda family: family.name,
)
def test_clips_are_made_repeated_and_accelerated(family: Family, tiny_models: Tiny, tmp_path: Path) -> None:
    check_clips(family, tiny_models(SHAPES[family]), tmp_path)


@pytest.mark.parametrize("frames", [9, 17, 25])
def test_as_many_frames_come_out_as_were_asked_for(tiny_models: Tiny, tmp_path: Path, frames: int) -> None:
    """The decoder takes latent frames in pairs after the first: of 4k+1 frames, only 8k+1 come out whole."""
    home = Home(tmp_path / "home")
    with as_folder(cogvideox.T2V_2B, tiny_models("cogvideox-2b")) as family, Engine(home) as engine:
        request = request_for(family, home, frames=frames)
        assert len(engine.generate(request).frames) == frames == family.normalise(request).request.frames


def test_learnt_positions_leave_one_size(tiny_models: Tiny) -> None:
    family = cogvideox.I2V_5B
    request = GenerationRequest(model=family.name, image="a.png", width=640, height=480)
    (adjustment,) = family.normalise(request).adjustments
    assert adjustment.reason == "CogVideoX 5B I2V takes a width of 720 pixels only, so 640 becomes 720."
    here = family.with_folder(tiny_models("cogvideox-i2v"))
    assert (here.rules.width.most, here.rules.height.least) == SIZE, "the files have the last word"
