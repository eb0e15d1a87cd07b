"""A repository, a folder or a single file as the model of a request: which family it is, and why it is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from app.errors import UsageError
from app.models import all_families, family_for, sources
from app.models.base import Family, Figure
from app.models.sources.cache import storage_of
from app.models.sources.resolving import is_source
from app.models.starter import STARTER
from app.request import GenerationRequest
from tests.app.models.sources.fake_hub import COMMIT
from tests.app.models.sources.test_gguf import gguf


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A model of the person's own."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "My Model"))


def in_the_cache(tiny_folder: Path, cache: Path, repo: str) -> Path:
    snapshot = storage_of(repo, cache) / "snapshots" / COMMIT
    shutil.copytree(tiny_folder, snapshot)
    main = storage_of(repo, cache) / "refs" / "main"
    main.parent.mkdir()
    main.write_text(COMMIT, encoding="utf-8")
    return snapshot


def test_a_name_of_the_catalogue_gets_the_folder_where_it_lies(
    tiny_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wan = next(one for one in all_families() if one.repos)
    assert wan.repo is not None
    assert family_for(wan.name).folder is None
    snapshot = in_the_cache(tiny_folder, cache, wan.repo)
    for name in (wan.name, wan.repo, f"hf:{wan.repo}"):
        found = family_for(name)
        assert (found.name, found.folder) == (wan.name, snapshot)
    (snapshot / "vae" / "config.json").unlink()
    assert family_for(wan.name).folder is None
    assert "vae/config.json is missing): fetch the rest" in sources.why_not_here(wan)


def test_any_repository_that_was_fetched_is_a_model(tiny_folder: Path, cache: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"fetch it under Models \(on the command line: python launch.py --fetch hf:some-one/some.model\)",
    ):
        family_for("hf:some-one/some.model")
    snapshot = in_the_cache(tiny_folder, cache, "some-one/some.model")
    found = family_for("hf:some-one/some.model")
    assert (found.name, found.folder, found.repo) == ("hf:some-one/some.model", snapshot, "some-one/some.model")
    assert found.pipeline == "WanPipeline"
    normalised = found.normalise(GenerationRequest(model="hf:some-one/some.model", prompt="a ball")).request
    assert family_for(normalised.model) == found
    (snapshot / "vae" / "config.json").unlink()
    with pytest.raises(
        UsageError, match=r"not whole \(vae/config.json is missing\): fetch the rest under Models .*hf:some-one"
    ):
        family_for("hf:some-one/some.model")


def test_a_folder_is_a_model_under_its_own_path(folder: Path, cache: Path) -> None:
    found = family_for(str(folder))
    assert (found.name, found.title, found.folder) == (str(folder), "My Model", folder)
    assert found.knows == (), "what the starter can show says nothing of another model built alike"
    normalised = found.normalise(GenerationRequest(model=str(folder), prompt="a ball", width=70)).request
    assert normalised.model == str(folder)
    assert family_for(normalised.model) == found
    assert found.repos == ()


def test_a_path_may_be_written_in_several_ways(folder: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("HOME", str(folder.parent))
    for text in ("./My Model", "~/My Model", f"{folder}/"):
        assert family_for(text).folder == folder


def test_a_path_below_the_person_s_folder_tells_nobody_their_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    found = family_for(str(folder))
    assert found.name == "~/My Model"
    assert family_for(found.name) == found


def test_of_several_families_the_most_alike_is_taken(folder: Path, cache: Path) -> None:
    from app.models.sources.resolving import family_of

    small = replace(STARTER, name="small", memory={"bfloat16": Figure(2 * 100_000)}, repos=("a/small",))
    large = replace(STARTER, name="large", memory={"bfloat16": Figure(2 * 10**10)}, repos=("a/My Model",))
    other = replace(STARTER, name="other", pipeline="LTXPipeline", repos=("a/other",))

    def chosen(path: Path, *known: Family) -> Family:
        return family_of(str(path), [replace(one, summary=one.name) for one in known], sources.locate)

    assert chosen(folder, other, small, large).summary == "large", "the repository is called like the folder"
    renamed = folder.rename(folder.with_name("renamed"))
    assert chosen(renamed, other, large, small).summary == "small"


@pytest.mark.parametrize(
    ("built", "like"),
    [
        ("wan-t2v", "wan2.1-t2v-1.3b"),  # not the starter, which is as small, but whose sides go by 32
        ("wan-t2v-two", "wan2.2-t2v-a14b"),
        ("wan-ti2v", "wan2.2-ti2v-5b"),  # nor here, where its sides are alike, but two of its frames make one latent
        ("wan-i2v", "wan2.1-i2v-14b-480p"),
        ("wan-flf2v", "wan2.1-flf2v-14b-720p"),
        ("wan-i2v-two", "wan2.2-i2v-a14b"),
        ("cogvideox-i2v", "cogvideox-5b-i2v"),
        ("cogvideox-15", "cogvideox-1.5-5b"),
    ],
)
def test_a_model_of_any_size_is_taken_by_its_build(
    built: str, like: str, tiny_models: Callable[[str], Path], cache: Path
) -> None:
    found, family = family_for(str(tiny_models(built))), family_for(like)
    assert (found.takes, found.needs, found.token_limit) == (family.takes, family.needs, family.token_limit)
    assert (found.defaults, found.rules.frames) == (family.defaults, family.rules.frames)


def test_what_can_t_be_a_model_is_refused_in_a_sentence(folder: Path, cache: Path, tmp_path: Path) -> None:
    def refused(model: str) -> str:
        with pytest.raises(UsageError) as raised:
            family_for(model)
        assert "\n" not in str(raised.value)
        return str(raised.value)

    assert "is not on this machine; choose another folder or file" in refused(str(tmp_path / "nowhere"))
    assert "is no model in diffusers layout" in refused(str(tmp_path))
    assert "path of another system" in refused("C:\\models\\wan")
    assert "lies on another machine" in refused("\\\\server\\share\\model")
    assert "lies on another machine" in refused("//server/share/model")
    assert "path of another system" in refused("/tmp/a\0b")
    assert "is no repository; write hf:OWNER/NAME" in refused("hf:../../etc")
    assert "is no repository; write hf:OWNER/NAME" in refused("hf:model")
    for name in ("old.ckpt", "old.bin", "old.PT"):
        (tmp_path / name).write_bytes(b"pickled")
        assert "pickled weights, which can run code" in refused(str(tmp_path / name))
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    assert "choose a file that ends in .safetensors or .gguf" in refused(str(tmp_path / "a.txt"))

    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    (folder / "model_index.json").write_text(json.dumps({**index, "_class_name": "FluxPipeline"}), encoding="utf-8")
    assert 'is a "FluxPipeline", which Kinetile does not know; it knows' in refused(str(folder))
    (folder / "model_index.json").write_text("[]", encoding="utf-8")
    assert "can't be read" in refused(str(folder))


def test_a_folder_that_is_not_whole_says_what_it_lacks(folder: Path, cache: Path) -> None:
    (folder / "text_encoder" / "model.safetensors").unlink()
    (folder / "text_encoder" / "pytorch_model.bin").write_bytes(b"pickled")
    with pytest.raises(UsageError, match=r"not whole \(text_encoder/pytorch_model.bin is pickled, which can run code"):
        family_for(str(folder))


def test_a_single_file_takes_the_place_of_a_transformer_of_its_size(
    tiny_family: Family, tiny_folder: Path, tmp_path: Path, cache: Path
) -> None:
    from app.models.sources.wholeness import numbers_in, tensors_in

    own = tiny_folder / "transformer" / "diffusion_pytorch_model.safetensors"
    file = Path(shutil.copy(own, tmp_path / "tuned.safetensors"))
    found = family_for(str(file))
    assert (found.name, found.title, found.file, found.folder) == (str(file), "tuned", file, tiny_folder)

    quantised = tmp_path / "tuned-Q4.gguf"
    quantised.write_bytes(gguf(tensors_in(own)))
    assert family_for(str(quantised)).file == quantised

    count = numbers_in(tensors_in(own))
    quantised.write_bytes(gguf({"weight": (count, 2)}))
    with pytest.raises(UsageError, match="billion parameters, as no model here does"):
        family_for(str(quantised))
    quantised.write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=r"can't be read .* copy or download it again"):
        family_for(str(quantised))
    save_file({}, str(file))
    with pytest.raises(UsageError, match="holds no tensors"):
        family_for(str(file))


def test_of_models_that_are_built_alike_the_file_s_name_decides(tiny_folder: Path, tmp_path: Path) -> None:
    from app.models.sources.resolving import family_of

    own = tiny_folder / "transformer" / "diffusion_pytorch_model.safetensors"
    known = [
        replace(STARTER, name=name, folder=tiny_folder, summary=name)
        for name in ("sky2-df", "wan2.1-480p", "wan2.1-720p")
    ]

    def chosen(name: str) -> str:
        file = Path(shutil.copy(own, tmp_path / name))
        return family_of(str(file), known, sources.locate).summary

    assert chosen("Wan2_1-tuned_720P-Q4.safetensors") == "wan2.1-720p"
    assert chosen("Sky2_tuned.safetensors") == "sky2-df"
    with pytest.raises(UsageError, match=r"tuned.safetensors may have been made from sky2-df or wan2.1-480p or wan2"):
        chosen("tuned.safetensors")


@pytest.mark.parametrize("name", ["transformer.blocks.0.attn1.to_q.lora_A.weight", "lora_unet_a.lora_down.weight"])
def test_a_lora_is_told_from_a_model(name: str, tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "soft.safetensors"
    save_file({name: np.zeros((2, 3), np.float32)}, file)
    with pytest.raises(UsageError, match=r"soft.safetensors is a LoRA, which goes beside a model: put it into loras"):
        family_for(str(file))
    save_file({name: np.zeros((2, 3), np.float32), "blocks.0.attn1.to_q.weight": np.zeros((2, 3), np.float32)}, file)
    with pytest.raises(UsageError, match="as no model here does"):
        family_for(str(file))


@given(st.text(max_size=40))
def test_any_text_is_a_model_or_a_sentence(model: str) -> None:
    try:
        assert isinstance(family_for(model), Family)
    except UsageError as error:
        assert str(error).startswith("model: ")  # noqa: PT017


def test_names_of_the_catalogue_are_never_paths() -> None:
    for family in all_families():
        assert not any(is_source(name) for name in (family.name, *family.aliases, *family.repos))
