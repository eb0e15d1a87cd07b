"""What the tests of the engine share. The engine itself is a fixture."""

from typing import Any

from app.engine import Engine
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
