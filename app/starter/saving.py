"""Pipelines written while training goes on: whole or not at all, fp16, in diffusers layout."""

from __future__ import annotations

import copy
import shutil
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from torch import nn
from transformers import PreTrainedTokenizerFast

from app.starter.model import assemble, build_text_encoder, build_transformer

PIPELINE = "pipeline"
"""Folder in a run's output that holds the pipeline."""


def replace_folder(new: Path, place: Path) -> None:
    """Put the finished folder ``new`` where ``place`` is, so that readers see the old or the new one."""
    old = place.with_name(place.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def vae_for(out: Path, vae_folder: Path) -> AutoencoderKLWan:
    """The VAE of ``out`` if a stage has finished one there, else that of ``vae_folder``; fp32, on the CPU."""
    finished = out / "vae"
    return AutoencoderKLWan.from_pretrained(finished if finished.exists() else vae_folder, torch_dtype=torch.float32)


def save_pipeline(
    tokenizer: PreTrainedTokenizerFast,
    text_encoder: nn.Module,
    transformer: nn.Module,
    vae: AutoencoderKLWan,
    out: Path,
) -> None:
    """Plain (uncompiled) copies of the parts to ``out/pipeline``."""
    plain_transformer, plain_text = build_transformer(), build_text_encoder(len(tokenizer))
    plain_transformer.load_state_dict({k: v.cpu() for k, v in transformer.state_dict().items()})
    plain_text.load_state_dict({k: v.cpu() for k, v in text_encoder.state_dict().items()})
    half = torch.float16  # three more bits than bf16, and no weight here comes near its range
    parts = tokenizer, plain_text.to(half), plain_transformer.to(half), copy.deepcopy(vae).to("cpu", half)
    new = out / f"{PIPELINE}.new"
    shutil.rmtree(new, ignore_errors=True)
    assemble(*parts).save_pretrained(new, safe_serialization=True)
    vocabulary = out / "tokenizer" / "vocabulary.txt"
    if vocabulary.exists():
        shutil.copy(vocabulary, new / "tokenizer" / "vocabulary.txt")
    replace_folder(new, out / PIPELINE)


def main(out: Path) -> None:
    """Put the VAE that a run has finished into the pipeline that it has written."""
    vae = AutoencoderKLWan.from_pretrained(out / "vae", torch_dtype=torch.float32).to(torch.float16)
    vae.save_pretrained(out / "vae_half", safe_serialization=True)
    replace_folder(out / "vae_half", out / PIPELINE / "vae")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
