"""HunyuanVideo and HunyuanVideo 1.5 with random weights: text and video attend to each other under a mask.

1.5 is built for the picture models' geometry as well: 65 channels go in (latents, condition, mask), 32 come out.
"""

from __future__ import annotations

from typing import Any

from tests.tiny import text


def t2v() -> Any:
    """HunyuanVideo text to video: guidance is an input of the transformer."""
    from diffusers import (
        AutoencoderKLHunyuanVideo,
        FlowMatchEulerDiscreteScheduler,
        HunyuanVideoPipeline,
        HunyuanVideoTransformer3DModel,
    )

    transformer = HunyuanVideoTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        text_embed_dim=text.WIDTH,
        pooled_projection_dim=text.WIDTH,
        rope_axes_dim=(8, 12, 12),
    ).eval()
    vae = AutoencoderKLHunyuanVideo(block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4).eval()
    return HunyuanVideoPipeline(
        text.llama_encoder(),
        text.llama_tokenizer(),
        transformer,
        vae,
        FlowMatchEulerDiscreteScheduler(shift=7.0),
        text.clip_encoder(),
        text.clip_tokenizer(),
    )


def t2v_15() -> Any:
    """HunyuanVideo 1.5 text to video: guidance is the pipeline's guider, there is no callback."""
    from diffusers import (
        AutoencoderKLHunyuanVideo15,
        ClassifierFreeGuidance,
        FlowMatchEulerDiscreteScheduler,
        HunyuanVideo15Pipeline,
        HunyuanVideo15Transformer3DModel,
    )

    transformer = HunyuanVideo15Transformer3DModel(
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        text_embed_dim=text.WIDTH,
        text_embed_2_dim=text.WIDTH,
        image_embed_dim=text.WIDTH,
        rope_axes_dim=(8, 12, 12),
        task_type="t2v",
    ).eval()
    vae = AutoencoderKLHunyuanVideo15(block_out_channels=(8, 8, 8, 16, 64), layers_per_block=1).eval()
    return HunyuanVideo15Pipeline(
        text.qwen_encoder(),
        text.qwen_tokenizer(),
        transformer,
        vae,
        FlowMatchEulerDiscreteScheduler(shift=5.0),
        text.byt5_encoder(),
        text.byt5_tokenizer(),
        ClassifierFreeGuidance(guidance_scale=6.0),
    )
