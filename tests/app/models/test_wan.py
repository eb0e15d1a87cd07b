"""Wan's families, each on a tiny pipeline with its own way of being conditioned."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.engine import Engine, Frames
from app.errors import UsageError
from app.models import family_for, wan
from app.models.base import Family
from app.paths import Home
from app.request import GenerationRequest
from tests.app.models.families import as_folder, check_clips, check_facts, check_schedulers, picture, request_for

Tiny = Callable[[str], Path]

SHAPES = {
    wan.T2V_1_3B: "wan-t2v",
    wan.T2V_14B: "wan-t2v",
    wan.I2V_480P: "wan-i2v",
    wan.I2V_720P: "wan-i2v",
    wan.FLF2V: "wan-flf2v",
    wan.TI2V_5B: "wan-ti2v",
    wan.T2V_A14B: "wan-t2v-two",
    wan.I2V_A14B: "wan-i2v-two",
}
each = pytest.mark.parametrize("family", SHAPES, ids=lambda family: family.name)
# 14B and 720p are 1.3B and 480p again, to the code.
different = pytest.mark.parametrize(
    "family", [wan.T2V_1_3B, wan.I2V_480P, wan.FLF2V, wan.TI2V_5B, wan.T2V_A14B, wan.I2V_A14B], ids=lambda it: it.name
)


def test_every_family_is_held_to_something() -> None:
    assert tuple(SHAPES) == wan.FAMILIES


@each
def test_what_a_family_says_agrees_with_its_files(family: Family, tiny_models: Tiny) -> None:
    check_facts(family, tiny_models(SHAPES[family]))
    check_schedulers(family, tiny_models(SHAPES[family]))


@different
def test_clips_are_made_repeated_and_accelerated(family: Family, tiny_models: Tiny, tmp_path: Path) -> None:
    # three steps at a shift of 12 are the fewest that reach the second transformer
    check_clips(family, tiny_models(SHAPES[family]), tmp_path, steps=3 if family.defaults.guidance_2 else 2)


def test_the_second_guidance_acts_on_the_later_steps(tiny_models: Tiny, tmp_path: Path) -> None:
    home = Home(tmp_path)
    with as_folder(wan.T2V_A14B, tiny_models("wan-t2v-two")) as family, Engine(home) as engine:
        request = request_for(family, home, steps=3)
        seen: dict[float, list[Frames]] = {}
        for strength in (3.0, 9.0):
            clip = engine.generate(request.model_copy(update={"guidance_2": strength}))
            assert clip.request.guidance_2 == strength
            seen[strength] = [clip.frames, engine.generate(request.model_copy(update={"guidance": strength})).frames]
        assert not np.array_equal(seen[3.0][0], seen[9.0][0])
        assert not np.array_equal(seen[3.0][1], seen[9.0][1])
        one_forward = engine.generate(request.model_copy(update={"prompt": "", "guidance_2": 9.0})).frames
        assert np.array_equal(one_forward, engine.generate(request.model_copy(update={"prompt": ""})).frames)


def test_one_model_of_text_and_pictures_takes_both_in_turns(tiny_models: Tiny, tmp_path: Path) -> None:
    home = Home(tmp_path)
    with as_folder(wan.TI2V_5B, tiny_models("wan-ti2v")) as family, Engine(home) as engine:
        text = request_for(family, home)
        pictured = text.model_copy(update={"image": picture(family, home)})
        first, second = engine.generate(text).frames, engine.generate(pictured).frames
        assert not np.array_equal(first, second)
        assert np.array_equal(first, engine.generate(text).frames)
        assert np.array_equal(second, engine.generate(pictured).frames)


def test_both_schedulers_run_on_either_kind_of_checkpoint(tiny_models: Tiny, tmp_path: Path) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    folder = tmp_path / "model"
    shutil.copytree(tiny_models("wan-t2v"), folder)
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    index = json.loads((folder / "model_index.json").read_text())
    index["scheduler"][1] = "FlowMatchEulerDiscreteScheduler"
    (folder / "model_index.json").write_text(json.dumps(index))
    check_schedulers(wan.T2V_14B, folder)
    made: dict[str, list[Frames]] = {"unipc": [], "euler": []}
    for place in (tiny_models("wan-t2v"), folder):
        with as_folder(wan.T2V_14B, place) as family, Engine(Home(tmp_path)) as engine:
            for name, frames in made.items():
                frames.append(engine.generate(request_for(family, Home(tmp_path), scheduler=name)).frames)
    assert not np.array_equal(made["unipc"][0], made["euler"][0])
    for first, second in made.values():
        assert np.array_equal(first, second), "the scheduler decides, not the one that the checkpoint was saved with"


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (GenerationRequest(model="wan2.1-14b", image="a.png"), "image: Wan 2.1 T2V 14B can't use a picture"),
        (GenerationRequest(model="wan2.1-i2v-480p"), "image: Wan 2.1 I2V 14B 480p needs a picture; give one"),
        (GenerationRequest(model="wan2.1-flf2v", image="a.png"), "last_image: Wan 2.1 FLF2V 14B 720p needs a last"),
        (GenerationRequest(model="wan2.2-5b", image="a.png", last_image="b.png"), "last_image: Wan 2.2 TI2V 5B can't"),
        (GenerationRequest(model="wan2.2-5b", guidance_2=3.0), "guidance_2: Wan 2.2 TI2V 5B has no second transformer"),
    ],
)
def test_what_a_model_can_not_take_is_said(request_: GenerationRequest, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        family_for(request_.model).normalise(request_)
    assert str(caught.value).startswith(says)


def test_sizes_go_by_the_model() -> None:
    asked = GenerationRequest(width=1000, height=500, frames=100)
    for name, used in {"wan2.1-1.3b": (1008, 496, 97), "wan2.2-5b": (992, 512, 97)}.items():
        done = family_for(name).normalise(asked.model_copy(update={"model": name})).request
        assert (done.width, done.height, done.frames) == used, name


def test_a_height_between_its_multiples_is_moved_and_said() -> None:
    """Case 31: what is stretched or padded nowhere in the file, the model itself goes by 16s, and says so."""
    made = wan.T2V_1_3B.normalise(GenerationRequest(model=wan.T2V_1_3B.name, width=624, height=936))
    assert (made.request.width, made.request.height) == (624, 944)
    assert [one.reason for one in made.adjustments] == [
        "Wan 2.1 T2V 1.3B takes a height in multiples of 16, from 128 to 1280 pixels, so 936 becomes 944."
    ]
