"""Multiples from a model's own configuration files, each VAE's in its own words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.models.base import Grid, Rules
from app.models.geometry import Multiples, multiples_in

WAN_22 = {"_class_name": "AutoencoderKLWan", "scale_factor_spatial": 16, "scale_factor_temporal": 4, "patch_size": 2}
LTX = {
    "_class_name": "AutoencoderKLLTXVideo",
    "patch_size": 4,
    "patch_size_t": 1,
    "spatio_temporal_scaling": [True, True, True, False],
}
LTX_095 = LTX | {
    "spatio_temporal_scaling": [True] * 4,
    "spatial_compression_ratio": 32,
    "temporal_compression_ratio": 8,
}
HUNYUAN = {"_class_name": "AutoencoderKLHunyuanVideo", "spatial_compression_ratio": 8, "temporal_compression_ratio": 4}
COG = {
    "_class_name": "AutoencoderKLCogVideoX",
    "block_out_channels": [128, 256, 256, 512],
    "temporal_compression_ratio": 4,
}
WAN_PATCH = {"patch_size": [1, 2, 2]}


def model(folder: Path, vae: Any, transformer: Any) -> Path:
    for name, config in (("vae", vae), ("transformer", transformer)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("vae", "transformer", "found"),
    [
        ({"_class_name": "AutoencoderKLWan"}, WAN_PATCH, (16, 16, 4)),  # files older than the two settings
        (WAN_22, WAN_PATCH, (32, 32, 4)),
        (WAN_22, {"patch_size": [2, 2, 4]}, (64, 32, 8)),
        (LTX, {"patch_size": 1, "patch_size_t": 1}, (32, 32, 8)),
        (LTX_095, {"patch_size": 1, "patch_size_t": 1}, (32, 32, 8)),
        (HUNYUAN, {"patch_size": 2, "patch_size_t": 1}, (16, 16, 4)),
        ({"_class_name": "AutoencoderKLMochi"}, {"patch_size": 2}, (16, 16, 6)),
        (COG, {"patch_size": 2, "patch_size_t": None}, (16, 16, 8)),  # latent frames are decoded in pairs
        (COG, {"patch_size": 2, "patch_size_t": 2}, (16, 16, 16)),
    ],
)
def test_a_token_is_the_vaes_factor_by_the_transformers_patch(
    tmp_path: Path, vae: Any, transformer: Any, found: tuple[int, int, int]
) -> None:
    assert multiples_in(model(tmp_path, vae, transformer)) == Multiples(*found)


@pytest.mark.parametrize(
    ("vae", "transformer"),
    [
        ({"_class_name": "AutoencoderKL"}, WAN_PATCH),
        ({}, WAN_PATCH),
        ("{", WAN_PATCH),
        ("[]", WAN_PATCH),
        (WAN_22, ""),
        (WAN_22, {"patch_size": "two"}),
        (WAN_22, {"patch_size": [2, 2]}),
        (WAN_22 | {"scale_factor_spatial": 0}, WAN_PATCH),
        (WAN_22 | {"scale_factor_spatial": None}, WAN_PATCH),
        ({"_class_name": "AutoencoderKLLTXVideo"}, {"patch_size": 1}),
        (HUNYUAN | {"temporal_compression_ratio": "four"}, {"patch_size": 2}),
    ],
)
def test_files_that_do_not_tell_change_nothing(tmp_path: Path, vae: Any, transformer: Any) -> None:
    folder = model(tmp_path, vae, transformer)
    assert multiples_in(folder) is None
    rules = Rules(Grid(4, 1, 5, 81), Grid(16, 0, 128, 1280), Grid(16, 0, 128, 1280))
    assert rules.fitting(folder) == rules
    assert rules.fitting(tmp_path / "nowhere") == rules


def test_the_files_have_the_last_word(tmp_path: Path) -> None:
    rules = Rules(Grid(4, 1, 5, 82 - 1), Grid(16, 0, 144, 1264), Grid(64, 0, 128, 1280))
    fitting = rules.fitting(model(tmp_path, WAN_22, WAN_PATCH))
    assert fitting.width == Grid(32, 0, 160, 1248)
    assert (fitting.height, fitting.frames) == (rules.height, rules.frames)


def test_learnt_positions_are_for_one_size(tmp_path: Path) -> None:
    transformer = {
        "patch_size": 2,
        "use_learned_positional_embeddings": True,
        "sample_width": 90,
        "sample_height": 60,
    }
    folder = model(tmp_path, COG, transformer)
    assert multiples_in(folder) == Multiples(16, 16, 8, (720, 480))
    fitting = Rules(Grid(8, 1, 9, 49), Grid(16, 0, 128, 1280), Grid(16, 0, 128, 1280)).fitting(folder)
    assert (fitting.width, fitting.height) == (Grid(16, 0, 720, 720), Grid(16, 0, 480, 480))
