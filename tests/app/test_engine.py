"""The engine on a real, tiny pipeline: the same request gives the same bytes, whatever happened before."""

import gc
import itertools
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from app import loading  # noqa: E402
from app.calling import SCHEDULERS, scheduler_for, to_frames  # noqa: E402
from app.engine import Engine, Frames  # noqa: E402
from app.errors import Cancelled, CannotRunError, JobFailedError, UsageError  # noqa: E402
from app.models import all_families  # noqa: E402
from app.models.base import Family  # noqa: E402
from app.progress import STAGES, Progress  # noqa: E402
from app.request import AccelPreferences, GenerationRequest  # noqa: E402
from tests.app.tiny_family import tiny_family, tiny_folder  # noqa: E402, F401

REQUEST = GenerationRequest(prompt="a red ball", width=64, height=64, frames=5, steps=3, seed=7)

PLAIN = AccelPreferences(attention="sdpa", linear="stock", text_encoder_linear="stock", vae="stock", dtype="float32")


@pytest.fixture
def engine(tiny_family: Family) -> Iterator[Engine]:  # noqa: F811
    with Engine() as made:
        yield made


@pytest.fixture
def clean(engine: Engine) -> Frames:
    """What REQUEST gives when nothing went wrong before."""
    return engine.generate(REQUEST).frames


def pipeline_of(engine: Engine) -> Any:
    assert engine._loaded is not None
    return engine._loaded.pipeline


def hooks_of(pipeline: Any) -> int:
    parts = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    return sum(len(module._forward_pre_hooks) for part in parts for module in part.modules())


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


def test_same_request_same_bytes_and_another_seed_others(engine: Engine, clean: Frames, tiny_family: Family) -> None:  # noqa: F811
    assert clean.dtype == np.uint8
    assert clean.shape == (5, 64, 64, 3)
    assert np.array_equal(clean, engine.generate(REQUEST).frames)
    with Engine() as another:
        assert np.array_equal(clean, another.generate(REQUEST).frames)
    assert not np.array_equal(clean, engine.generate(REQUEST.model_copy(update={"seed": 8})).frames)


@pytest.fixture(scope="module")
def bare(tiny_folder: Path) -> Frames:  # noqa: F811
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


