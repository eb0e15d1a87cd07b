"""LTX-Video with random weights: packed latents, 32x in space and 8x in time, 128 latent channels."""

from __future__ import annotations

from typing import Any

from tests.tiny import text


def t2v() -> Any:
    """LTX-Video text to video; its modules serve the picture pipelines too."""
    from diffusers import LTXPipeline

    return LTXPipeline(scheduler(), vae(), text.t5_encoder(), text.t5_tokenizer(128), transformer())


def transformer() -> Any:
    """Two layers of two heads, 32 wide."""
    from diffusers import LTXVideoTransformer3DModel

    return LTXVideoTransformer3DModel(
        in_channels=128,
        out_channels=128,
        num_attention_heads=2,
        attention_head_dim=32,
        cross_attention_dim=64,
        num_layers=2,
        caption_channels=text.WIDTH,
    ).eval()


def vae(timestep_conditioning: bool = False) -> Any:
    """LTX-Video's VAE; the decoder of 0.9.0 takes no timestep."""
    from diffusers import AutoencoderKLLTXVideo

    return AutoencoderKLLTXVideo(
        latent_channels=128,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        timestep_conditioning=timestep_conditioning,
    ).eval()


def scheduler() -> Any:
    """Flow matching whose shift follows the number of tokens."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_shift=0.95,
        max_shift=2.05,
        base_image_seq_len=1024,
        max_image_seq_len=4096,
        shift_terminal=0.1,
    )


def conditioned() -> Any:
    """LTX-Video since 0.9.5: pictures for any frame, a fixed schedule, a decoder that takes a timestep."""
    from diffusers import FlowMatchEulerDiscreteScheduler, LTXConditionPipeline

    parts = (vae(timestep_conditioning=True), text.t5_encoder(), text.t5_tokenizer(256), transformer())
    return LTXConditionPipeline(FlowMatchEulerDiscreteScheduler(), *parts)
