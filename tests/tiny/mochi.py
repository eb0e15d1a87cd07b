"""Mochi with random weights: 6x in time, its own attention, a schedule that runs from 0 to 1."""

from __future__ import annotations

from typing import Any

from tests.tiny import text


def t2v() -> Any:
    """Mochi 1 text to video."""
    from diffusers import (
        AutoencoderKLMochi,
        FlowMatchEulerDiscreteScheduler,
        MochiPipeline,
        MochiTransformer3DModel,
    )

    transformer = MochiTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        pooled_projection_dim=16,
        text_embed_dim=text.WIDTH,
        time_embed_dim=16,
    ).eval()
    # its norms have 32 groups, so no block can be narrower
    vae = AutoencoderKLMochi(
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        layers_per_block=(1, 1, 1, 1, 1),
    ).eval()
    return MochiPipeline(
        FlowMatchEulerDiscreteScheduler(invert_sigmas=True), vae, text.t5_encoder(), text.t5_tokenizer(256), transformer
    )
