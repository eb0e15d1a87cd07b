"""Clips that begin or end with a picture, on tiny models of Wan's three kinds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app import pictures, video
from app.engine import Engine, loading
from app.engine.calling import scheduler_for
from app.errors import Cancelled, UsageError
from app.job_types import JobSpec
from app.models import starter
from app.models.base import Family, Input
from app.paths import Home
from app.presets import read_source
from app.progress import Progress
from app.request import GenerationRequest
from app.worker.render import render
from tests.app.drawn import drawn, saved
from tests.app.engines import PLAIN, pipeline_of

Tiny = Callable[[str], Path]
TAKEN: frozenset[Input] = frozenset({"image", "last_image"})


def family_of(folder: Path, pipeline: str) -> Family:
    """Any model of Wan's under the starter's name."""
    takes: frozenset[Input] = starter.STARTER.takes | TAKEN
    family = replace(starter.STARTER, pipeline=pipeline, image_pipeline="WanImageToVideoPipeline", takes=takes)
    return family.with_folder(folder)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def model(request: pytest.FixtureRequest, tiny_models: Tiny, monkeypatch: pytest.MonkeyPatch) -> Family:
    """The tiny model that the test names, as `starter`."""
    name = request.param
    pipeline = "WanPipeline" if name == "wan-ti2v" else "WanImageToVideoPipeline"
    family = family_of(tiny_models(name), pipeline)
    monkeypatch.setattr(starter, "FAMILIES", (family,))
    return family


@pytest.fixture
def engine(home: Home, model: Family) -> Iterator[Engine]:
    with Engine(home) as made:
        yield made


def asked(home: Home, **more: Any) -> GenerationRequest:
    """Five small frames from the drawn picture."""
    name = pictures.keep(home, saved(drawn(64, 64)), "a.png", "it")
    request = GenerationRequest(prompt="a red ball", width=64, height=64, frames=5, steps=2, seed=7, image=name)
    return request.model_copy(update=more)


every = pytest.mark.parametrize("model", ["wan-ti2v", "wan-i2v", "wan-i2v-two"], indirect=True)
one = pytest.mark.parametrize("model", ["wan-ti2v"], indirect=True)


@every
def test_a_picture_decides_the_clip_and_the_same_request_gives_the_same_bytes(engine: Engine, home: Home) -> None:
    first = engine.generate(asked(home))
    assert first.frames.shape == (5, 64, 64, 3)
    assert np.array_equal(first.frames, engine.generate(asked(home)).frames)
    other = pictures.keep(home, saved(drawn(64, 64).rotate(90)), "b.png", "it")
    assert not np.array_equal(first.frames, engine.generate(asked(home, image=other)).frames)


@every
def test_equal_to_a_bare_diffusers_script(engine: Engine, home: Home, model: Family) -> None:
    assert model.folder is not None
    bare = loading.as_kind(loading.load_pipeline(model.folder, {}), "WanImageToVideoPipeline")
    request = asked(home, accel=PLAIN)
    clip = engine.generate(request)
    bare.scheduler = scheduler_for(clip.request, dict(bare.scheduler.config))
    wanted = bare(
        drawn(64, 64),
        clip.request.prompt,
        height=64,
        width=64,
        num_frames=5,
        num_inference_steps=2,
        guidance_scale=4.0,
        max_sequence_length=64,
        generator=torch.Generator().manual_seed(7),
    ).frames[0]
    assert np.array_equal(clip.frames, np.asarray((wanted * 255).round(), dtype=np.uint8))


@one
def test_one_model_makes_clips_with_and_without_a_picture_in_turns(engine: Engine, home: Home) -> None:
    without = asked(home, image=None)
    plain, pictured = engine.generate(without), engine.generate(asked(home))
    loaded = pipeline_of(engine)
    assert not np.array_equal(plain.frames, pictured.frames)
    assert np.array_equal(plain.frames, engine.generate(without).frames)
    assert np.array_equal(pictured.frames, engine.generate(asked(home)).frames)
    assert pipeline_of(engine) is loaded, "nothing was loaded anew"
    assert plain.pictures == {}


def test_a_model_saved_for_words_alone_says_how_it_takes_a_picture(
    home: Home, tiny_models: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its index has the setting for words; that for pictures stands with the family."""
    folder = shutil.copytree(tiny_models("wan-ti2v"), tmp_path / "model")
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"expand_timesteps": False}))
    family = replace(family_of(folder, "WanPipeline"), image_settings={"expand_timesteps": True})
    monkeypatch.setattr(starter, "FAMILIES", (family,))
    with Engine(home) as engine:
        plain, pictured = engine.generate(asked(home, image=None)).frames, engine.generate(asked(home)).frames
        assert np.array_equal(engine.generate(asked(home, image=None)).frames, plain)
    monkeypatch.setattr(starter, "FAMILIES", (family_of(tiny_models("wan-ti2v"), "WanPipeline"),))
    with Engine(home) as engine:
        assert np.array_equal(engine.generate(asked(home)).frames, pictured)


