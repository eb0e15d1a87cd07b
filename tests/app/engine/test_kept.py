"""A clip whose end fails goes on from its final latents (case 52): the same bytes, and never anybody else's latents."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from app.engine import Engine, kept
from app.errors import Cancelled, JobFailedError
from app.models import cogvideox, hunyuan, ltx, mochi, sana, skyreels, wan
from app.models.base import Family
from app.paths import Home
from app.progress import Progress
from tests.app.engine.keeping import counted, denoising, failing, files, kept_of
from tests.app.engines import PLAIN, REQUEST, force_accelerated, pipeline_of
from tests.app.models.families import as_folder, picture, request_for

FAMILIES: list[tuple[Family, str]] = [
    (wan.TI2V_5B, "wan-ti2v"),
    (wan.T2V_1_3B, "wan-t2v"),
    (wan.T2V_A14B, "wan-t2v-two"),
    (wan.I2V_480P, "wan-i2v"),
    (wan.FLF2V, "wan-flf2v"),
    (wan.I2V_A14B, "wan-i2v-two"),
    (ltx.V091, "ltx"),
    (ltx.V095, "ltx-condition"),
    (hunyuan.HUNYUAN, "hunyuan"),
    (hunyuan.V15_480P, "hunyuan-15"),
    (cogvideox.T2V_2B, "cogvideox-2b"),
    (cogvideox.T2V_5B, "cogvideox-5b"),
    (cogvideox.I2V_5B, "cogvideox-i2v"),
    (cogvideox.T2V_15, "cogvideox-15"),
    (cogvideox.I2V_15, "cogvideox-15-i2v"),
    (mochi.MOCHI, "mochi"),
    (skyreels.DF_1_3B, "skyreels-forcing"),
    (skyreels.T2V_540P, "skyreels"),
    (skyreels.I2V_540P, "skyreels-i2v"),
    (sana.SANA_480P, "sana"),
]
QUICK = ("ltx", "hunyuan-15")
"""Tried each time (noise drawn after the last step, no callback); the others in the long run."""


# -- the same clip ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "name"),
    [pytest.param(*one, id=one[1], marks=() if one[1] in QUICK else pytest.mark.long) for one in FAMILIES],
)
def test_the_next_try_goes_on_from_decoding_and_gives_the_same_clip(
    family: Family, name: str, tiny_models: Callable[[str], Path], home: Home
) -> None:
    """Case 52: bit-equal, its denoisers not called once, and counted as if it had never been disturbed."""
    with as_folder(family, tiny_models(name)) as here, Engine(home) as engine:
        request = request_for(here, home)
        if "image" in family.takes:
            request = request.model_copy(update={"image": picture(here, home)})
        plain = engine.generate(request)
        path = kept_of(engine, request)
        seen: list[Progress] = []
        with denoising(engine) as calls:
            clip = engine.generate(request, seen.append, keeps=True, previews=True)
        assert not calls
        assert np.array_equal(clip.frames, plain.frames)
        assert counted(clip.report) == counted(plain.report)
        assert "resumed" not in plain.report
        assert clip.report["resumed"] == kept.WENT_ON
        assert clip.latents == path
        stages = list(dict.fromkeys(progress.stage for progress in seen))
        assert stages[-2:] == ["text", "decoding"]
        assert "denoise" not in clip.timings
        assert seen[-1].fraction > 0.9
        path.unlink()  # as the one does that saves the clip
        with denoising(engine) as calls:
            undisturbed = engine.generate(request, keeps=True)
        assert calls
        assert "resumed" not in undisturbed.report
        assert np.array_equal(undisturbed.frames, plain.frames)


@pytest.mark.parametrize("wish", [{"text_encoder": "free"}, {"cache": "first_block:0.9"}, {"linear": "dynamic_int8"}])
def test_so_it_does_with_every_kind_of_accelerator(engine: Engine, wish: dict[str, str]) -> None:
    """Case 52: an encoder that is gone once it has read, blocks that are used again, packed weights."""
    request = REQUEST.model_copy(update={"accel": PLAIN.model_copy(update=wish), "steps": 6})
    plain = engine.generate(request)
    kept_of(engine, request)
    clip = engine.generate(request, keeps=True)
    assert "resumed" in clip.report
    assert np.array_equal(clip.frames, plain.frames)
    assert counted(clip.report) == counted(plain.report)
    assert np.array_equal(engine.generate(request).frames, plain.frames), "the accelerators are as they were"


@pytest.mark.parametrize("place", ["decoding", "frame"])
def test_a_clip_that_was_stopped_while_decoding_goes_on_too(engine: Engine, place: str) -> None:
    """Case 52: whatever the end was, and as often as it takes."""
    plain = engine.generate(REQUEST).frames
    asked: list[bool] = []

    def look(progress: Progress) -> None:
        asked.extend([True] if progress.stage == "decoding" and progress.step == (place == "frame") else [])

    for _ in range(2):
        asked.clear()
        with pytest.raises(Cancelled, match="Stopped while decoding"):
            engine.generate(REQUEST, look, lambda: bool(asked), keeps=True)
    assert bool(files(engine)) == (place == "frame"), "before the decoder was given anything there is nothing to keep"
    clip = engine.generate(REQUEST, keeps=True)
    assert ("resumed" in clip.report) == (place == "frame")
    assert np.array_equal(clip.frames, plain)


def test_an_earlier_release_of_memory_is_no_longer_needed(engine: Engine) -> None:
    """Case 52: it runs out of memory twice, and the third try still goes on."""
    plain = engine.generate(REQUEST).frames
    first: list[bytes] = []
    for _ in range(2):
        with (
            failing(engine, MemoryError()),
            pytest.raises(JobFailedError, match=r"programs\. Its latents are kept: try"),
        ):
            engine.generate(REQUEST, keeps=True)
        first += [path.read_bytes() for path in files(engine)]
        engine.generate(REQUEST)  # loads the model again
    assert len(first) == 2
    assert first[0] == first[1]
    clip = engine.generate(REQUEST, keeps=True)
    assert "resumed" in clip.report
    assert np.array_equal(clip.frames, plain)


# -- nobody else's ----------------------------------------------------------------------------------------------------

OTHERS: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "two stars"},
    "negative": {"negative_prompt": "sky"},
    "seed": {"seed": 8},
    "steps": {"steps": 2},
    "guidance": {"guidance": 3.5},
    "shift": {"shift": 5.0},
    "frames": {"frames": 9},
    "fps": {"fps": 12.0},
    "dtype": {"accel": PLAIN.model_copy(update={"dtype": "bfloat16"})},
    "tiles": {"accel": PLAIN.model_copy(update={"tiling": "on"})},
}


def test_another_clip_never_gets_them(engine: Engine) -> None:
    """Case 52: whatever the next clip differs in, its own latents are made."""
    asked = REQUEST.model_copy(update={"accel": PLAIN})
    engine.generate(asked)
    path = kept_of(engine, asked)
    for what, change in OTHERS.items():
        other = asked.model_copy(update=change)
        plain = engine.generate(other).frames
        clip = engine.generate(other, keeps=True)
        assert "resumed" not in clip.report, what
        assert np.array_equal(clip.frames, plain), what
        assert clip.latents is not None
        assert clip.latents != path, what
        clip.latents.unlink()
    assert "resumed" in engine.generate(asked, keeps=True).report


def test_nor_does_the_same_request_by_another_plan(engine: Engine) -> None:
    """Case 52: one that an earlier clip was made with, say."""
    plain = engine.generate(REQUEST.model_copy(update={"accel": PLAIN}))
    kept_of(engine, REQUEST)
    clip = engine.generate(REQUEST, recorded_plan=plain.plan, keeps=True)
    assert "resumed" not in clip.report
    assert np.array_equal(clip.frames, plain.frames)


@pytest.mark.parametrize("pictured", [False, True])
def test_tiles_are_the_decoders_own_affair_but_where_a_picture_is_encoded_in_them(
    tiny_models: Callable[[str], Path], home: Home, pictured: bool
) -> None:
    """Case 52: once memory ran out, the next try's plan may take tiles; it goes on all the same."""
    with as_folder(wan.TI2V_5B, tiny_models("wan-ti2v")) as here, Engine(home) as engine:
        request = request_for(here, home, width=512, accel=PLAIN)
        if pictured:
            request = request.model_copy(update={"image": picture(here, home)})
        tiled = engine.generate(request.model_copy(update={"accel": PLAIN.model_copy(update={"tiling": "on"})})).plan
        plain = engine.generate(request, recorded_plan=tiled)
        assert plain.plan["tiling"]["engaged"] == "on"
        assert not np.array_equal(plain.frames, engine.generate(request).frames)
        kept_of(engine, request)
        clip = engine.generate(request, recorded_plan=tiled, keeps=True)
        assert ("resumed" in clip.report) != pictured
        assert np.array_equal(clip.frames, plain.frames)


