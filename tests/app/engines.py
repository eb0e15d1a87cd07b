"""What the tests of the engine share. The engine itself is a fixture."""

import gc
from typing import Any

import psutil
import pytest

from app.engine import Engine
from app.engine.calling import scheduler_for
from app.request import AccelPreferences, GenerationRequest

REQUEST = GenerationRequest(prompt="a red ball", width=64, height=64, frames=5, steps=3, seed=7)

PLAIN = AccelPreferences(attention="sdpa", linear="stock", text_encoder_linear="stock", vae="stock", dtype="float32")


def pipeline_of(engine: Engine) -> Any:
    assert engine._loaded is not None
    return engine._loaded.pipeline


def hooks_of(pipeline: Any) -> int:
    import torch

    parts = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
    return sum(len(module._forward_pre_hooks) for part in parts for module in part.modules())


def tensor_bytes() -> int:
    """Bytes of all tensors that anything in this process still holds, memory they share counted once."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    gc.collect()
    # not isinstance, which asks objects that pretend to be of another class
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    # compiling leaves tensors without memory behind
    tensors = [one for one in found if type(one) is not FakeTensor and one.device.type == "cpu"]
    return sum(dict(map(_memory, tensors)).values())


def _memory(tensor: Any) -> tuple[int, int]:
    """Where its memory lies, and how many bytes."""
    if tensor.is_mkldnn:  # oneDNN's own weights, which show no storage
        return id(tensor), tensor.nbytes
    store = tensor.untyped_storage()
    try:
        return store.data_ptr(), store.nbytes()
    except RuntimeError:  # it only wraps others, which are counted themselves
        return 0, 0


def resident_bytes() -> int:
    """Bytes of this process that lie in memory."""
    return int(psutil.Process().memory_info().rss)


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
    """Whether the engine takes its backends for others than the reference."""
    monkeypatch.setattr("app.engine.acceleration.Engaged.accelerated", property(lambda self: value))
