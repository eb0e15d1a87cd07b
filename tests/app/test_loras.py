"""LoRA files: found by name or base name, told apart from what they are not without reading a weight (case 29)."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import loras
from app.errors import UsageError
from app.models import starter
from app.paths import Home
from app.request import GenerationRequest, Lora, parse_request
from tests.app import lora_files

FAMILY = starter.STARTER


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    lora_files.save(made.loras / "styles" / "soft.safetensors", lora_files.tensors())
    return made


@pytest.mark.parametrize(
    "name", ["styles/soft.safetensors", "soft.safetensors", r"styles\soft.safetensors", r"D:\models\soft.safetensors"]
)
def test_a_name_of_any_system_finds_the_file(home: Home, name: str) -> None:
    """Case 29: both slashes are read, an absolute path is looked up by its base name."""
    request = parse_request({"loras": [{"name": name, "weight": 0.5}]}, "it")
    (found,) = loras.files_for(request, FAMILY, home)
    assert found.path == (home.loras / "styles" / "soft.safetensors").resolve()
    assert found.lora.weight == 0.5


def test_those_of_the_model_come_by_name(home: Home, tmp_path: Path) -> None:
    file = lora_files.save(tmp_path / "model" / "fast" / "pytorch_lora_weights.safetensors", lora_files.tensors())
    family = replace(FAMILY, folder=tmp_path / "model", loras={"fast": "fast/pytorch_lora_weights.safetensors"})
    assert loras.locate("fast", family, home) == file
    assert loras.locate("fast", family, None) == file
    assert loras.locate("soft.safetensors", family, home).name == "soft.safetensors"
    with pytest.raises(UsageError, match=r"LoRA 'quick' is missing; .* Starter itself brings fast"):
        loras.locate("quick", family, home)
    file.unlink()
    with pytest.raises(UsageError, match=r"LoRA 'fast' of Starter is missing in .*; fetch the model again"):
        loras.locate("fast", family, home)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            "a.pt",
            b"\x80\x02",
            "is no safetensors file but a pickle, which can run code when it is opened; get it as .safe",
        ),
        ("a.txt", b"", "is no safetensors file; get it"),
        ("a.safetensors", b"", "is empty; get it again."),
        ("a.safetensors", b"<html>not found</html>", "can't be read (it is no safetensors file); get it"),
        ("a.safetensors", struct.pack("<Q", 2) + b"{}", "holds no LoRA: none of its 0 tensors"),
        ("a.safetensors", struct.pack("<Q", 4) + b"[1] ", "can't be read (its table is none); get it again."),
        ("a.safetensors", struct.pack("<Q", 100_000) + b"[" * 100_000, "can't be read (its table is none)"),
    ],
)
def test_what_is_no_lora_is_one_sentence(home: Home, name: str, content: bytes, says: str) -> None:
    (home.loras / name).write_bytes(content)
    with pytest.raises(UsageError, match=r"^LoRA 'a") as caught:
        loras.files_for(GenerationRequest(loras=(Lora(name=name),)), FAMILY, home)
    assert says in str(caught.value)


def test_a_model_s_own_weights_are_no_lora_and_a_cut_one_is_told_by_its_header(home: Home) -> None:
    assert FAMILY.folder is not None
    weights = FAMILY.folder / "vae" / "diffusion_pytorch_model.safetensors"
    assert "holds no LoRA: none of its" in loras.why_not(weights)
    whole = home.loras / "styles" / "soft.safetensors"
    assert loras.why_not(whole) == ""
    whole.write_bytes(whole.read_bytes()[:-100])
    assert loras.why_not(whole).startswith("is cut short (")


@pytest.mark.parametrize("name", ["lora_unet_blocks_0_self_attn_q.dora_scale", "blocks.0.to_q.lora_magnitude_vector"])
def test_what_would_act_differently_without_its_scales_is_refused(home: Home, name: str) -> None:
    found = lora_files.tensors()
    path = lora_files.save(home.loras / "scaled.safetensors", {**found, name: next(iter(found.values())).clone()})
    assert loras.why_not(path).startswith("is a DoRA: ")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_lora_or_not(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "x.safetensors"
    path.write_bytes(content)
    assert loras.why_not(path) != ""


def test_the_list_names_what_can_be_chosen_and_why_others_can_t(home: Home, tmp_path: Path) -> None:
    lora_files.save(tmp_path / "model" / "fast.safetensors", lora_files.tensors())
    (home.loras / "Old.ckpt").write_bytes(b"x")
    (home.loras / "readme.txt").write_bytes(b"x")
    family = replace(FAMILY, folder=tmp_path / "model", loras={"fast": "fast.safetensors"})
    found = loras.listed(family, home)
    assert [(one.name, one.comes_with_model, bool(one.problem)) for one in found] == [
        ("fast", True, False),
        ("Old.ckpt", False, True),
        ("styles/soft.safetensors", False, False),
    ]
    assert found[0].size == (tmp_path / "model" / "fast.safetensors").stat().st_size
    assert loras.listed(replace(FAMILY, loras={}), Home(tmp_path / "empty")) == ()
    assert not (tmp_path / "empty").exists()
