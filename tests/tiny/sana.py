"""SANA-Video with random weights: linear attention between pixels, Wan 2.1's VAE."""

from __future__ import annotations

from typing import Any

from tests.tiny import text, wan


def t2v() -> Any:
    """SANA-Video 2B at 480p."""
    from diffusers import DPMSolverMultistepScheduler, SanaVideoPipeline, SanaVideoTransformer3DModel

    transformer = SanaVideoTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=32,
        cross_attention_dim=64,
        caption_channels=text.WIDTH,
    ).eval()
    scheduler = DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=8.0)
    return SanaVideoPipeline(text.gemma_tokenizer(), text.gemma_encoder(), wan.vae(), transformer, scheduler)
