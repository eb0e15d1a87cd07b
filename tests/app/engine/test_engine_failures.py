"""An engine whose clips fail: one sentence, nothing left behind, and the next clip as if nothing had happened."""

from typing import Any

import numpy as np
import pytest
import torch

from app.engine import Engine, Frames
from app.errors import JobFailedError
from app.progress import Progress
from tests.app.engines import REQUEST, SpoilStep, force_accelerated, hooks_of, pipeline_of


def test_nan_is_retried_once_on_the_reference_backends(
    engine: Engine, clean: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 16: one more try, by what every machine has."""
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
    """Case 16: the job fails by name, and no flat clip is saved."""
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
