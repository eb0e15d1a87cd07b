"""The form holds every request exactly, and refuses what is none."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import UsageError
from app.models import family_for
from app.request import MAX_SEED, AccelPreferences, GenerationRequest, Lora
from app.ui.create import _defaults_of, _possible
from app.ui.form import FIXED, NAMES, RANDOM, request_of, values_of
from app.ui.saved import _fits, restored

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
REQUESTS = st.builds(
    GenerationRequest,
    prompt=WORDS,
    negative_prompt=st.none() | WORDS,
    width=st.none() | st.integers(1, 600),
    height=st.none() | st.integers(1, 600),
    frames=st.none() | st.integers(1, 60),
    fps=st.none() | st.floats(1, 60),
    steps=st.none() | st.integers(1, 1000),
    guidance=st.none() | st.floats(0, 20),
    seed=st.none() | st.integers(0, MAX_SEED),
    shift=st.none() | st.floats(0.1, 20),
    count=st.integers(1, 1000),
    loras=st.lists(st.builds(Lora, name=st.just("soft.safetensors"), weight=st.floats(-10, 10)), max_size=2).map(tuple),
    accel=st.builds(
        AccelPreferences,
        attention=st.sampled_from(["auto", "sdpa"]),
        dtype=st.sampled_from(["auto", "float32"]),
        gpus=st.integers(1, 64),
    ),
)


def through_a_browser(values: dict[str, Any]) -> dict[str, Any]:
    """As JSON takes it there and back; the browser writes 8.0 as 8."""
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in json.loads(json.dumps(values)).items()
    }


@given(REQUESTS)
def test_a_request_comes_back_as_it_went_in(request: GenerationRequest) -> None:
    back = request_of(through_a_browser(values_of(request)))
    defaults = family_for("starter").defaults
    open_fields = {
        name: getattr(defaults, name)
        for name in ("width", "height", "frames", "fps", "steps", "guidance", "scheduler", "shift")
        if getattr(request, name) is None
    }
    expected = request.model_copy(update={**open_fields, "negative_prompt": request.negative_prompt or None})
    assert back == expected


@given(st.none() | st.floats(0, 20), st.none() | WORDS)
def test_a_second_guidance_and_an_emptied_negative_prompt_come_back(second: float | None, words: str | None) -> None:
    asked = GenerationRequest(model="wan2.2-t2v-a14b", guidance_2=second, negative_prompt=words)
    defaults = family_for(asked.model).defaults
    back = request_of(through_a_browser(values_of(asked)))
    assert back.guidance_2 == (defaults.guidance_2 if second is None else second)
    assert back.negative_prompt == (defaults.negative_prompt if words is None else words)


def test_another_model_brings_its_own_values_and_leaves_ones_own_words() -> None:
    before = values_of(GenerationRequest(prompt="a ball", seed=5, steps=3))
    after = dict(zip(NAMES, _defaults_of("wan2.2-t2v-a14b", *before.values()), strict=True))
    own = family_for("wan2.2-t2v-a14b").defaults
    assert (after["prompt"], after["seed"], after["steps"], after["guidance_2"]) == ("a ball", "5", 40, 3.0)
    assert after["negative_prompt"] == own.negative_prompt
    again = dict(zip(NAMES, _defaults_of("starter", *after.values()), strict=True))
    assert (again["negative_prompt"], again["guidance_2"]) == ("", None)
    mine = before | {"negative_prompt": "fog"}
    assert dict(zip(NAMES, _defaults_of("wan2.2-t2v-a14b", *mine.values()), strict=True))["negative_prompt"] == "fog"


def test_only_what_the_model_takes_can_be_chosen() -> None:
    scheduler, shift, second, *_ = _possible("wan2.2-t2v-a14b")
    assert (scheduler["choices"], shift["visible"], second["visible"]) == (["unipc", "euler"], True, True)
    scheduler, shift, second, *_ = _possible("ltx-2b-0.9.5")
    assert (scheduler["choices"], shift["visible"], second["visible"]) == (["euler"], False, False)


def test_an_empty_field_means_the_models_default() -> None:
    values = values_of(GenerationRequest()) | {"width": None, "steps": None, "guidance": None, "scheduler": ""}
    request = request_of(values)
    assert (request.width, request.steps, request.guidance, request.scheduler) == (None, None, None, None)


@pytest.mark.parametrize("seed", ["", "-1", "1.5", "9007199254740992", "1e3", "٣", "7" * 400, "0x10"])
def test_no_seed_is_rounded_or_guessed(seed: str) -> None:
    with pytest.raises(UsageError, match=r"^seed: .*from 0 to 9,007,199,254,740,991\b"):
        request_of(values_of(GenerationRequest()) | {"seed_mode": FIXED, "seed": seed})


def test_random_needs_no_number() -> None:
    assert request_of(values_of(GenerationRequest()) | {"seed_mode": RANDOM, "seed": "rubbish"}).seed is None


@pytest.mark.parametrize("carried", ["rubbish", "[]", '{"prompt": "smuggled"}', "{"])
def test_what_is_carried_is_checked(carried: str) -> None:
    with pytest.raises(UsageError, match="import it again"):
        request_of(values_of(GenerationRequest()) | {"carried": carried})


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.sampled_from(NAMES), x),
    )
)
def test_whatever_the_browser_kept_the_page_opens(stored: Any) -> None:
    assert len(restored(stored)) == len(NAMES)


RUBBISH: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5) | st.just(2**70) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
DEEP = "[" * 100_000


@given(st.sampled_from(NAMES), RUBBISH | RUBBISH.map(json.dumps) | st.just(DEEP))
@example("width", float("inf"))
@example("gpus", float("nan"))
@example("carried", DEEP)
@example("loras", DEEP)
@example("model", ["starter"])
def test_whatever_a_program_puts_into_a_field_is_a_request_or_one_sentence(name: str, value: Any) -> None:
    try:
        found = request_of(values_of(GenerationRequest(prompt="a ball")) | {name: value})
    except UsageError as error:
        assert str(error)  # noqa: PT017
    else:
        assert isinstance(found, GenerationRequest)
    with contextlib.suppress(UsageError):
        _possible(value, value, value, value)
    with contextlib.suppress(UsageError):
        _defaults_of(value, *values_of(GenerationRequest()).values())


@given(REQUESTS)
def test_what_the_form_holds_is_restored(request: GenerationRequest) -> None:
    values = through_a_browser(values_of(request))
    assert [update.get("value") for update in restored(values)] == [values[name] for name in NAMES]


def test_types_are_checked_field_by_field() -> None:
    assert _fits("steps", 5)
    assert not any(
        [
            _fits("steps", True),
            _fits("steps", "5"),
            _fits("steps", float("inf")),
            _fits("seed_mode", "x"),
            _fits("model", "no"),
        ]
    )
