"""A transformer from one file: in diffusers' layout, in its makers', as GGUF; the clip is that of the folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from app.engine import Engine, loading, single_file
from app.errors import CannotRunError
from app.models import family_for
from app.models.base import Family
from app.request import GenerationRequest

torch = pytest.importorskip("torch")

MAKERS = {
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "attn1": "self_attn",
    "attn2": "cross_attn",
    "to_out.0": "o",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "proj_out": "head.head",
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
}
"""What Wan's makers call what diffusers calls otherwise."""


def as_made(name: str) -> str:
    """A tensor's name in the makers' own files."""
    for theirs, ours in MAKERS.items():
        name = re.sub(rf"(^|\.){re.escape(theirs)}(?=\.|$)", rf"\g<1>{ours}", name)
    name = name.replace("norm2", "norm#").replace("norm3", "norm2").replace("norm#", "norm3")
    return "head.modulation" if name == "scale_shift_table" else name.replace("scale_shift_table", "modulation")


@pytest.fixture
def weights(tiny_folder: Path) -> dict[str, Any]:
    return load_file(tiny_folder / "transformer" / "diffusion_pytorch_model.safetensors")


def clip(model: str) -> Any:
    with Engine() as engine:
        request = GenerationRequest(model=model, prompt="a ball", width=64, height=64, frames=5, steps=2, seed=3)
        return engine.generate(request).frames


@pytest.mark.parametrize("layout", ["diffusers", "makers", "prefixed"])
def test_a_file_gives_the_clip_of_the_folder(
    tiny_family: Family, weights: dict[str, Any], tmp_path: Path, layout: str
) -> None:
    rename: dict[str, Callable[[str], str]] = {
        "diffusers": str,
        "makers": as_made,
        "prefixed": lambda name: f"model.diffusion_model.{as_made(name)}",
    }
    file = tmp_path / "tuned.safetensors"
    save_file({rename[layout](name): value for name, value in weights.items()}, file)
    assert np.array_equal(clip(str(file)), clip("starter"))


def test_numbers_are_held_as_those_of_a_folder_are(
    tiny_family: Family, tiny_folder: Path, weights: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "half.safetensors"
    save_file({as_made(name): value.to(torch.float16) for name, value in weights.items()}, file)
    dtypes = {"default": "bfloat16"}
    (own,) = single_file.components(family_for(str(file)), dtypes).values()
    stock = loading.load_pipeline(tiny_folder, dtypes).transformer
    held = {name: one.dtype for name, one in stock.named_parameters()}
    assert len(set(held.values())) == 2
    assert {name: one.dtype for name, one in own.named_parameters()} == held


def test_the_file_is_what_counts(tiny_family: Family, weights: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "other.safetensors"
    save_file({name: value * 0.5 for name, value in weights.items()}, file)
    assert not np.array_equal(clip(str(file)), clip("starter"))


def test_a_gguf_file_is_turned_back_into_numbers(tiny_family: Family, weights: dict[str, Any], tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    file = tmp_path / "tiny-Q8_0.gguf"
    writer = gguf.GGUFWriter(file, "wan")
    for name, value in weights.items():
        numbers = value.numpy()
        if name.endswith("weight") and numbers.ndim == 2 and numbers.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(as_made(name), gguf.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(as_made(name), numbers)
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    family = family_for(str(file))
    (model,) = single_file.components(family, {"default": "float32"}).values()
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float32
        assert type(parameter) is torch.nn.Parameter
        error = (parameter - weights[name]).norm() / weights[name].norm().clamp_min(1e-12)
        assert error < 0.01, name
    frames = clip(str(file))
    assert frames.shape == (5, 64, 64, 3)


def test_without_a_file_nothing_comes(tiny_family: Family) -> None:
    assert single_file.components(tiny_family, {}) == {}


def test_what_is_no_such_transformer_is_refused_in_a_sentence(
    tiny_family: Family, weights: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "odd.safetensors"

    def refused(tensors: dict[str, Any]) -> str:
        save_file(tensors, file)
        from dataclasses import replace

        with pytest.raises(CannotRunError, match=r"odd\.safetensors") as raised:
            single_file.components(replace(tiny_family, file=file), {})
        return str(raised.value)

    first = sorted(weights)[0]
    assert "does not hold all tensors of a WanTransformer3DModel: choose another file" in refused(
        {name: value for name, value in weights.items() if name != first}
    )
    assert "choose another file" in refused({"nothing.we.know": torch.zeros(3)})
    assert "FP8 numbers with scales of their own (blocks.0.q.scale_weight)" in refused(
        {**weights, "blocks.0.q.scale_weight": torch.ones(1)}
    )
    name = next(name for name, value in weights.items() if value.ndim == 2)
    assert "can't be loaded as a WanTransformer3DModel" in refused({**weights, name: torch.zeros(2, 2)})
    assert loading.components_of(tiny_family.folder or Path())["transformer"][1] == "WanTransformer3DModel"


def test_weights_that_were_replaced_in_place_are_read_again(
    tiny_family: Family, weights: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "tuned.safetensors"
    save_file(weights, file)
    request = GenerationRequest(model=str(file), prompt="a ball", width=64, height=64, frames=5, steps=2, seed=3)
    with Engine() as engine:
        before = engine.generate(request).frames
        save_file({name: tensor * 1.5 for name, tensor in weights.items()}, file)
        after = engine.generate(request).frames
    assert not np.array_equal(before, after)
    assert np.array_equal(after, clip(str(file)))
