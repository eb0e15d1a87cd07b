"""HunyuanVideo and 1.5, each on a tiny pipeline with its own way of being guided."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.engine import Engine
from app.errors import UsageError
from app.models import hunyuan
from app.models.base import Family
from app.paths import Home
from app.request import GenerationRequest
from tests.app.models.families import as_folder, check_clips, check_facts, check_schedulers, request_for

Tiny = Callable[[str], Path]

SHAPES = {
    hunyuan.HUNYUAN: "hunyuan",
    hunyuan.V15_480P: "hunyuan-15",
    hunyuan.V15_720P: "hunyuan-15",
}
each = pytest.mark.parametrize("family", SHAPES, ids=lambda family: family.name)


def test_every_family_is_held_to_something() -> None:
    assert tuple(SHAPES) == hunyuan.FAMILIES


@each
def test_what_a_family_says_agrees_with_its_files(family: Family, tiny_models: Tiny) -> None:
    check_facts(family, tiny_models(SHAPES[family]))
    check_schedulers(family, tiny_models(SHAPES[family]))


@pytest.mark.parametrize("family", [hunyuan.HUNYUAN, hunyuan.V15_480P], ids=lambda family: family.name)
def test_clips_are_made_repeated_and_accelerated(family: Family, tiny_models: Tiny, tmp_path: Path) -> None:
    check_clips(family, tiny_models(SHAPES[family]), tmp_path)


def test_guidance_and_negative_prompt_reach_each_in_its_own_way(tiny_models: Tiny, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with as_folder(hunyuan.HUNYUAN, tiny_models("hunyuan")) as family, Engine(home) as engine:
        request = request_for(family, home, frames=5)
        frames = engine.generate(request).frames
        assert not np.array_equal(frames, engine.generate(request.model_copy(update={"guidance": 2.0})).frames)
    with as_folder(hunyuan.V15_480P, tiny_models("hunyuan-15")) as family, Engine(home) as engine:
        request = request_for(family, home)
        frames = engine.generate(request).frames
        for change in ({"guidance": 2.0}, {"negative_prompt": "sky"}, {"guidance": 1.0}):
            assert not np.array_equal(frames, engine.generate(request.model_copy(update=change)).frames), change
        assert np.array_equal(frames, engine.generate(request).frames), "one clip's guider is not the next one's"


def test_the_first_one_has_no_use_for_a_negative_prompt() -> None:
    with pytest.raises(UsageError, match="HunyuanVideo can't use a negative prompt"):
        hunyuan.HUNYUAN.normalise(GenerationRequest(model="hunyuanvideo", negative_prompt="blurry"))
