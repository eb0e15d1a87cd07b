"""Which files of a repository are fetched: settings and one set of safetensors weights for each component."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import CannotRunError
from app.models.sources.choosing import PICKLES, has_weights, is_pickle, needed
from tests.app.models.sources.fake_hub import INDEX, NEEDED, model

ONE = {"transformer": ["diffusers", "WanTransformer3DModel"]}
TEXT = {"text_encoder": ["transformers", "UMT5EncoderModel"]}


def chosen(index: dict[str, list[str]], *names: str) -> set[str]:
    """What is chosen of one component's files, besides the index."""
    (component,) = index
    found = needed(["model_index.json", *(f"{component}/{name}" for name in names)], index, "a/b")
    return {path.removeprefix(f"{component}/") for path in found} - {"model_index.json"}


def test_a_model_among_all_that_a_repository_holds() -> None:
    assert list(needed(model(9), INDEX, "a/b")) == sorted(NEEDED)


def test_shards_go_before_a_single_file_where_the_library_looks_for_them_first() -> None:
    both = (
        "config.json",
        "{0}.safetensors",
        "{0}.safetensors.index.json",
        "{0}-00001-of-00002.safetensors",
        "{0}-00002-of-00002.safetensors",
    )
    diffusers = chosen(ONE, *(name.format("diffusion_pytorch_model") for name in both))
    assert "diffusion_pytorch_model.safetensors" not in diffusers
    assert len(diffusers) == 4
    transformers = chosen(TEXT, *(name.format("model") for name in both))
    assert {name for name in transformers if name.endswith(".safetensors")} == {"model.safetensors"}


def test_shards_without_their_list_are_no_weights() -> None:
    with pytest.raises(CannotRunError, match="transformer has no safetensors weights"):
        chosen(ONE, "config.json", "diffusion_pytorch_model-00001-of-00002.safetensors")


def test_a_variant_is_never_taken_for_the_weights() -> None:
    names = ("config.json", "model.safetensors", "model.fp16.safetensors", "model.fp16.safetensors.index.json")
    assert chosen(TEXT, *names) == {"config.json", "model.safetensors"}
    with pytest.raises(CannotRunError, match="only as bf16, fp16 variants"):
        chosen(TEXT, "config.json", "model.fp16.safetensors", "model.bf16-00001-of-00002.safetensors")


@given(st.sampled_from(PICKLES), st.text("abc_", min_size=1, max_size=12))
def test_pickles_are_never_chosen_and_refused_when_there_is_nothing_else(ending: str, stem: str) -> None:
    name = stem + ending
    assert is_pickle(name)
    assert is_pickle(name.upper())
    assert chosen(TEXT, "config.json", "model.safetensors", name) == {"config.json", "model.safetensors"}
    with pytest.raises(CannotRunError, match="only pickled weights"):
        chosen(TEXT, "config.json", name)


def test_a_component_that_is_not_there_is_named() -> None:
    with pytest.raises(CannotRunError, match="a/b lacks the folder transformer"):
        needed(["model_index.json"], ONE, "a/b")


@pytest.mark.parametrize("index", [{}, [], "text", None, {"_class_name": "WanPipeline", "x": [None, None]}])
def test_an_index_that_names_nothing_is_no_model(index: object) -> None:
    with pytest.raises(CannotRunError, match=r"names no components"):
        needed(["model_index.json"], index, "a/b")


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("WanTransformer3DModel", True), ("AutoencoderKLWan", True), ("UMT5EncoderModel", True),
        ("CLIPVisionModelWithProjection", True), ("LlamaModel", True), ("LTX2TextConnectors", True),
        ("T5TokenizerFast", False), ("TokenizersBackend", False), ("UniPCMultistepScheduler", False),
        ("CLIPImageProcessor", False), ("Gemma3Processor", False), ("ClassifierFreeGuidance", False),
        ("SiglipFeatureExtractor", False),
    ],
)  # fmt: skip
def test_which_components_have_weights(kind: str, weights: bool) -> None:
    assert has_weights(kind) is weights
