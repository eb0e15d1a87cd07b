"""The engine on a real, tiny pipeline: the same request gives the same bytes, whatever happened before."""

import gc
import itertools
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.wan import pipeline_wan

from accel.backends import REGISTRY
from accel.contract import Backend
from app.engine import Engine, Frames, loading
from app.engine.calling import SCHEDULERS, to_frames
from app.errors import Cancelled, CannotRunError, UsageError
from app.models import all_families
from app.models.base import Family
from app.progress import Progress
from app.request import AccelPreferences
from tests.app.engines import PLAIN, REQUEST, hooks_of, pipeline_of


class StopWhen:
    """Asks to stop once a message fits, and remembers all messages."""

    def __init__(self, fits: Callable[[Progress], bool]) -> None:
        self.fits, self.asked, self.seen = fits, False, list[Progress]()

    def tell(self, progress: Progress) -> None:
        self.seen.append(progress)
        self.asked = self.asked or self.fits(progress)

    def __call__(self) -> bool:
        return self.asked


# -- the same bytes ---------------------------------------------------------------------------------------------------


def test_same_request_same_bytes_and_another_seed_others(engine: Engine, clean: Frames, tiny_family: Family) -> None:
    assert clean.dtype == np.uint8
    assert clean.shape == (5, 64, 64, 3)
    assert np.array_equal(clean, engine.generate(REQUEST).frames)
    with Engine() as another:
        assert np.array_equal(clean, another.generate(REQUEST).frames)
    assert not np.array_equal(clean, engine.generate(REQUEST.model_copy(update={"seed": 8})).frames)


@pytest.fixture(scope="module")
def bare(tiny_folder: Path) -> Frames:
    """REQUEST by a diffusers script of four lines, in float32."""
    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained(str(tiny_folder))
    video = pipeline(
        REQUEST.prompt,
        height=64,
        width=64,
        num_frames=5,
        num_inference_steps=3,
        guidance_scale=4.0,
        max_sequence_length=64,
        generator=torch.Generator().manual_seed(7),
    ).frames[0]
    return np.asarray((video * 255).round(), dtype=np.uint8)


def test_on_the_reference_backends_equal_to_a_bare_diffusers_script(engine: Engine, bare: Frames) -> None:
    assert np.array_equal(engine.generate(REQUEST.model_copy(update={"accel": PLAIN})).frames, bare)


def test_accelerated_close_to_a_bare_diffusers_script(clean: Frames, bare: Frames) -> None:
    error = np.abs(clean.astype(int) - bare.astype(int))
    print("difference in 8-bit steps: largest", error.max(), "mean", error.mean())
    assert error.mean() < 1, "the automatic plan takes exact backends alone: what is left is the rounding of its dtype"


def test_settings_reach_the_pipeline(engine: Engine, clean: Frames) -> None:
    for change in (
        {"steps": 2},
        {"guidance": 1.0},
        {"shift": 5.0},
        {"prompt": "two stars"},
        {"negative_prompt": "sky"},
    ):
        other = engine.generate(REQUEST.model_copy(update=change)).frames
        assert not np.array_equal(clean, other), change
    assert np.array_equal(clean, engine.generate(REQUEST).frames), "an override must not outlive its clip"


