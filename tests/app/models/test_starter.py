"""The starter's own facts, against the numbers that were promised (CASES 19) and against the weights beside it."""

from __future__ import annotations

import json

import pytest

from app.errors import UsageError
from app.estimate import parameters_in
from app.models import all_families, family_for
from app.models.starter import STARTER, WEIGHTS
from app.request import GenerationRequest
from app.starter.world import SHAPES


def test_the_starter_comes_first_and_needs_no_download() -> None:
    assert all_families()[0] is STARTER
    assert family_for("starter") is STARTER
    assert (STARTER.licence, STARTER.download.value, STARTER.folder) == ("Apache-2.0", 0, WEIGHTS)
    known = rf'"startr" is not known: did you mean "starter"; .*--models\) has all {len(all_families())}\.$'
    with pytest.raises(UsageError, match=known):
        family_for("startr")


def test_names_of_models_are_unique() -> None:
    names = [name for family in all_families() for name in (family.name, *family.aliases)]
    assert len(names) == len(set(names))


def test_defaults_are_possible_and_fixed() -> None:
    done = STARTER.normalise(GenerationRequest(), strict=True).request
    assert (done.width, done.height, done.frames, done.fps) == (256, 160, 25, 8.0)
    assert (done.steps, done.guidance, done.scheduler, done.negative_prompt) == (20, 4.0, "unipc", "")


@pytest.mark.parametrize(
    ("asked", "used"), [(15, 13), (16, 13), (17, 17), (1, 5), (4, 5), (48, 45), (50, 49), (9999, 49)]
)
def test_frames_go_to_the_nearest_lower_possible_number(asked: int, used: int) -> None:
    assert STARTER.normalise(GenerationRequest(frames=asked)).request.frames == used


@pytest.mark.parametrize(
    ("asked", "used"), [((250, 141), (256, 128)), ((144, 176), (160, 192)), ((1, 9999), (64, 512))]
)
def test_sizes_go_to_the_nearest_possible(asked: tuple[int, int], used: tuple[int, int]) -> None:
    done = STARTER.normalise(GenerationRequest(width=asked[0], height=asked[1])).request
    assert (done.width, done.height) == used


def test_the_weights_agree_with_the_data() -> None:
    """Grid, token limit and shift follow from the model's own files."""
    index = json.loads((WEIGHTS / "model_index.json").read_text())
    assert index["_class_name"] == STARTER.pipeline
    vae = json.loads((WEIGHTS / "vae" / "config.json").read_text())
    transformer = json.loads((WEIGHTS / "transformer" / "config.json").read_text())
    scheduler = json.loads((WEIGHTS / "scheduler" / "scheduler_config.json").read_text())
    patch = transformer["patch_size"]
    assert STARTER.rules.width.step == STARTER.rules.height.step == vae["scale_factor_spatial"] * patch[1]
    assert STARTER.rules.frames.step % vae["scale_factor_temporal"] == 0
    assert scheduler["_class_name"] == "UniPCMultistepScheduler"
    assert scheduler["flow_shift"] == STARTER.defaults.shift
    numbers = sum(parameters_in(WEIGHTS / part) for part in ("transformer", "vae", "text_encoder"))
    assert {dtype: figure.value for dtype, figure in STARTER.memory.items()} == {
        "bfloat16": 2 * numbers,
        "float32": 4 * numbers,
    }


def test_a_4000_word_prompt_says_how_much_is_read() -> None:
    done = STARTER.normalise(GenerationRequest(prompt="red ball " * 2000))
    assert done.prompt_tokens is not None
    assert done.prompt_tokens.sentence() == "64 of 4,001 tokens used"
    assert len(done.request.prompt) == 18_000


def test_unknown_words_are_named() -> None:
    done = STARTER.normalise(GenerationRequest(prompt="a red unicorn in space"))
    assert done.notes == {
        "prompt": "The starter does not know 'unicorn', so the clip may not show it; it knows: ball, box, star, heart, "
        "fish, car, boat, rocket, balloon, bird, tree, house."
    }
    assert set(STARTER.knows) == set(SHAPES)
    assert STARTER.normalise(GenerationRequest(prompt=", ".join(STARTER.knows))).notes == {}


def test_a_typo_is_answered_with_the_word_that_was_meant_alone() -> None:
    done = STARTER.normalise(GenerationRequest(prompt="a red rokcet"))
    assert done.notes["prompt"].endswith("so the clip may not show it. Did you mean 'rocket' for 'rokcet'?")


@pytest.mark.parametrize("prompt", ["", "   ", "\n"])
def test_an_empty_prompt_runs_without_condition(prompt: str) -> None:
    done = STARTER.normalise(GenerationRequest(prompt=prompt), strict=True)
    assert done.request.prompt == prompt
    assert done.prompt_tokens is not None
    assert done.prompt_tokens.used == 1
