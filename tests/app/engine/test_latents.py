"""Latents of every kind come out in one look, scaled as the denoiser sees them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from app.engine import loading
from app.engine.latents import Layout, normalised
from tests import tiny

FRAMES = {"ltx": 17, "ltx-condition": 17, "mochi": 7} | dict.fromkeys(
    ("cogvideox-2b", "cogvideox-5b", "cogvideox-i2v", "cogvideox-15", "cogvideox-15-i2v"), 17
)
WIDTH = HEIGHT = 64


@pytest.mark.parametrize("name", tiny.BUILDERS)
def test_latents_are_read_as_their_own_pipeline_decodes_them(name: str, tiny_models: Callable[[str], Path]) -> None:
    """What the pipeline hands to its VAE, normalised, is what its last step left, read as a clip."""
    pipeline, frames = loading.load_pipeline(tiny_models(name), {}), FRAMES.get(name, 5)
    layout = Layout.of(pipeline.vae, WIDTH, HEIGHT, frames)
    assert layout is not None
    left, decoded = run(pipeline, frames)
    read = layout.as_clip(left)
    channels = pipeline.vae.config.get("z_dim") or pipeline.vae.config.latent_channels
    assert read.shape == (1, channels, layout.frames, layout.height, layout.width)
    torch.testing.assert_close(normalised(pipeline.vae, decoded), read, rtol=1e-4, atol=1e-4)


def run(pipeline: Any, frames: int) -> tuple[Any, Any]:
    """The latents after the last step, and those that went into the decoder."""
    known = inspect.signature(type(pipeline).__call__).parameters
    left: list[Any] = []
    decoded: list[Any] = []

    def look(_: Any, index: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        left.append(tensors["latents"])
        return tensors

    def decode(latents: Any, *_: Any, **__: Any) -> Any:
        decoded.append(latents)
        raise InterruptedError

    picture = Image.new("RGB", (WIDTH, HEIGHT), (200, 30, 30))
    arguments: dict[str, Any] = {
        "prompt": "a red ball",
        "height": HEIGHT,
        "width": WIDTH,
        "num_frames": frames,
        "frames": frames,
        "num_inference_steps": 2,
        "use_resolution_binning": False,
        "callback_on_step_end": look,
    }
    if known.get("image") is not None and known["image"].default is inspect.Parameter.empty:
        arguments["image"] = picture
    if pipeline.transformer.config.get("pos_embed_seq_len"):
        arguments["last_image"] = picture
    if "callback_on_step_end" not in known:
        step = pipeline.scheduler.step
        pipeline.scheduler.step = lambda *values, **named: keep(step(*values, **named), left)
    pipeline.vae.decode = decode
    with pytest.raises(InterruptedError), torch.no_grad():
        pipeline(**{one: value for one, value in arguments.items() if one in known})
    return left[-1], decoded[-1]


def keep(found: Any, left: list[Any]) -> Any:
    left.append(found[0])
    return found