@pytest.mark.parametrize("backend", REGISTRY, ids=lambda backend: f"{backend.kind}-{backend.name}")
def test_a_clip_is_the_same_alone_and_in_a_series(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    """Case 53: each clip of a series starts from its own seed's noise, made on the CPU; so all of it is bit-equal."""
    noises: list[torch.Tensor] = []
    draw = pipeline_wan.randn_tensor

    def drawn(*arguments: Any, generator: torch.Generator, **named: Any) -> torch.Tensor:
        assert generator.device.type == "cpu"
        noises.append(draw(*arguments, generator=generator, **named))
        return noises[-1]

    monkeypatch.setattr(pipeline_wan, "randn_tensor", drawn)
    wish = {backend.kind: backend.name, "dtype": "auto"}
    asked = REQUEST.model_copy(update={"seed": 1234, "accel": PLAIN.model_copy(update=wish)})
    try:
        made = [engine.generate(one).frames for one in asked.model_copy(update={"count": 2}).expand()]
    except CannotRunError as error:
        pytest.skip(str(error))
    alone = [engine.generate(asked.model_copy(update={"seed": seed})).frames for seed in (1235, 1234)]
    assert torch.equal(noises[0], noises[3])
    assert torch.equal(noises[1], noises[2])
    assert not torch.equal(noises[0], noises[1])
    assert np.array_equal(made, alone[::-1])


def test_previews_are_pictures_and_change_nothing(
    engine: Engine, clean: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.engine.watcher._PREVIEW_SECONDS", 0.0)
    seen: list[Progress] = []
    clip = engine.generate(REQUEST, seen.append, previews=True)
    assert np.array_equal(clean, clip.frames)
    pictures = [progress.preview for progress in seen if progress.preview is not None]
    assert len(pictures) == 3
    assert all(picture.dtype == np.uint8 and picture.shape == (3, 16, 16, 3) for picture in pictures)
    engine.generate(REQUEST, seen.append)
    assert all(progress.preview is None for progress in seen[-5:]), "no pictures unless asked for"


def test_what_previews_ask_of_the_vae_is_not_counted_as_the_clip_s(
    tiny_family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first clip of a VAE said 440/440 and the next one 312/312."""
    monkeypatch.setattr("app.engine.watcher._PREVIEW_SECONDS", 0.0)
    request = REQUEST.model_copy(update={"accel": AccelPreferences(vae="direct_conv3d")})
    counts = []
    with Engine() as fresh:
        for previews in (True, True, False):
            report = fresh.generate(request, lambda progress: None, previews=previews).report
            counts.append({name: (entry["calls"], entry["served"]) for name, entry in report["vae"].items()})
    assert counts[0] == counts[1] == counts[2]
    assert all(calls for calls, _ in counts[0].values())


def test_an_empty_prompt_runs_unconditionally(engine: Engine) -> None:
    engine.generate(REQUEST)
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    hook = pipeline_of(engine).transformer.register_forward_pre_hook(count)
    engine.generate(REQUEST)
    guided, calls = calls, 0
    for prompt in ("", "  \n "):
        engine.generate(REQUEST.model_copy(update={"prompt": prompt}))
    hook.remove()
    assert (guided, calls) == (2 * 3, 2 * 3), "two forwards a step with guidance, one without"


def test_a_null_seed_becomes_one_that_is_stored(engine: Engine) -> None:
    clip = engine.generate(REQUEST.model_copy(update={"seed": None}))
    assert clip.request.seed is not None
    assert np.array_equal(clip.frames, engine.generate(clip.request).frames)


def test_a_request_that_does_not_fit_is_adjusted_and_said(engine: Engine) -> None:
    clip = engine.generate(REQUEST.model_copy(update={"frames": 7, "width": 70}))
    assert clip.frames.shape == (5, 64, 64, 3)
    assert {item.field for item in clip.adjustments} == {"frames", "width"}
    assert clip.tokens["used"] <= clip.tokens["limit"] == 64


# -- progress and time ------------------------------------------------------------------------------------------------


def test_progress_goes_through_the_stages_and_never_back(engine: Engine) -> None:
    seen: list[Progress] = []
    clip = engine.generate(REQUEST, seen.append)
    stages = list(dict.fromkeys(progress.stage for progress in seen))
    assert stages == ["loading", "text", "denoising", "decoding"]
    assert all(a.fraction <= b.fraction for a, b in itertools.pairwise(seen))
    assert [p.step for p in seen if p.stage == "denoising" and p.step] == [1, 2, 3]
    decoding = [p for p in seen if p.stage == "decoding"]
    assert decoding[-1].step == decoding[-1].steps == 3, "5 frames are 3 latent frames"
    assert {"load", "text", "denoise", "decode", "total"} == set(clip.timings)
    assert all(seconds >= 0 for seconds in clip.timings.values())
    again: list[Progress] = []
    engine.generate(REQUEST, again.append)
    assert again[1].eta_seconds is not None, "the second clip of a kind has an estimate from its start"
    assert again[1].stage == "loading"


def test_the_model_stays_loaded_until_model_or_plan_change(
    engine: Engine, clean: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Path] = []
    load = loading.load_pipeline

    def counted(folder: Path, *others: Any, **named: Any) -> Any:
        loads.append(folder)
        return load(folder, *others, **named)

    monkeypatch.setattr(loading, "load_pipeline", counted)
    engine.generate(REQUEST)
    engine.generate(REQUEST.model_copy(update={"steps": 2, "frames": 9}))
    assert not loads
    plans = [PLAIN.model_copy(update={"dtype": dtype}) for dtype in ("float32", "bfloat16", "float32")]
    for plan in plans:
        engine.generate(REQUEST.model_copy(update={"accel": plan}))
        engine.generate(REQUEST.model_copy(update={"accel": plan}))
    assert len(loads) == 3


def test_close_gives_the_model_back(engine: Engine, clean: Frames) -> None:
    alive = weakref.ref(pipeline_of(engine).transformer)
    engine.close()
    gc.collect()
    assert alive() is None
    assert np.array_equal(clean, engine.generate(REQUEST).frames)


# -- cancel -----------------------------------------------------------------------------------------------------------

PHASES: dict[str, Callable[[Progress], bool]] = {
    "loading the model": lambda p: p.stage == "loading" and p.step == 2,
    "reading the prompt": lambda p: p.stage == "text",
    "denoising, step 0 of 3": lambda p: p.stage == "denoising",
    "denoising, step 2 of 3": lambda p: p.stage == "denoising" and p.step == 2,
    "decoding": lambda p: p.stage == "decoding" and p.step == 1,
}


@pytest.mark.parametrize("place", PHASES)
def test_cancel_acts_in_every_phase_and_the_next_clip_is_clean(engine: Engine, clean: Frames, place: str) -> None:
    """Case 40: while the model is loaded (row 42, seen too: ComfyUI issue 1920), while it works, and while frames are
    decoded.
    """
    if place.startswith("loading"):
        engine.close()
    stop = StopWhen(PHASES[place])
    with pytest.raises(Cancelled, match=f"Stopped while {place}") as caught:
        engine.generate(REQUEST, stop.tell, stop)
    assert caught.value.__context__ is None, "no traceback that keeps tensors alive"
    after = len([p for p in stop.seen if stop.fits(p)])
    assert after <= 1, "nothing more was done once it was asked to stop"
    if engine._loaded is not None:
        assert hooks_of(pipeline_of(engine)) == 0
    assert np.array_equal(clean, engine.generate(REQUEST).frames)


def test_cancel_acts_within_a_step(engine: Engine, clean: Frames) -> None:
    """Asked during the first block of the second step: the second block of that forward must not run."""
    blocks = pipeline_of(engine).transformer.blocks
    calls: list[int] = []
    hooks = [
        block.register_forward_hook(lambda *_, number=number: calls.append(number))
        for number, block in enumerate(blocks)
    ]
    with pytest.raises(Cancelled):
        engine.generate(REQUEST, should_stop=lambda: len(calls) == 5)
    for hook in hooks:
        hook.remove()
    assert calls == [0, 1, 0, 1, 0]


def test_a_long_clip_stops_within_a_step_and_the_next_one_begins_at_once(engine: Engine, clean: Frames) -> None:
    """Case 40: of 200 steps, told to stop at the fifth."""
    stop = StopWhen(lambda progress: progress.stage == "denoising" and progress.step == 5)
    calls: list[int] = []
    hook = pipeline_of(engine).transformer.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(Cancelled, match="Stopped while denoising, step 5 of 200"):
        engine.generate(REQUEST.model_copy(update={"steps": 200}), stop.tell, stop)
    hook.remove()
    assert len(calls) == 2 * 5, "two forwards a step, and none of the sixth"
    seen: list[Progress] = []
    assert np.array_equal(clean, engine.generate(REQUEST, seen.append).frames)
    assert not [progress for progress in seen if progress.stage == "loading" and progress.steps > 1], "still loaded"


def test_cancel_acts_between_tiles(engine: Engine) -> None:
    """Case 40: while a frame is decoded in tiles, no further one is begun."""
    wide = REQUEST.model_copy(update={"width": 512, "accel": PLAIN.model_copy(update={"tiling": "on"})})
    engine.generate(wide)
    calls: list[int] = []
    hook = pipeline_of(engine).vae.decoder.register_forward_hook(lambda *_: calls.append(1))
    engine.generate(wide)
    whole = len(calls)
    calls.clear()
    with pytest.raises(Cancelled, match="Stopped while decoding"):
        engine.generate(wide, should_stop=lambda: len(calls) == 2)
    hook.remove()
    assert len(calls) == 2 < whole


def test_cancel_asked_before_it_began(engine: Engine, clean: Frames) -> None:
    with pytest.raises(Cancelled):
        engine.generate(REQUEST, should_stop=lambda: True)


# -- limits -----------------------------------------------------------------------------------------------------------


def test_what_families_offer_the_engine_can_do() -> None:
    for family in all_families():
        assert set(family.schedulers) <= set(SCHEDULERS), family.name
        passed = {"negative_prompt", "shift", "image", "last_image", "lora"}
        assert family.takes <= passed, f"{family.name} takes what no code here passes on"


def test_unknown_model_is_refused_before_anything_loads() -> None:
    with pytest.raises(UsageError, match=r"--models\) has all"):
        Engine().generate(REQUEST.model_copy(update={"model": "nothing"}))


def test_frames_round_like_diffusers() -> None:
    from diffusers.image_processor import VaeImageProcessor

    video = torch.rand(1, 3, 3, 6, 4, generator=torch.Generator().manual_seed(0))
    video[0, 0, 0, 0, :4] = torch.tensor([0.0, 1.0, 0.5 / 255, 1.5 / 255])
    arrays = video[0].permute(0, 2, 3, 1).numpy()
    expected = np.stack([np.asarray(picture) for picture in VaeImageProcessor.numpy_to_pil(arrays)])
    assert np.array_equal(to_frames(video), expected)
    # bf16 has 8 bits: scaling by 255 must happen in float32
    assert np.array_equal(to_frames(video.bfloat16()), to_frames(video.bfloat16().float()))


def test_importing_the_engine_imports_no_torch() -> None:
    heavy = {"torch", "diffusers", "transformers", "gradio"}
    code = f"import sys, app.engine, app.worker.render; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
