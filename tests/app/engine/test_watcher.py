"""A stage of its own while blocks are compiled, which happens in the transformer's first call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from accel.install import FirstCall, Installation
from app.engine.alone import Alone
from app.engine.watcher import Watcher
from app.progress import Progress, StageClock
from tests import builders


def test_compiling_is_told_and_timed_apart_from_denoising() -> None:
    transformer: Any = torch.nn.Linear(2, 2)
    pipeline: Any = SimpleNamespace(transformer=transformer, vae=torch.nn.Linear(1, 1), scheduler=None, config=None)
    installation = Installation(builders.plan())
    installation.components["transformer"] = transformer
    installation.uncompiled.add("transformer")
    transformer._accel_installation = installation
    first = FirstCall("transformer", installation.uncompiled, installation.compile_seconds)
    transformer.register_forward_pre_hook(first.begin)
    transformer.register_forward_hook(first.end)

    moments = iter(range(1000))
    clock, seen = StageClock(now=lambda: float(next(moments))), list[Progress]()
    clock.enter("text")
    with Watcher(pipeline, clock, 2, Alone(), on_progress=seen.append) as watcher:
        for step in range(2):
            for _ in range(2):
                transformer(torch.zeros(1, 2))
            watcher.step_end(pipeline, step, None, {"latents": torch.ones(1, 1, 1, 1)})
    assert [item.stage for item in seen] == ["compiling", "denoising", "denoising", "denoising", "decoding"]
    assert clock.timings()["compile"] > 0
    assert list(installation.compile_seconds) == ["transformer"]

    clock, seen = StageClock({"compile": 60.0, "text": 1.0, "denoise": 1.0, "decode": 1.0}), []
    clock.enter("text")
    with Watcher(pipeline, clock, 1, Alone(), on_progress=seen.append):
        transformer(torch.zeros(1, 2))
    assert [item.stage for item in seen] == ["denoising"]
    assert seen[0].eta_seconds is not None
    assert seen[0].eta_seconds < 5