@pytest.mark.parametrize("what", ["weights", "versions", "picture"])
def test_nor_does_the_same_request_of_other_weights_pictures_or_programs(
    tiny_models: Callable[[str], Path], tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Case 52: the weights have another time, the picture of that name other pixels, torch another version."""
    folder = Path(shutil.copytree(tiny_models("wan-ti2v"), tmp_path / "model"))
    with as_folder(wan.TI2V_5B, folder) as here, Engine(home) as engine:
        request = request_for(here, home, image=picture(here, home))
        engine.generate(request)
        kept_of(engine, request)
        if what == "weights":
            weights = next((folder / "transformer").glob("*.safetensors"))
            tensors = load_file(weights)
            save_file({name: tensor * 1.5 for name, tensor in tensors.items()}, weights, {"format": "pt"})
        elif what == "versions":
            monkeypatch.setattr(kept, "versions", lambda: {"torch": "99"})
        else:
            assert request.image is not None
            shutil.copyfile(home.pictures / picture(here, home, "last_image"), home.pictures / request.image)
        plain = engine.generate(request)
        clip = engine.generate(request, keeps=True)
        assert "resumed" not in clip.report
        assert np.array_equal(clip.frames, plain.frames)


def test_nor_does_one_who_did_not_ask(engine: Engine) -> None:
    """Case 52: a comparison of accelerators times every step, and leaves nothing."""
    engine.generate(REQUEST)
    assert files(engine) == []
    kept_of(engine, REQUEST)
    with denoising(engine) as calls:
        assert "resumed" not in engine.generate(REQUEST).report
    assert calls


def test_latents_of_a_clip_that_became_no_picture_are_dropped(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 52: nobody is sent back to decode the same nothing, and what the reference backends made is not kept."""
    engine.generate(REQUEST)
    force_accelerated(monkeypatch, False)
    processor = type(pipeline_of(engine).video_processor)
    with monkeypatch.context() as spoiled:
        spoiled.setattr(processor, "postprocess_video", lambda self, video, **_: torch.full((1, 5, 3, 64, 64), 0.5))
        with pytest.raises(JobFailedError, match="after decoding") as caught:
            engine.generate(REQUEST, keeps=True)
    assert "kept" not in str(caught.value)
    assert files(engine) == []
    force_accelerated(monkeypatch, True)
    kept_of(engine, REQUEST)
    clips = []
    for _ in range(2):
        pending, inner = [torch.full((1, 5, 3, 64, 64), 0.5)], processor.postprocess_video

        def first_bad(self: Any, video: Any, pending: Any = pending, inner: Any = inner, **named: Any) -> Any:
            return pending.pop() if pending else inner(self, video, **named)

        with monkeypatch.context() as spoiled:
            spoiled.setattr(processor, "postprocess_video", first_bad)
            clips.append(engine.generate(REQUEST, keeps=True))
        assert "retried" in clips[-1].report
        assert clips[-1].latents is None
        assert files(engine) == []
    assert np.array_equal(clips[0].frames, clips[1].frames), "whether the first went on or not"
