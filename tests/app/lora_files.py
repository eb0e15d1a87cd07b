"""LoRA files drawn for tests, in the names of several trainers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LAYERS = ("attn1.to_q", "attn2.to_v", "ffn.net.0.proj")
NATIVE = {
    f"{ours}.{new}": f"{theirs}.{old}"
    for ours, theirs in (("attn1", "self_attn"), ("attn2", "cross_attn"))
    for new, old in (("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "o"))
} | {"ffn.net.0.proj": "ffn.0", "ffn.net.2": "ffn.2"}


def tensors(
    seed: int = 1,
    rank: int = 2,
    width: int = 64,
    blocks: int = 2,
    strength: float = 0.4,
    layers: Iterable[str] = LAYERS,
) -> dict[str, Any]:
    """Rank-`rank` updates of linears in each block of a tiny Wan, in diffusers' names."""
    import torch

    dice = torch.Generator().manual_seed(seed)
    found = {}
    for block in range(blocks):
        for layer in layers:
            for half, shape in (("A", (rank, width)), ("B", (width, rank))):
                key = f"transformer.blocks.{block}.{layer}.lora_{half}.weight"
                found[key] = torch.randn(shape, generator=dice) * strength
    return found


def native(found: Mapping[str, Any], prefix: str = "diffusion_model.") -> dict[str, Any]:
    """The same in the names of Wan's own code."""
    renamed = {}
    for key, tensor in found.items():
        _, _, block, rest = key.split(".", 3)
        layer, half, kind = rest.rsplit(".", 2)
        renamed[f"{prefix}blocks.{block}.{NATIVE[layer]}.{half}.{kind}"] = tensor
    return renamed


def musubi(found: Mapping[str, Any], alpha: float) -> dict[str, Any]:
    """The same in the names of musubi-tuner, with its alphas."""
    import torch

    renamed = {}
    for key, tensor in native(found, "").items():
        layer, half, _ = key.rsplit(".", 2)
        base = "lora_unet_" + layer.replace(".", "_")
        renamed[f"{base}.{'lora_down' if half == 'lora_A' else 'lora_up'}.weight"] = tensor
        renamed[f"{base}.alpha"] = torch.tensor(alpha)
    return renamed


def save(path: Path, found: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> Path:
    """Write them; `about` is what diffusers keeps of rank and alpha."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"format": "pt"} | ({} if about is None else {"lora_adapter_metadata": json.dumps(about)})
    save_file(dict(found), path, metadata=metadata)
    return path
