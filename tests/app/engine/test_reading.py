"""The prompt read first, its encoders freed: the same clip as with them, in every family."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.engine import Engine, acceleration, loading
from app.engine.reading import Remembered, load_after_reading, question
from app.errors import Cancelled, JobFailedError
from app.models.base import Family
from app.progress import Progress
from app.request import AccelPreferences
from tests.app.engines import REQUEST, pipeline_of

FREED = REQUEST.model_copy(update={"accel": AccelPreferences(text_encoder="free")})


def test_a_clip_is_the_same_without_the_text_encoder(engine: Engine, clean: Any, tiny_family: Family) -> None:
    clip = engine.generate(FREED)
    assert np.array_equal(clip.frames, clean)
    encoder = pipeline_of(engine).text_encoder
    assert isinstance(encoder, Remembered)
    assert not list(encoder.parameters())
    assert acceleration.summary(clip.plan).endswith("text encoder freed")
    assert clip.plan["text_encoder"]["engaged"] == "free"
    transformer = pipeline_of(engine).transformer
    other_seed = engine.generate(FREED.model_copy(update={"seed": 8, "steps": 3}))
    assert pipeline_of(engine).transformer is transformer, "another seed asks the same"
    assert not np.array_equal(other_seed.frames, clean)
    plain = REQUEST.model_copy(update={"prompt": "two stars at night"})
    other = engine.generate(plain.model_copy(update={"accel": FREED.accel})).frames
    assert pipeline_of(engine).transformer is not transformer, "another prompt is read anew"
    assert np.array_equal(other, engine.generate(plain).frames)


def test_accelerated_encoders_are_freed_too(engine: Engine, tiny_family: Family) -> None:
    kept = engine.generate(REQUEST.model_copy(update={"accel": AccelPreferences(dtype="bfloat16")}))
    wishes = AccelPreferences(dtype="bfloat16", text_encoder="free", attention="sdpa")
    freed = engine.generate(REQUEST.model_copy(update={"accel": wishes}))
    assert np.array_equal(kept.frames, freed.frames)
    assert freed.report["attention"]["transformer"]["served"] > 0


def test_what_read_the_prompt_is_gone_while_steps_are_made(
    engine: Engine, tiny_family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    stock = loading.load_pipeline

    def load(*args: Any, **more: Any) -> Any:
        gc.collect()
        assert all(one() is None for one in seen), "an encoder was still there when the transformer came"
        pipeline = stock(*args, **more)
        if more.get("bare"):
            assert {part.device.type for part in pipeline.transformer.parameters()} == {"meta"}
            seen.append(weakref.ref(pipeline.text_encoder))
        return pipeline

    monkeypatch.setattr(loading, "load_pipeline", load)
    engine.generate(FREED)
    assert len(seen) == 1


def test_reading_can_be_stopped_and_the_next_clip_is_right(engine: Engine, clean: Any, tiny_family: Family) -> None:
    stages: list[str] = []

    def tell(progress: Progress) -> None:
        stages.append(progress.stage)

    with pytest.raises(Cancelled, match="reading the prompt"):
        engine.generate(FREED, tell, lambda: "text" in stages)
    assert np.array_equal(engine.generate(FREED).frames, clean)


def test_something_new_is_refused_in_a_sentence() -> None:
    class Encoder:
        config, dtype, device = None, torch.float32, torch.device("cpu")

    remembered = Remembered(Encoder(), {question((torch.ones(2),), {}): "said"})
    assert remembered(torch.ones(2)) == "said"
    with pytest.raises(JobFailedError, match=r"have it kept, .*--accel text_encoder=keep"):
        remembered(torch.zeros(2))


def test_questions_differ_by_values_shapes_types_and_names() -> None:
    ones = torch.ones(4)
    asked = [
        ((ones,), {}),
        ((ones.reshape(2, 2),), {}),
        ((ones.double(),), {}),
        ((torch.zeros(4),), {}),
        ((), {"a": ones}),
        ((), {"b": ones}),
        ((ones, ones), {}),
        (([ones, ones],), {}),
        ((ones, True), {}),
        ((ones, 1), {}),
    ]
    assert len({question(*one) for one in asked}) == len(asked)
    assert question((ones,), {"a": {"x": 1}}) == question((ones.clone(),), {"a": {"x": 1}})


def run(pipeline: Any) -> Any:
    from PIL import Image

    known = inspect.signature(type(pipeline).__call__).parameters
    pipeline.set_progress_bar_config(disable=True)
    arguments: dict[str, Any] = {
        "prompt": "a red ball",
        "height": 64,
        "width": 64,
        "num_frames": 9,
        "frames": 9,
        "num_inference_steps": 2,
        "use_resolution_binning": False,
        "output_type": "latent",
        "generator": torch.Generator().manual_seed(1),
    }
    if "image" in known and known["image"].default is inspect.Parameter.empty:
        arguments["image"] = Image.new("RGB", (64, 64), (200, 30, 30))
    with torch.inference_mode():
        return pipeline(**{name: value for name, value in arguments.items() if name in known}).frames


@pytest.mark.parametrize(
    "name",
    [
        "wan-t2v-two",
        "ltx",
        "hunyuan",
        "cogvideox-2b",
        "mochi",
        "skyreels",
        pytest.param("wan-i2v", marks=pytest.mark.long),
        pytest.param("hunyuan-15", marks=pytest.mark.long),
        pytest.param("cogvideox-i2v", marks=pytest.mark.long),
    ],
)
def test_every_family_is_read_alike(name: str, tiny_models: Callable[[str], Path]) -> None:
    folder = tiny_models(name)
    stock = run(loading.load_pipeline(folder, {}))
    told: list[tuple[int, int]] = []
    pipeline = load_after_reading(folder, {}, "cpu", run, lambda pipeline: None, lambda *at: told.append(at))
    assert torch.equal(run(pipeline), stock)
    assert isinstance(pipeline.text_encoder, Remembered)
    of = told[0][1]
    assert told == [(done, of) for done in range(of + 1)] * 2, "each component, those without weights too, both times"
