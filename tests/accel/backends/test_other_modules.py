"""Attention outside the transformer keeps its own code, whatever its heads are. Emulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from accel.backends import aiter_ops, backends, fa3_fp8
from accel.contract import AttentionCall
from accel.install import install
from accel.ops import AttentionSlot
from tests import builders
from tests.emulators.every import emulated
from tests.emulators.sgl_kernel_cpu import real_build
from tests.tiny import text, wan

pytestmark = pytest.mark.skipif(real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")
NAMES = tuple(item.name for item in backends("attention"))
STEPS, LAYERS = 2, 1


@pytest.fixture(scope="module")
def pipeline() -> Any:
    """Picture to video: the text encoder has heads of 80, the VAE one of 384, the transformer's are 128."""
    from diffusers import AutoencoderKLWan, WanImageToVideoPipeline, WanTransformer3DModel
    from transformers import UMT5Config, UMT5EncoderModel

    torch.manual_seed(0)
    encoder = UMT5EncoderModel(UMT5Config(vocab_size=256, d_model=32, d_kv=80, d_ff=64, num_layers=2, num_heads=2))
    vae = AutoencoderKLWan(
        base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 48], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=8,
        attention_head_dim=128,
        in_channels=36,
        out_channels=16,
        text_dim=32,
        freq_dim=32,
        ffn_dim=64,
        num_layers=LAYERS,
    )
    parts = (text.t5_tokenizer(), encoder.eval(), vae.eval(), wan.scheduler())
    made = WanImageToVideoPipeline(*parts, transformer=transformer.eval())
    assert vae.decoder.mid_block.attentions[0].to_qkv.out_channels == 3 * 384
    made.set_progress_bar_config(disable=True)
    return made


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Head sizes of all calls that reach a backend."""
    seen: list[int] = []
    run = AttentionSlot.run

    def noted(self: AttentionSlot, call: AttentionCall) -> torch.Tensor:
        seen.append(call.query.shape[3])
        return run(self, call)

    monkeypatch.setattr(AttentionSlot, "run", noted)
    monkeypatch.setattr(fa3_fp8, "FEWEST_KEYS", 1)
    monkeypatch.setattr(aiter_ops, "FEWEST_KEYS", 1)
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_becomes_a_clip_with_every_attention_switched_on_emulated(
    name: str, pipeline: Any, sizes: list[int]
) -> None:
    """Case 15: a kernel that can't take a head of 80 or of 384 never sees one, and the clip is made."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 64, 3), np.uint8))
    with emulated(name):
        installation = install(pipeline, builders.plan(attention=name, dtype="bfloat16", threads="1"))
        try:
            frames = builders.run_wan(pipeline, steps=STEPS, image=picture, guidance_scale=1.0)
            report = installation.report()["attention"]
        finally:
            installation.remove()
    assert np.isfinite(frames).all()
    assert set(sizes) == {128}
    assert list(report) == ["transformer"]
    # self and cross attention of each block, each step
    assert (report["transformer"]["served"], report["transformer"]["calls"]) == (2 * LAYERS * STEPS,) * 2
