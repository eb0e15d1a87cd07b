"""Exact weights from memory, one file or shards; a file that holds anything else does not count."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from accel.originals import Original, same_bits, weights_file


def component(folder: Path | str | None) -> Any:
    module: Any = nn.Linear(2, 2)
    module.config = SimpleNamespace(_name_or_path=None if folder is None else str(folder))
    return module


def shards(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    names = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        names[name] = f"part-{number}.safetensors"
        save_file({name: tensor}, folder / names[name])
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": names}), encoding="utf-8")


@pytest.mark.parametrize("layout", ["diffusers", "transformers", "shards"])
@pytest.mark.parametrize("loaded", [torch.float32, torch.bfloat16])
def test_a_weight_in_its_file_is_not_kept(layout: str, loaded: torch.dtype, tmp_path: Path) -> None:
    tensors = {"a.weight": torch.randn(4, 6), "b.weight": torch.randn(3, 3)}
    if layout == "shards":
        shards(tmp_path, tensors)
    else:
        name = "diffusion_pytorch_model" if layout == "diffusers" else "model"
        save_file(tensors, tmp_path / f"{name}.safetensors")
    file = weights_file(component(tmp_path))
    assert file is not None
    for name, tensor in tensors.items():
        original = Original(tensor.to(loaded), file, name)
        assert (original.kept_bytes, same_bits(original.read(), tensor.to(loaded))) == (0, True)


def test_anything_else_is_kept(tmp_path: Path) -> None:
    weight = torch.randn(4, 6)
    save_file({"a": weight}, tmp_path / "model.safetensors")
    file = weights_file(component(tmp_path))
    for tensor, name in ((weight + 1, "a"), (weight[:2], "a"), (weight, "missing")):
        original = Original(tensor, file, name)
        assert original.kept_bytes == tensor.numel() * 4
        assert same_bits(original.read(), tensor)
        assert original.read() is not tensor


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all"])
def test_no_usable_file_is_no_file(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    assert weights_file(component(tmp_path)) is None
    assert weights_file(component("someone/some-model")) is None
    assert weights_file(component(None)) is None
    assert weights_file(nn.Linear(2, 2)) is None


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": 3}'])
def test_a_broken_index_is_no_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    assert weights_file(component(tmp_path)) is None


def test_a_replaced_original_no_longer_asks_the_file(tmp_path: Path) -> None:
    weight = torch.randn(4, 6)
    save_file({"a": weight}, tmp_path / "model.safetensors")
    original = Original(weight, weights_file(component(tmp_path)), "a")
    original.replace(weight + 1)
    assert same_bits(original.read(), weight + 1)
    assert original.kept_bytes == weight.numel() * 4


@given(st.lists(st.floats(width=32), max_size=6), st.lists(st.floats(width=32), max_size=6))
def test_bits_are_compared_and_not_values(a: list[float], b: list[float]) -> None:
    first, second = torch.tensor(a, dtype=torch.float32), torch.tensor(b, dtype=torch.float32)
    assert same_bits(first, first.clone())
    want = first.shape == second.shape and first.view(torch.int32).tolist() == second.view(torch.int32).tolist()
    assert same_bits(first, second) == want


def test_zeros_of_both_signs_differ_and_nan_equals_itself() -> None:
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert same_bits(torch.tensor(1.0), torch.tensor(1.0))
    assert not same_bits(torch.tensor([1.0]), torch.tensor([1.0]).double())