@pytest.mark.parametrize("model", ["wan-flf2v"], indirect=True)
def test_a_last_picture_counts_too(engine: Engine, home: Home) -> None:
    last = pictures.keep(home, saved(drawn(64, 64).rotate(180)), "z.png", "it")
    both = engine.generate(asked(home, last_image=last))
    assert set(both.pictures) == {"image", "last_image"}
    assert not np.array_equal(both.frames, engine.generate(asked(home, last_image=asked(home).image)).frames)


@one
def test_a_preview_begins_with_the_picture(engine: Engine, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.engine.watcher._PREVIEW_SECONDS", 0.0)
    seen: list[Progress] = []
    clip = engine.generate(asked(home), seen.append, previews=True)
    previews = [progress.preview for progress in seen if progress.preview is not None]
    assert len(previews) == 2
    for preview in previews:
        height, width = preview.shape[1:3]
        assert np.array_equal(preview[0], np.asarray(drawn(64, 64).resize((width, height))))
    assert np.array_equal(clip.frames, engine.generate(asked(home)).frames)


@one
def test_what_is_cut_off_is_said_and_the_clip_carries_what_the_model_saw(engine: Engine, home: Home) -> None:
    wide = pictures.keep(home, saved(drawn(128, 64)), "wide.png", "it")
    clip = engine.generate(asked(home, image=wide))
    assert [item.field for item in clip.adjustments] == ["image"]
    seen = pictures.read_picture(clip.pictures["image"], "it").image
    assert seen.size == (64, 64)
    again = pictures.keep(home, clip.pictures["image"], wide, "it")
    assert np.array_equal(clip.frames, engine.generate(asked(home, image=again)).frames)


@one
def test_a_clip_s_file_makes_the_clip_again_on_another_machine(engine: Engine, home: Home, tmp_path: Path) -> None:
    wide = pictures.keep(home, saved(drawn(128, 64), "JPEG"), "wide.jpg", "it")
    request = asked(home, image=wide)
    spec = JobSpec("clip", request, request, tmp_path)
    made = render(engine, spec)
    (found,) = read_source(str(made.path))
    assert found.request == made.clip.request
    assert video.read_metadata(made.path)["request"]["image"] == wide
    elsewhere = Home(tmp_path / "elsewhere")
    moved = pictures.adopt(found.request, elsewhere, found.folder, found.pictures)
    with Engine(elsewhere) as another:
        assert np.array_equal(made.clip.frames, another.generate(moved).frames)


@one
def test_pictures_that_can_t_be_had_are_one_sentence(engine: Engine, home: Home, no_loading: None) -> None:
    with pytest.raises(UsageError, match=r"^image: 'gone.png' is not in "):
        engine.generate(asked(home, image="gone.png"))
    with Engine() as homeless, pytest.raises(UsageError, match=r"^image: pictures are kept in "):
        homeless.generate(asked(home))


@one
def test_a_cancel_acts_while_the_picture_is_encoded(engine: Engine, home: Home) -> None:
    before = engine.generate(asked(home)).frames
    encoding = False

    def note(*_: Any) -> None:
        nonlocal encoding
        encoding = True

    hook = pipeline_of(engine).vae.encoder.register_forward_pre_hook(note)
    with pytest.raises(Cancelled):
        engine.generate(asked(home), should_stop=lambda: encoding)
    hook.remove()
    assert np.array_equal(before, engine.generate(asked(home)).frames)
