"""SkyReels V2 with random weights: Wan 2.1's parts around a transformer of its own class."""

from __future__ import annotations

from typing import Any

from tests.tiny import text, wan


def t2v() -> Any:
    """SkyReels V2 text to video."""
    from diffusers import SkyReelsV2Pipeline

    return SkyReelsV2Pipeline(text.t5_tokenizer(), text.umt5_encoder(), _transformer(), wan.vae(), wan.scheduler(8.0))


def forcing() -> Any:
    """SkyReels V2 diffusion forcing: each latent frame may have its own timestep."""
    from diffusers import SkyReelsV2DiffusionForcingPipeline

    transformer = _transformer(inject_sample_info=True)
    return SkyReelsV2DiffusionForcingPipeline(
        text.t5_tokenizer(), text.umt5_encoder(), transformer, wan.vae(), wan.scheduler(8.0)
    )


def i2v() -> Any:
    """SkyReels V2 picture to video."""
    from diffusers import SkyReelsV2ImageToVideoPipeline

    transformer = _transformer(in_channels=36, image_dim=text.WIDTH, added_kv_proj_dim=64)
    return SkyReelsV2ImageToVideoPipeline(
        text.t5_tokenizer(),
        text.umt5_encoder(),
        text.image_encoder(projected=True),
        text.image_processor(with_words=True),
        transformer,
        wan.vae(),
        wan.scheduler(5.0),
    )


def _transformer(**more: Any) -> Any:
    from diffusers import SkyReelsV2Transformer3DModel

    return SkyReelsV2Transformer3DModel(
        **{
            "num_attention_heads": 2,
            "attention_head_dim": 32,
            "text_dim": text.WIDTH,
            "freq_dim": 32,
            "ffn_dim": 64,
            "num_layers": 2,
            **more,
        }
    ).eval()
