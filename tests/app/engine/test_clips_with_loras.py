"""Clips with LoRAs: the engine's road from a request's names to the clip's file and back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.engine import Engine
from app.errors import JobFailedError, UsageError
from app.job_types import JobSpec
from app.models import starter
from app.models.base import Family
from app.paths import Home
from app.presets import read_source
from app.request import AccelPreferences, GenerationRequest, Lora
from app.worker.render import render
from tests.app import lora_files
from tests.app.engines import REQUEST, pipeline_of


@pytest.fixture
def family(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Family:
    """The tiny model with a LoRA of its own, "fast"."""
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    lora_files.save(folder / "fast" / "pytorch_lora_weights.safetensors", lora_files.tensors(seed=5))
    made = replace(
        starter.STARTER.with_folder(folder),
        takes=starter.STARTER.takes | {"lora"},
        loras={"fast": "fast/pytorch_lora_weights.safetensors"},
    )
    monkeypatch.setattr(starter, "FAMILIES", (made,))
    return made


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    lora_files.save(made.loras / "styles" / "soft.safetensors", lora_files.tensors())
    return made


@pytest.fixture
def engine(home: Home, family: Family) -> Iterator[Engine]:
    with Engine(home) as made:
        yield made


def asked(*loras: Lora, **more: object) -> GenerationRequest:
    return REQUEST.model_copy(update={"loras": loras, **more})


SOFT = Lora(name="soft.safetensors")
FAST = Lora(name="fast")


def test_a_lora_acts_with_its_strength_and_leaves_nothing_behind(engine: Engine) -> None:
    plain = engine.generate(asked())
    loaded = pipeline_of(engine)
    soft = engine.generate(asked(SOFT))
    assert soft.report["loras"] == [{"name": "soft.safetensors", "weight": 1.0, "layers": {"transformer": 6}}]
    assert "loras" not in plain.report
    assert not np.array_equal(soft.frames, plain.frames)
    fast, both = engine.generate(asked(FAST)).frames, engine.generate(asked(SOFT, FAST)).frames
    weaker = engine.generate(asked(Lora(name="soft.safetensors", weight=0.2))).frames
    clips = [plain.frames, soft.frames, fast, both, weaker]
    assert len({clip.tobytes() for clip in clips}) == len(clips)
    assert np.array_equal(engine.generate(asked(Lora(name="soft.safetensors", weight=0))).frames, plain.frames)
    assert np.array_equal(engine.generate(asked(SOFT)).frames, soft.frames)
    assert np.array_equal(engine.generate(asked()).frames, plain.frames)
    assert pipeline_of(engine) is loaded, "nothing was loaded anew"
    assert not [name for name in loaded.transformer.state_dict() if "lora" in name or "base_layer" in name]


def test_with_packed_linears_close_to_without(engine: Engine) -> None:
    packed = AccelPreferences(linear="dynamic_int8")
    plain, want = engine.generate(asked()).frames, engine.generate(asked(SOFT)).frames
    got = engine.generate(asked(SOFT, accel=packed))
    error, effect = (np.abs(other.astype(int) - want).mean() for other in (got.frames, plain))
    print("int8 differs by", error, "the LoRA by", effect)
    assert error < effect
    assert got.report["linear"]["transformer"]["served"] > 0
    assert np.array_equal(got.frames, engine.generate(asked(SOFT, accel=packed)).frames)


def test_a_clip_s_file_names_its_loras_and_makes_it_again(engine: Engine, tmp_path: Path) -> None:
    request = asked(Lora(name="styles/soft.safetensors", weight=0.5), FAST)
    made = render(engine, JobSpec("clip", request, request, tmp_path))
    (found,) = read_source(str(made.path))
    assert found.request == made.clip.request
    assert np.array_equal(engine.generate(found.request).frames, made.clip.frames)


def test_layers_that_are_left_out_stand_with_the_clip(engine: Engine, home: Home) -> None:
    lora_files.save(home.loras / "deep.safetensors", lora_files.tensors(blocks=3))
    (said,) = engine.generate(asked(Lora(name="deep.safetensors"))).adjustments
    assert said.field == "loras"
    assert "blocks.2.attn1.to_q" in said.reason


def test_what_is_missing_is_said_before_anything_loads(engine: Engine, no_loading: None) -> None:
    with pytest.raises(UsageError, match=r"^LoRA 'gone.safetensors' is missing"):
        engine.generate(asked(Lora(name="gone.safetensors")))


def test_a_lora_of_another_model_fails_its_clip_and_not_the_next(engine: Engine, home: Home) -> None:
    plain = engine.generate(asked()).frames
    lora_files.save(home.loras / "wide.safetensors", lora_files.tensors(width=48))
    with pytest.raises(UsageError, match="takes 48 numbers, that of Starter 64"):
        engine.generate(asked(SOFT, Lora(name="wide.safetensors")))
    assert np.array_equal(engine.generate(asked()).frames, plain)


def test_latents_that_were_kept_are_those_of_the_loras_that_made_them(
    engine: Engine, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 52: another file of that name makes another clip."""
    plain = engine.generate(asked(SOFT)).frames
    with monkeypatch.context() as spoiled:
        spoiled.setattr("app.engine.to_frames", lambda video: 1 / 0)
        for _ in range(2):
            with pytest.raises(JobFailedError, match="goes on from decoding"):
                engine.generate(asked(SOFT), keeps=True)
    went_on = engine.generate(asked(SOFT), keeps=True)
    assert "resumed" in went_on.report
    assert np.array_equal(went_on.frames, plain)
    lora_files.save(home.loras / "styles" / "soft.safetensors", lora_files.tensors(seed=9))
    clip = engine.generate(asked(SOFT), keeps=True)
    assert "resumed" not in clip.report
    assert not np.array_equal(clip.frames, plain)
