"""Every step cache in a tiny pipeline of every family: it reuses and is taken out, or says why it can't be had."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from accel import caches, caching, magnitudes
from accel.install import install
from tests import builders, tiny

STRENGTHS = {"first_block": "first_block:0.9", "mag": "mag:1", "taylorseer": "taylorseer:2", "pyramid": "pyramid:3"}
"""At which a random model reuses something in a few steps."""

BLOCKS = "diffusers does not know what goes in and out of"
REFUSED = {
    "hunyuan-15": {"first_block": BLOCKS, "mag": BLOCKS},
    "skyreels": {"first_block": BLOCKS, "mag": BLOCKS},
    "skyreels-forcing": {"first_block": BLOCKS, "mag": BLOCKS},
    "skyreels-i2v": {"first_block": BLOCKS, "mag": BLOCKS},
    "sana": dict.fromkeys(caches.NAMES, "is not one of the models"),
}
SLOW = {"hunyuan-15", "cogvideox-i2v", "cogvideox-15", "skyreels-i2v", "wan-i2v", "wan-ti2v", "wan-i2v-two"}
"""Alike to another or slow by itself."""

NAMES = [
    pytest.param(name, marks=pytest.mark.long if name in SLOW else ())
    for name in tiny.BUILDERS
    if name not in ("sana", "wan-flf2v")
]


@pytest.fixture(autouse=True)
def no_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("ACCEL_CACHE", str(tmp_path / "proofs"))
    monkeypatch.setattr(magnitudes, "MEASURED", {})


def run(pipeline: Any) -> torch.Tensor:
    """Latents after 7 steps."""
    from PIL import Image

    known = inspect.signature(type(pipeline).__call__).parameters
    pipeline.set_progress_bar_config(disable=True)
    arguments: dict[str, Any] = {
        "prompt": "a red ball",
        "height": 64,
        "width": 64,
        "num_frames": 9,
        "num_inference_steps": 7,
        "output_type": "latent",
        "generator": torch.Generator().manual_seed(1),
    }
    if "image" in known and known["image"].default is inspect.Parameter.empty:
        arguments["image"] = Image.new("RGB", (64, 64), (200, 30, 30))
    with torch.inference_mode():
        latents: torch.Tensor = pipeline(**{name: value for name, value in arguments.items() if name in known}).frames
    return latents


@pytest.mark.parametrize("name", NAMES)
def test_a_family_and_its_caches(name: str) -> None:
    pipeline = tiny.build(name)
    plain = run(pipeline)
    for cache in caches.NAMES:
        reason = caching.why_not(cache, pipeline.transformer)
        expected = REFUSED.get(name, {}).get(cache, "")
        assert (expected in reason) if expected else not reason
        if reason:
            continue
        installation = install(pipeline, builders.plan(cache=STRENGTHS[cache]))
        for _ in range(2 if cache in caches.REHEARSED else 1):
            installation.reset()
            latents = run(pipeline)
        told = installation.report()["cache"]
        assert sum(entry["steps"] for entry in told.values()) == 7, cache
        assert sum(entry["served"] for entry in told.values()) > 0, cache
        assert not torch.equal(latents, plain), cache
        installation.remove()
        assert torch.equal(run(pipeline), plain), cache


def test_a_family_without_hooks_says_so() -> None:
    transformer = tiny.build("sana").transformer
    assert all(REFUSED["sana"][cache] in caching.why_not(cache, transformer) for cache in caches.NAMES)
