"""What clips leave behind in memory: the model, and nothing that grows, however they ended."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from app.engine import Engine, Frames, acceleration
from app.errors import Cancelled, JobFailedError
from app.models import starter
from app.models.base import Family
from app.progress import Progress
from app.request import GenerationRequest
from tests.app.engines import REQUEST, pipeline_of, resident_bytes, tensor_bytes

ALLOWED = 1.02
"""How much more may lie in memory afterwards."""


@pytest.fixture
def held(tiny_family: Family) -> int:
    """Bytes of tensors before there is an engine. A model that was described stays so, without its weights."""
    _described(tiny_family)
    return tensor_bytes()


def _described(family: Family) -> int:
    """Bytes that describing a model takes."""
    assert family.folder is not None
    before = tensor_bytes()
    acceleration.traits(family.folder, 64, 64, 5)
    return tensor_bytes() - before


def is_flat(engine: Engine, requests: list[GenerationRequest], period: int = 1) -> None:
    """Make clips with previews; from the second round on each leaves as much as the one before it in its turn."""
    tensors, resident = [], []
    for request in requests:
        engine.generate(request, lambda progress: None, previews=True)
        tensors.append(tensor_bytes())
        resident.append(resident_bytes())
    print("tensors", tensors, "resident", resident)
    assert tensors[period + 1 :] == tensors[1 : len(tensors) - period], "to the byte"
    assert resident[-1] <= max(resident[1 : period + 1]) * ALLOWED


def test_five_clips_leave_what_two_do_and_closing_gives_it_back(
    held: int, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 44: memory is flat after the second run; unloading returns to where it was before the first."""
    monkeypatch.setattr("app.engine.watcher._PREVIEW_SECONDS", 0.0)
    is_flat(engine, [REQUEST.model_copy(update={"seed": seed}) for seed in range(5)])
    engine.close()
    assert tensor_bytes() == held


def test_two_models_in_turns_leave_one(
    held: int,
    engine: Engine,
    tiny_family: Family,
    tiny_models: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case 44: A, B, A, B, A."""
    other = replace(tiny_family, name="other").with_folder(tiny_models("wan-ti2v"))
    held += _described(other)
    monkeypatch.setattr(starter, "FAMILIES", (tiny_family, other))
    requests = [REQUEST.model_copy(update={"model": name}) for name in ("starter", "other") * 2 + ("starter",)]
    is_flat(engine, requests, period=2)
    during: list[int] = []

    def look(progress: Progress) -> None:
        if progress.stage == "loading" and progress.steps > 1 and progress.step == 0:
            during.append(tensor_bytes())

    engine.generate(requests[1], look)
    assert during == [held], "the one goes before the other comes"
    engine.close()
    assert tensor_bytes() == held


@pytest.mark.parametrize("stage", ["loading", "text", "denoising", "decoding"])
def test_a_cancelled_clip_leaves_no_more_than_a_finished_one(held: int, engine: Engine, stage: str) -> None:
    """Case 44: the same holds after a cancel, while what says so is still looked at."""
    engine.generate(REQUEST)
    kept = tensor_bytes()
    if stage == "loading":
        engine.close()
    seen: list[str] = []
    with pytest.raises(Cancelled) as caught:
        engine.generate(REQUEST, lambda progress: seen.append(str(progress.stage)), lambda: stage in seen)
    assert str(caught.value)
    assert tensor_bytes() <= kept * ALLOWED, "a scheduler's times may be those of a thousand steps"
    engine.close()
    assert tensor_bytes() == held


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (MemoryError, ""),
        (RuntimeError, "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 9 bytes"),
        (OSError, "[Errno 12] Cannot allocate memory"),
    ],
)
def test_running_out_of_memory_frees_everything_and_the_clip_that_fitted_still_does(
    held: int, engine: Engine, clean: Frames, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], text: str
) -> None:
    """Case 45: a clip, one of ten times the frames that runs out of memory, and the first again."""

    def fail(self: Any, latents: torch.Tensor, *_: Any, **__: Any) -> None:
        raise kind(text)

    with monkeypatch.context() as spoiled:
        spoiled.setattr(type(pipeline_of(engine).vae), "decode", fail)
        with pytest.raises(JobFailedError, match=r"Out of memory while decoding \(64x64, 49 frames\): try") as caught:
            engine.generate(REQUEST.model_copy(update={"frames": 49}))
    assert tensor_bytes() == held, "a failed clip must not hold the model or what it was given"
    assert "decode" in caught.value.detail  # type: ignore[attr-defined]
    assert np.array_equal(clean, engine.generate(REQUEST).frames)
