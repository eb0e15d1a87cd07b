"""What a model's own configuration says about sizes: how many pixels and frames become one token.

diffusers' pipelines floor or refuse what does not fit, each in its own way; knowing the multiples beforehand, Kinetile
says what it changes. Read from the config.json files alone, by the VAE's class: each names its factors differently
(read in diffusers 0.42.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel.reading import read_json

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Multiples:
    """Pixels in width and height that make one token; frames that make one token after the first frame."""

    width: int
    height: int
    frames: int
    only: tuple[int, int] | None = None
    """Width and height of the one size that a model can make which has learnt its positions."""


def multiples_in(folder: Path) -> Multiples | None:
    """The multiples of the model in ``folder`` (diffusers layout); None where its files don't tell."""
    vae, transformer = _config(folder / "vae"), _config(folder / "transformer")
    factors = factors_of(str(vae.get("_class_name")), vae)
    if factors is None or not transformer:
        return None
    space, time = factors
    try:
        patch = transformer.get("patch_size") or 1
        depth, rows, columns = map(
            int, patch if isinstance(patch, list) else (transformer.get("patch_size_t") or 1, patch, patch)
        )
        only = None
        if transformer.get("use_learned_positional_embeddings"):
            only = (space * int(transformer["sample_width"]), space * int(transformer["sample_height"]))
        found = Multiples(space * columns, space * rows, time * depth, only)
    except (TypeError, ValueError, KeyError):
        return None
    return found if min(found.width, found.height, found.frames) > 0 else None


def joins_two_pictures(folder: Path) -> bool:
    """Whether the model in ``folder`` learnt places for the tokens of a first and a last picture, as Wan's first and
    last frame models did; others of that pipeline see one picture or none."""
    return bool(_config(folder / "transformer").get("pos_embed_seq_len"))


def factors_of(vae_class: str, config: Config) -> tuple[int, int] | None:
    """Pixels in each direction and frames after the first that one latent stands for; None where that is not known."""
    try:
        return _FACTORS[vae_class](config) if vae_class in _FACTORS else None
    except (TypeError, ValueError, KeyError):
        return None


def _wan(vae: Config) -> tuple[int, int]:
    return int(vae.get("scale_factor_spatial", 8)), int(vae.get("scale_factor_temporal", 4))


def _stated(vae: Config) -> tuple[int, int]:
    return int(vae["spatial_compression_ratio"]), int(vae["temporal_compression_ratio"])


def _ltx(vae: Config) -> tuple[int, int]:
    """Stated, or (in older files) the patch times two for each block that scales."""
    scale = 2 ** sum(map(bool, vae["spatio_temporal_scaling"]))
    space, time = vae.get("spatial_compression_ratio"), vae.get("temporal_compression_ratio")
    return int(space or vae["patch_size"] * scale), int(time or vae["patch_size_t"] * scale)


def _cogvideox(vae: Config) -> tuple[int, int]:
    """Its decoder takes latent frames in pairs after the first: an even number of them comes out as other frames."""
    return 2 ** (len(vae["block_out_channels"]) - 1), 2 * int(vae["temporal_compression_ratio"])


def _mochi(vae: Config) -> tuple[int, int]:
    return 8, 6  # fixed in its pipeline


_FACTORS: Mapping[str, Callable[[Config], tuple[int, int]]] = {
    "AutoencoderKLWan": _wan,
    "AutoencoderKLLTXVideo": _ltx,
    "AutoencoderKLLTX2Video": _stated,
    "AutoencoderKLHunyuanVideo": _stated,
    "AutoencoderKLHunyuanVideo15": _stated,
    "AutoencoderKLCogVideoX": _cogvideox,
    "AutoencoderKLMochi": _mochi,
}
"""(pixels in each direction, frames) that one latent stands for, by the VAE's class."""


def _config(folder: Path) -> Config:
    try:
        found = read_json(folder / "config.json")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