def test_previews_are_pictures_and_change_nothing(
    engine: Engine, clean: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.watcher._PREVIEW_SECONDS", 0.0)
    seen: list[Progress] = []
    clip = engine.generate(REQUEST, seen.append, previews=True)
    assert np.array_equal(clean, clip.frames)
    pictures = [progress.preview for progress in seen if progress.preview is not None]
    assert len(pictures) == 3
    assert all(picture.dtype == np.uint8 and picture.shape == (3, 16, 16, 3) for picture in pictures)
    engine.generate(REQUEST, seen.append)
    assert all(progress.preview is None for progress in seen[-5:]), "no pictures unless asked for"


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
    assert stages == list(STAGES[:4])
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

    def counted(folder: Path, *others: Any) -> Any:
        loads.append(folder)
        return load(folder, *others)

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


def test_cancel_asked_before_it_began(engine: Engine, clean: Frames) -> None:
    with pytest.raises(Cancelled):
        engine.generate(REQUEST, should_stop=lambda: True)


# -- failures ---------------------------------------------------------------------------------------------------------


class SpoilStep:
    """A scheduler's step that gives NaN at one step, as often as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int, times: int) -> None:
        self.left, self.step, self.calls = times, step, 0
        make = scheduler_for

        def spoiled(request: GenerationRequest, config: dict[str, Any]) -> Any:
            scheduler = make(request, config)
            original, self.calls = scheduler.step, 0

            def step(*arguments: Any, **options: Any) -> Any:
                self.calls += 1
                result = original(*arguments, **options)
                if self.calls == self.step and self.left:
                    self.left -= 1
                    result[0][..., 0] = float("nan")
                return result

            scheduler.step = step
            return scheduler

        monkeypatch.setattr("app.engine.scheduler_for", spoiled)


def force_accelerated(monkeypatch: pytest.MonkeyPatch, value: bool) -> None:
    monkeypatch.setattr("app.acceleration.Engaged.accelerated", property(lambda self: value))


def test_nan_is_retried_once_on_the_reference_backends(
    engine: Engine, clean: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_accelerated(monkeypatch, True)
    SpoilStep(monkeypatch, step=3, times=1)
    clip = engine.generate(REQUEST)
    assert "at step 3 of 3" in clip.report["retried"]
    assert clip.report["retried"].endswith("made again with the reference backends.")
    again = engine.generate(REQUEST)
    assert "retried" not in again.report
    assert np.array_equal(clean, again.frames), "the accelerators are back as they were"


@pytest.mark.parametrize("accelerated", [True, False])
def test_nan_that_stays_fails_the_clip_by_step_and_backend(
    engine: Engine, clean: Frames, monkeypatch: pytest.MonkeyPatch, accelerated: bool
) -> None:
    force_accelerated(monkeypatch, accelerated)
    with monkeypatch.context() as spoiled:
        spoil = SpoilStep(spoiled, step=2, times=9)
        with pytest.raises(JobFailedError, match=r"at step 2 of 3, with .*no clip was saved") as caught:
            engine.generate(REQUEST)
        assert spoil.left == (7 if accelerated else 8), "one retry, and none where there is nothing else to try"
        assert ("reference backends again" in str(caught.value)) == accelerated
    assert np.array_equal(clean, engine.generate(REQUEST).frames)


@pytest.mark.parametrize("value", [0.5, float("nan")])
def test_frames_that_are_no_picture_fail_the_clip(
    engine: Engine, clean: Frames, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    force_accelerated(monkeypatch, False)
    processor = type(pipeline_of(engine).video_processor)
    with monkeypatch.context() as spoiled:
        spoiled.setattr(processor, "postprocess_video", lambda self, video, **_: torch.full((1, 5, 3, 64, 64), value))
        with pytest.raises(JobFailedError, match="after decoding"):
            engine.generate(REQUEST)
    assert np.array_equal(clean, engine.generate(REQUEST).frames)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 9 bytes"),
    ],
)
def test_running_out_of_memory_frees_the_model_and_the_next_clip_works(
    engine: Engine, clean: Frames, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    alive = weakref.ref(pipeline_of(engine).transformer)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as spoiled:
        spoiled.setattr(type(pipeline_of(engine).vae), "decode", fail)
        with pytest.raises(JobFailedError, match=r"Out of memory while decoding \(64x64, 5 frames\): try") as caught:
            engine.generate(REQUEST)
    error.__traceback__ = None
    gc.collect()
    assert alive() is None, "a failed clip must not hold the model"
    assert "decode" in caught.value.detail  # type: ignore[attr-defined]
    assert np.array_equal(clean, engine.generate(REQUEST).frames)


def test_an_error_nobody_foresaw_is_one_sentence_with_its_place(
    engine: Engine, clean: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("the wheel came off\nand rolled away")

    with monkeypatch.context() as spoiled:
        spoiled.setattr(type(pipeline_of(engine).text_encoder), "forward", fail)
        with pytest.raises(JobFailedError) as caught:
            engine.generate(REQUEST)
    assert str(caught.value) == "The clip failed while reading the prompt (64x64, 5 frames): the wheel came off"
    assert hooks_of(pipeline_of(engine)) == 0
    assert np.array_equal(clean, engine.generate(REQUEST).frames)


def test_what_a_listener_raises_passes_through_and_leaves_no_hooks(engine: Engine, clean: Frames) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == "denoising":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(REQUEST, interrupt)
    assert hooks_of(pipeline_of(engine)) == 0
    assert np.array_equal(clean, engine.generate(REQUEST).frames)


def test_two_clips_at_once_are_refused(engine: Engine) -> None:
    refused: list[str] = []

    def intrude(progress: Progress) -> None:
        if progress.stage == "denoising" and not refused:
            with pytest.raises(JobFailedError) as caught:
                engine.generate(REQUEST)
            refused.append(str(caught.value))

    engine.generate(REQUEST, intrude)
    assert refused == ["The engine is already making a clip: wait for it, or use a second engine."]


# -- models that are not whole ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "model_index.json").unlink(), "has no model_index.json"),
        (lambda folder: (folder / "model_index.json").write_text("{"), "can't be read"),
        (lambda folder: (folder / "vae").rename(folder / "gone"), "lacks vae"),
        (lambda folder: (folder / "vae" / "config.json").unlink(), "can't be loaded"),
        (
            lambda folder: (folder / "transformer" / "diffusion_pytorch_model.safetensors").write_bytes(b"12345678"),
            "can't be loaded",
        ),
    ],
)
def test_a_model_that_is_not_whole_is_said_in_one_sentence(
    tiny_folder: Path,  # noqa: F811
    tmp_path: Path,
    damage: Callable[[Path], Any],
    words: str,
) -> None:
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    damage(folder)
    with pytest.raises(CannotRunError, match=words) as caught:
        loading.load_pipeline(folder, {})
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_loading_tells_each_component_and_loads_it_once(
    tiny_folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from diffusers import DiffusionPipeline, WanTransformer3DModel

    loads = []
    load = WanTransformer3DModel.from_pretrained

    def counted(place: str, **options: Any) -> Any:
        loads.append(place)
        return load(place, **options)

    monkeypatch.setattr(WanTransformer3DModel, "from_pretrained", counted)
    seen: list[tuple[int, int]] = []
    dtypes = {"default": "float32", "transformer": "bfloat16"}
    pipeline = loading.load_pipeline(tiny_folder, dtypes, lambda *at: seen.append(at))
    assert loads == [str(tiny_folder / "transformer")]
    assert seen == [(done, 5) for done in range(6)]
    assert pipeline.transformer.dtype == torch.bfloat16
    assert pipeline.vae.dtype == torch.float32
    monkeypatch.undo()
    stock = DiffusionPipeline.from_pretrained(str(tiny_folder))
    assert type(pipeline) is type(stock)
    assert dict(pipeline.config) == dict(stock.config)
    assert set(pipeline.components) == set(stock.components)


def test_pickled_weights_are_not_read(tiny_folder: Path, tmp_path: Path) -> None:  # noqa: F811
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    torch.save(loading.load_pipeline(tiny_folder, {}).vae.state_dict(), weights.with_suffix(".bin"))
    weights.unlink()
    with pytest.raises(CannotRunError, match="can't be loaded"):
        loading.load_pipeline(folder, {})


# -- limits -----------------------------------------------------------------------------------------------------------


def test_what_families_offer_the_engine_can_do() -> None:
    for family in all_families():
        assert set(family.schedulers) <= set(SCHEDULERS), family.name
        assert family.takes <= {"negative_prompt", "shift"}, f"{family.name} takes what no code here passes on"


def test_unknown_model_is_refused_before_anything_loads() -> None:
    with pytest.raises(UsageError, match="Known models"):
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
    code = f"import sys, app.engine, app.render; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
