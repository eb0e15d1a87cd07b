"""CogVideoX with random weights: latents are (batch, frames, channels, height, width), text and video are one sequence.

2B marks positions by sines, 5B by rotation; 5B's first picture model also has learnt them for one size alone, which is
that of the tiny one here too.
"""

from __future__ import annotations

from typing import Any

from tests.tiny import text

SIZE = (64, 64)
"""Width and height that the transformers here are made for."""


def t2v(rotary: bool = False) -> Any:
    """CogVideoX-2B; `rotary`: 5B."""
    from diffusers import CogVideoXDDIMScheduler, CogVideoXDPMScheduler, CogVideoXPipeline

    scheduler = (CogVideoXDPMScheduler if rotary else CogVideoXDDIMScheduler)(**_SCHEDULE)
    return CogVideoXPipeline(
        text.t5_tokenizer(226),
        text.t5_encoder(),
        _vae(),
        _transformer(use_rotary_positional_embeddings=rotary),
        scheduler,
    )


def t2v_5b() -> Any:
    """CogVideoX-5B."""
    return t2v(rotary=True)


def i2v(**more: Any) -> Any:
    """CogVideoX-5B-I2V."""
    from diffusers import CogVideoXDPMScheduler, CogVideoXImageToVideoPipeline

    transformer = _transformer(
        **{
            "in_channels": 32,
            "use_rotary_positional_embeddings": True,
            "use_learned_positional_embeddings": not more,
            **more,
        }
    )
    return CogVideoXImageToVideoPipeline(
        text.t5_tokenizer(226), text.t5_encoder(), _vae(), transformer, CogVideoXDPMScheduler(**_SCHEDULE)
    )


def i2v_15() -> Any:
    """CogVideoX1.5-5B-I2V."""
    return i2v(**_15, ofs_embed_dim=8)


def t2v_15() -> Any:
    """CogVideoX1.5-5B: two latent frames are one token's."""
    from diffusers import CogVideoXDPMScheduler, CogVideoXPipeline

    transformer = _transformer(use_rotary_positional_embeddings=True, **_15)
    return CogVideoXPipeline(
        text.t5_tokenizer(224), text.t5_encoder(), _vae(), transformer, CogVideoXDPMScheduler(**_SCHEDULE)
    )


# Positions for clips of up to 300 x 300 latents: larger ones can't be made.
_15: dict[str, Any] = {"patch_size_t": 2, "patch_bias": False, "sample_width": 300, "sample_height": 300}
_SCHEDULE: dict[str, Any] = {
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": True,
    "snr_shift_scale": 1.0,
    "timestep_spacing": "trailing",
    "clip_sample": False,
}


def _transformer(**more: Any) -> Any:
    from diffusers import CogVideoXTransformer3DModel

    return CogVideoXTransformer3DModel(
        **{
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "time_embed_dim": 8,
            "text_embed_dim": text.WIDTH,
            "num_layers": 2,
            "sample_width": SIZE[0] // 8,
            "sample_height": SIZE[1] // 8,
            "sample_frames": 5,
            **more,
        }
    ).eval()


def _vae() -> Any:
    from diffusers import AutoencoderKLCogVideoX

    return AutoencoderKLCogVideoX(
        block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4, scaling_factor=0.7
    ).eval()
