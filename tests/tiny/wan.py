"""Wan's models with random weights. VAE factors, latent channels and the way each model is conditioned are the real
ones: 8x in space and 4x in time with 16 channels, for TI2V-5B 16x and 48 channels.
"""

from __future__ import annotations

from typing import Any

from tests.tiny import text


def transformer(in_channels: int = 16, out_channels: int = 16, **more: Any) -> Any:
    """Two layers of two heads, 32 wide."""
    from diffusers import WanTransformer3DModel

    return WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=32,
        in_channels=in_channels,
        out_channels=out_channels,
        text_dim=text.WIDTH,
        freq_dim=32,
        ffn_dim=64,
        num_layers=2,
        **more,
    ).eval()


def vae() -> Any:
    """Wan 2.1's VAE, which Wan 2.2 A14B and SkyReels V2 use too."""
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(
        base_dim=8, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    ).eval()


def vae_22() -> Any:
    """Wan 2.2's VAE: two pixels a side are one to it."""
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(
        base_dim=8,
        decoder_base_dim=8,
        z_dim=48,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.1] * 48,
        latents_std=[0.9] * 48,
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_temporal=4,
        scale_factor_spatial=16,
    ).eval()


def scheduler(shift: float = 3.0) -> Any:
    """UniPC on flow sigmas, as Wan's checkpoints name it."""
    from diffusers import UniPCMultistepScheduler

    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)


def t2v() -> Any:
    """Wan 2.1 text to video."""
    from diffusers import WanPipeline

    return WanPipeline(text.t5_tokenizer(), text.umt5_encoder(), vae(), scheduler(), transformer())


def t2v_two() -> Any:
    """Wan 2.2 text to video: a transformer for the noisy steps and one for the rest."""
    from diffusers import WanPipeline

    return WanPipeline(
        text.t5_tokenizer(),
        text.umt5_encoder(),
        vae(),
        scheduler(),
        transformer(),
        transformer(),
        boundary_ratio=0.875,
    )


def ti2v() -> Any:
    """Wan 2.2 TI2V-5B: text to video, and picture to video with the same transformer."""
    from diffusers import WanPipeline

    return WanPipeline(
        text.t5_tokenizer(), text.umt5_encoder(), vae_22(), scheduler(5.0), transformer(48, 48), expand_timesteps=True
    )


def i2v(pictures: int = 1) -> Any:
    """Wan 2.1 picture to video; two `pictures`: first and last frame to video."""
    from diffusers import WanImageToVideoPipeline

    seen = text.image_encoder()
    tokens = (text.IMAGE_SIZE // 16) ** 2 + 1
    return WanImageToVideoPipeline(
        text.t5_tokenizer(),
        text.umt5_encoder(),
        vae(),
        scheduler(),
        text.image_processor(),
        seen,
        transformer(
            36,
            image_dim=text.WIDTH,
            added_kv_proj_dim=64,
            pos_embed_seq_len=tokens * pictures if pictures > 1 else None,
        ),
    )


def flf2v() -> Any:
    """Wan 2.1 first and last frame to video."""
    return i2v(pictures=2)


def i2v_two() -> Any:
    """Wan 2.2 picture to video: two transformers, no picture encoder."""
    from diffusers import WanImageToVideoPipeline

    return WanImageToVideoPipeline(
        text.t5_tokenizer(),
        text.umt5_encoder(),
        vae(),
        scheduler(),
        transformer=transformer(36),
        transformer_2=transformer(36),
        boundary_ratio=0.9,
    )
