"""The one rule: the nearest possible value is used and said, or refused with the same sentence (CASES 19, 22, 23)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import UsageError
from app.models import all_families
from app.models.base import Defaults, Family, Grid, Rules
from app.request import GenerationRequest, Lora, parse_request
from tests.app.models.vocabulary import write_tokenizer

grids = st.builds(
    lambda step, offset, low, count: Grid(step, offset, low * step + offset, (low + count) * step + offset),
    st.integers(1, 40),
    st.integers(0, 40),
    st.integers(0, 10),
    st.integers(0, 20),
)


@pytest.fixture
def family(tmp_path: Path) -> Family:
    return Family(
        name="toy",
        title="Toy",
        summary="For tests.",
        licence="MIT",
        pipeline="ToyPipeline",
        defaults=Defaults(64, 48, 9, 12.0, 30, 5.0, "euler", 3.0, "blurry"),
        rules=Rules(frames=Grid(8, 1, 9, 97), width=Grid(16, 0, 32, 256), height=Grid(16, 0, 32, 256), max_steps=50),
        schedulers=("euler", "unipc"),
        takes=frozenset({"image"}),
        token_limit=32,
        folder=write_tokenizer(tmp_path),
    )


@given(grids, st.integers(-100, 5000))
def test_grids_give_the_nearest_and_the_nearest_lower(grid: Grid, value: int) -> None:
    points = range(grid.least, grid.most + 1, grid.step)
    assert all(grid.holds(point) for point in points)
    assert grid.holds(value) == (value in points)
    assert grid.lower(value) == max((p for p in points if p <= value), default=grid.least)
    assert grid.nearest(value) == min(points, key=lambda p: (abs(p - value), -p))


@given(grids, st.integers(1, 40))
def test_a_grid_for_a_model_of_other_multiples_stays_inside_its_limits(grid: Grid, step: int) -> None:
    other = grid.every(step)
    assert other.offset == grid.offset
    if grid.step % step == 0:
        assert other == grid, "coarser than it must be is fine"
        return
    assert other.step == step
    assert grid.least <= other.least < grid.least + step
    assert other.most <= grid.most or other.least == other.most, "no point inside: the nearest above"


def test_a_grid_off_its_own_points_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="not on its grid"):
        Grid(4, 1, 4, 49)


def test_defaults_are_filled_in_and_seed_and_pictures_left(family: Family) -> None:
    done = family.normalise(GenerationRequest(prompt="a red ball", image="a.png"))
    dump = done.request.model_dump()
    assert done.adjustments == ()
    assert [name for name, value in dump.items() if value is None] == ["guidance_2", "seed", "last_image"]
    assert (dump["model"], dump["width"], dump["fps"], dump["scheduler"]) == ("toy", 64, 12.0, "euler")
    assert dump["negative_prompt"] == "blurry"
    assert dump["image"] == "a.png"


def test_sizes_frames_and_steps_move_to_the_nearest_possible(family: Family) -> None:
    asked = GenerationRequest(prompt="a ball", width=250, height=1, frames=16, steps=60)
    done = family.normalise(asked)
    assert [(a.field, a.asked, a.used) for a in done.adjustments] == [
        ("width", 250, 256),
        ("height", 1, 32),
        ("frames", 16, 9),
        ("steps", 60, 50),
    ]
    assert (done.request.width, done.request.height, done.request.frames, done.request.steps) == (256, 32, 9, 50)
    assert done.adjustments[2].reason == "Toy makes 8k+1 frames, from 9 to 97, so 16 frames become 9."
    assert family.normalise(done.request).adjustments == ()
    with pytest.raises(UsageError) as caught:
        family.normalise(asked, strict=True)
    for adjustment in done.adjustments:
        assert adjustment.reason in str(caught.value)


def test_long_prompts_are_kept_whole_and_the_cut_is_said(family: Family) -> None:
    prompt = "red " * 100
    done = family.normalise(GenerationRequest(prompt=prompt))
    assert done.request.prompt == prompt
    assert done.prompt_tokens is not None
    assert done.prompt_tokens.sentence() == "32 of 101 tokens used"
    (adjustment,) = done.adjustments
    assert (adjustment.field, adjustment.asked, adjustment.used) == ("prompt", "101 tokens", "32 tokens")
    assert "32 of 101 tokens used" in adjustment.reason
    with pytest.raises(UsageError, match="32 of 101 tokens used"):
        family.normalise(GenerationRequest(prompt=prompt), strict=True)


def test_unknown_words_are_said(family: Family) -> None:
    done = family.normalise(GenerationRequest(prompt="a rokcet with wings"))
    assert done.notes["prompt"] == (
        "Toy does not know 'rokcet', 'with', 'wings', so the clip may not show them. "
        "Did you mean 'rocket' for 'rokcet'?"
    )
    assert done.adjustments == ()
    assert family.normalise(GenerationRequest(prompt="a rokcet with wings"), strict=True) == done


def test_the_models_own_negative_prompt_is_not_held_against_the_person(family: Family) -> None:
    assert family.normalise(GenerationRequest(prompt="a ball"), strict=True).request.negative_prompt == "blurry"
    taking = replace(family, takes=frozenset({"negative_prompt"}))
    notes = taking.normalise(GenerationRequest(prompt="a ball", negative_prompt="fog")).notes
    assert list(notes) == ["negative_prompt"]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (GenerationRequest(scheduler="ddim"), "scheduler: Toy has no 'ddim': possible are euler, unipc."),
        (GenerationRequest(last_image="a.png"), "last_image: Toy can't use a last picture"),
        (GenerationRequest(loras=(Lora(name="a"),)), "loras: Toy can't use LoRAs"),
        (GenerationRequest(negative_prompt="x"), "negative_prompt: Toy can't use"),
        (GenerationRequest(shift=5), "shift: Toy works with 3 only"),
    ],
)
def test_what_has_no_nearest_value_is_refused(family: Family, request_: GenerationRequest, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        family.normalise(request_)
    assert str(caught.value).startswith(says)


def test_what_a_model_can_not_do_without_is_asked_for(family: Family) -> None:
    needing = replace(family, takes=frozenset({"image", "last_image"}), needs=frozenset({"image"}))
    with pytest.raises(UsageError, match="image: Toy needs a picture; give one or choose another model"):
        needing.normalise(GenerationRequest())
    with pytest.raises(UsageError, match="image: Toy needs a picture"):
        needing.normalise(GenerationRequest(last_image="b.png"))
    assert needing.normalise(GenerationRequest(image="a.png", last_image="b.png")).adjustments == ()
    optional = replace(needing, needs=frozenset())
    with pytest.raises(UsageError, match="image: Toy leads from a picture to a last picture; give the first one too"):
        optional.normalise(GenerationRequest(last_image="b.png"))


def test_what_guidance_leaves_without_effect_is_said(family: Family) -> None:
    two = replace(
        family, folder=None, takes=family.takes | {"negative_prompt"}, defaults=replace(family.defaults, guidance_2=2.5)
    )

    def said(**more: Any) -> list[str]:
        asked: dict[str, Any] = {"prompt": "a ball", "negative_prompt": "fog", "guidance_2": 3.0}
        request = GenerationRequest(**asked | more)
        return [item.reason for item in two.normalise(request).adjustments]

    assert said() == []
    assert said(guidance=1.0) == [
        "Toy heeds no negative prompt at a guidance of 1, only above 1.",
        "Toy heeds no second guidance at a guidance of 1, only above 1.",
    ]
    assert said(prompt=" ") == [
        "Toy heeds no negative prompt without a prompt.",
        "Toy heeds no second guidance without a prompt.",
    ]
    assert said(guidance=1.0, negative_prompt=None, guidance_2=None) == []
    assert said(guidance=1.0, negative_prompt="blurry", guidance_2=2.5) == [], "the model's own are nobody's words"
    with pytest.raises(UsageError, match="heeds no negative prompt"):
        two.normalise(GenerationRequest(prompt="a ball", negative_prompt="fog", guidance=1.0), strict=True)


def test_a_second_guidance_is_for_models_with_two_transformers(family: Family) -> None:
    with pytest.raises(UsageError, match="guidance_2: Toy has no second transformer"):
        family.normalise(GenerationRequest(guidance_2=3.0))
    two = replace(family, defaults=replace(family.defaults, guidance_2=2.5))
    assert two.normalise(GenerationRequest()).request.guidance_2 == 2.5
    assert two.normalise(GenerationRequest(guidance_2=3.0)).request.guidance_2 == 3.0


def test_a_distilled_model_has_its_own_number_of_steps(family: Family) -> None:
    distilled = replace(family, timesteps=(1000, 500, 10), defaults=replace(family.defaults, steps=3))
    assert distilled.normalise(GenerationRequest(), strict=True).request.steps == 3
    (one,) = distilled.normalise(GenerationRequest(steps=1)).adjustments
    assert one.reason == "Toy was distilled to 3 steps, so 1 becomes 3."


def test_a_model_that_shifts_by_itself_takes_no_shift(family: Family) -> None:
    own = replace(family, defaults=replace(family.defaults, shift=None))
    assert own.normalise(GenerationRequest()).request.shift is None
    with pytest.raises(UsageError, match="shift: Toy sets its own; remove it"):
        own.normalise(GenerationRequest(shift=3.0))


def test_a_picture_decides_the_pipeline(family: Family) -> None:
    assert family.pipeline_for(GenerationRequest(image="a.png")) == "ToyPipeline"
    two = replace(family, image_pipeline="ToyImagePipeline")
    assert two.pipeline_for(GenerationRequest(image="a.png")) == "ToyImagePipeline"
    assert two.pipeline_for(GenerationRequest()) == "ToyPipeline"


def test_families_can_be_told_apart_by_hash(family: Family) -> None:
    assert len({family, replace(family, name="other"), replace(family)}) == 2


def test_a_model_that_is_not_here_yet_counts_no_tokens(family: Family) -> None:
    away = replace(family, folder=None)
    assert away.normalise(GenerationRequest(prompt="red " * 100)).prompt_tokens is None


@given(
    st.sampled_from(all_families()),
    st.integers(1, 16_384),
    st.integers(1, 16_384),
    st.integers(1, 10_000),
    st.integers(1, 1000),
)
def test_normalising_always_fits_and_is_stable(model: Family, width: int, height: int, frames: int, steps: int) -> None:
    pictures: dict[str, Any] = dict.fromkeys(model.needs, "a.png")
    asked = GenerationRequest(model=model.name, width=width, height=height, frames=frames, steps=steps, **pictures)
    done = model.normalise(asked)
    again = model.normalise(parse_request(done.request.model_dump(mode="json"), "x"), strict=True)
    assert again.request == done.request
    assert {a.field for a in done.adjustments} == {
        name for name in ("width", "height", "frames", "steps") if getattr(asked, name) != getattr(done.request, name)
    }
