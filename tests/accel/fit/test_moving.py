"""Weights on the move in tiny pipelines: the same clip, whatever else is engaged, and everything back afterwards.

On this machine's only device nothing leaves, so who has its turn is what a stand-in for `to` sees.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from accel.errors import AccelError
from accel.fit.choosing import OFFLOADS
from accel.fit.moving import Offloading, components
from accel.install import install
from tests import builders, tiny
from tests.accel.installed import assert_bits, bits

MOVING = OFFLOADS[1:]
LEFT = {"_diffusers_hook"}
"""What diffusers' pipelines leave behind by themselves."""


def traces(pipeline: Any) -> dict[int, set[str]]:
    return {id(module): set(vars(module)) - LEFT for part in components(pipeline).values() for module in part.modules()}


@pytest.mark.parametrize("offload", MOVING)
def test_an_offloaded_model_makes_the_same_clip_and_leaves_no_trace(offload: str) -> None:
    pipeline = builders.wan()
    before, stock, seen = bits(pipeline), builders.run_wan(pipeline), traces(pipeline)
    installation = install(pipeline, builders.plan(offload=offload))
    assert np.array_equal(builders.run_wan(pipeline), stock)
    assert np.array_equal(builders.run_wan(pipeline), stock)
    assert installation.report()["fit"]["offload"] == offload
    assert installation.remove() == []
    assert traces(pipeline) == seen
    assert_bits(pipeline, before)
    assert np.array_equal(builders.run_wan(pipeline), stock)


@pytest.mark.parametrize("offload", MOVING)
@pytest.mark.parametrize(
    "settings",
    [
        {"attention": "sdpa"},
        {"vae": "direct_conv3d"},
        {"cache": "first_block:0.9"},
        {"cache": "pyramid"},
        {"dtype": "bfloat16", "text_encoder_dtype": "bfloat16"},
        {"tiling": "on"},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_offload_goes_together_with_what_else_is_engaged(offload: str, settings: dict[str, str]) -> None:
    """Case 47: each way of offloading with each accelerator that it goes with gives the clip it gives without."""
    pipeline = builders.wan()
    before = bits(pipeline)
    with_it = install(pipeline, builders.plan(offload=offload, **settings))
    clip, again = (builders.run_wan(pipeline, steps=6) for _ in range(2))
    report = with_it.report()
    with_it.remove()
    assert_bits(pipeline, before)
    without = install(pipeline, builders.plan(**settings))
    assert np.array_equal(clip, builders.run_wan(pipeline, steps=6))
    assert np.array_equal(clip, again)
    for kind in ("attention", "vae", "cache"):
        for name, entry in without.report()[kind].items():
            assert report[kind][name].get("served", 0) == 2 * entry.get("served", 0), "two clips"
    without.remove()


@pytest.mark.parametrize("name", ["hunyuan", "cogvideox-2b", "ltx"])
@pytest.mark.parametrize("offload", MOVING)
def test_other_families_are_moved_too(name: str, offload: str) -> None:
    pipeline = tiny.build(name)
    pipeline.set_progress_bar_config(disable=True)

    def run() -> Any:
        generator = torch.Generator().manual_seed(1)
        size = {"height": 64, "width": 64, "num_frames": 9, "num_inference_steps": 2}
        with torch.inference_mode():
            return pipeline("a red ball", generator=generator, output_type="np", **size).frames

    stock = run()
    installation = install(pipeline, builders.plan(offload=offload))
    assert np.array_equal(run(), stock)
    installation.remove()
    assert np.array_equal(run(), stock)


def test_components_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = builders.wan()
    where, most = dict.fromkeys(components(pipeline), "cpu"), 0
    stock = nn.Module.to

    def to(self: nn.Module, *args: Any, **more: Any) -> nn.Module:
        nonlocal most
        for name, part in components(pipeline).items():
            if part is self and args and isinstance(args[0], torch.device):
                where[name] = "there" if args[0].index is not None else "cpu"
                most = max(most, sum(place == "there" for place in where.values()))
        return stock(self, *args, **more)

    monkeypatch.setattr(nn.Module, "to", to)
    offloading = Offloading(pipeline, "model", "cpu:0")  # the same device under another name
    builders.run_wan(pipeline)
    assert most == 1
    assert where["vae"] == "there"
    assert offloading.to_dict() == {"offload": "model", "moves": 3}
    offloading.undo()


def test_tiles_change_little_and_stop() -> None:
    pipeline = builders.wan()
    vae = pipeline.vae
    stock = builders.run_wan(pipeline, height=320, width=320)
    installation = install(pipeline, builders.plan(tiling="on"))
    assert vae.use_tiling
    tiled = builders.run_wan(pipeline, height=320, width=320)
    assert not np.array_equal(tiled, stock)
    installation.remove()
    assert not vae.use_tiling
    assert np.array_equal(builders.run_wan(pipeline, height=320, width=320), stock)


@pytest.mark.parametrize("backend", ["direct_conv3d", "bf16_channels_last"])
def test_tiles_go_together_with_vae_backends(backend: str) -> None:
    if backend == "bf16_channels_last" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bf16 convolutions")
    pipeline = builders.wan()
    dtype = "bfloat16" if backend.startswith("bf16") else "float32"
    installation = install(pipeline, builders.plan(tiling="on", vae=backend, vae_dtype=dtype))
    clip = builders.run_wan(pipeline, height=320, width=320)
    served = installation.report()["vae"]["vae"]
    installation.remove()
    plain = install(pipeline, builders.plan(tiling="on"))
    difference = np.abs(clip - builders.run_wan(pipeline, height=320, width=320)).max()
    plain.remove()
    assert served["served"] == served["calls"] > 0
    assert difference < (0.05 if dtype == "bfloat16" else 1e-3)


def test_what_fails_half_way_leaves_the_pipeline_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = builders.wan()
    before, seen = bits(pipeline), traces(pipeline)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no hooks today")

    monkeypatch.setattr("accel.fit.moving.in_groups", fail)
    with pytest.raises(AccelError, match="no hooks today"):
        install(pipeline, builders.plan(offload="group"))
    assert traces(pipeline) == seen
    assert_bits(pipeline, before)
