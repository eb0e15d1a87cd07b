"""A real text-to-video pipeline with random weights that makes a clip in well under a second.

Geometry as the starter's: transformer patch (1, 2, 2), VAE 16x in space and 2x in time, UniPC on flow sigmas
predicting the sample.
"""

from pathlib import Path
from typing import Any

TOKENS = 64
SIZE = (64, 32)  # width, height
FRAMES = 5


def save_tiny_pipeline(folder: Path, seed: int = 0) -> Path:
    """Write the pipeline in diffusers layout into `folder` and return it."""
    import torch

    torch.manual_seed(seed)
    build_tiny_pipeline().save_pretrained(folder)
    return folder


def build_tiny_pipeline() -> Any:
    """The pipeline in memory; its weights follow torch's global generator."""
    from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
    from transformers import UMT5Config, UMT5EncoderModel

    text = UMT5EncoderModel(
        UMT5Config(vocab_size=256, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0)
    ).eval()
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=32,
        in_channels=8,
        out_channels=8,
        text_dim=32,
        freq_dim=32,
        ffn_dim=64,
        num_layers=2,
    ).eval()
    vae = AutoencoderKLWan(
        base_dim=8,
        z_dim=8,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, False, True],
        in_channels=12,
        out_channels=12,
        patch_size=2,
        latents_mean=[0.1] * 8,
        latents_std=[0.9] * 8,
        scale_factor_temporal=2,
        scale_factor_spatial=16,
    ).eval()
    scheduler = UniPCMultistepScheduler(prediction_type="sample", use_flow_sigmas=True, flow_shift=3.0)
    return WanPipeline(_tokenizer(), text, vae, scheduler, transformer)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    sentences = [
        "a red ball rolls over the green grass",
        "a yellow rocket flies up into the dark blue sky",
        "two stars at night",
    ]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>")
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=TOKENS
    )
