"""The starter's parts: a Wan pipeline small enough to lie in the repository.

Geometry (fixed, later work builds on it): the VAE packs 16x16 pixels and 2 frames into 64 numbers, the transformer
cuts latents in patches of (1, 2, 2). A clip of 25 frames at 256x160 is 13x10x16 latents and 520 tokens.

The transformer predicts the clean sample: one token carries 256 numbers in a stream 320 wide, and a model that predicts
noise or velocity would have to carry all of them through it. UniPC with ``prediction_type="sample"`` and flow sigmas
samples such a model; Euler flow matching can't.
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from torch import nn
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

LATENT_CHANNELS = 64
TEXT_WIDTH = 192
TEXT_TOKENS = 64  # prompts are cut here, in training and in use
PADDING, END = 0, 1  # token ids of what follows a prompt, and of its end
FLOW_SHIFT = 3.0  # time shift of the sampling schedule
HEADS, HEAD_DIM, LAYERS, FFN = 5, 64, 7, 1024


def build_vae() -> AutoencoderKLWan:
    """A fresh VAE, 16x spatial and 2x temporal, 4.7 M parameters, fp32.

    ``patch_size=2`` folds 2x2 pixels into channels before the first convolution, three levels halve the sides, the
    middle one halves time. Residual (Wan 2.2 style) blocks learn several times faster than plain ones at this size.
    """
    return AutoencoderKLWan(
        base_dim=32,
        decoder_base_dim=40,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True, False],
        in_channels=12,
        out_channels=12,
        is_residual=True,
        patch_size=2,
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
        scale_factor_temporal=2,
        scale_factor_spatial=16,
    )


NEIGHBOURS = (1, 9, 2, 10)
"""Of 16 relative positions of UMT5, a head each: one word before, one after, two before, two after."""

NEAR = 3.0
"""How much the neighbour's logit is raised: among 15 words that are alike it then gets 0.6 of the attention."""


def build_text_encoder(vocabulary_size: int) -> UMT5EncoderModel:
    """Two UMT5 layers over word pieces, trained together with the transformer; output ``(batch, tokens, 192)``.

    Each head starts by looking at the neighbour that `NEIGHBOURS` gives it: a colour stands next to its noun. From
    T5's own start, where all words count alike, an encoder asked for whose colour is whose long stays a bag of words.
    """
    config = UMT5Config(
        vocab_size=vocabulary_size,
        d_model=TEXT_WIDTH,
        d_kv=48,
        d_ff=2 * TEXT_WIDTH,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=16,
        relative_attention_max_distance=32,
        dropout_rate=0.0,
        is_encoder_decoder=False,
        pad_token_id=PADDING,
        eos_token_id=END,
    )
    model = UMT5EncoderModel(config)
    with torch.no_grad():
        for block in model.encoder.block:
            bias = block.layer[0].SelfAttention.relative_attention_bias.weight
            for head, bucket in enumerate(NEIGHBOURS):
                bias[bucket, head] += NEAR
    return model


def build_transformer() -> WanTransformer3DModel:
    """A fresh transformer, 11.5 M parameters, fp32, started so that every block contributes from the first step."""
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_DIM,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=TEXT_WIDTH,
        freq_dim=256,
        ffn_dim=FFN,
        num_layers=LAYERS,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=128,
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and ("attn" in name or "ffn" in name):
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(model.condition_embedder.time_proj.weight, std=0.01)
        nn.init.zeros_(model.condition_embedder.time_proj.bias)
        nn.init.zeros_(model.scale_shift_table)
        nn.init.zeros_(model.proj_out.weight)
        nn.init.zeros_(model.proj_out.bias)
        for block in model.blocks:
            block.scale_shift_table.zero_()
            block.scale_shift_table[:, 2] = 0.3  # gate of self-attention
            block.scale_shift_table[:, 5] = 0.3  # gate of the feed-forward
            block.attn2.to_out[0].weight.mul_(0.3)
    return model


def build_scheduler() -> UniPCMultistepScheduler:
    """UniPC for a model that predicts the clean sample on a rectified flow."""
    return UniPCMultistepScheduler(prediction_type="sample", use_flow_sigmas=True, flow_shift=FLOW_SHIFT)


def assemble(
    tokenizer: PreTrainedTokenizerFast,
    text_encoder: UMT5EncoderModel,
    transformer: WanTransformer3DModel,
    vae: AutoencoderKLWan,
) -> WanPipeline:
    """The stock diffusers pipeline around the four trained parts."""
    return WanPipeline(
        tokenizer=tokenizer,
        text_encoder=text_encoder,
        vae=vae,
        scheduler=build_scheduler(),
        transformer=transformer,
    )
