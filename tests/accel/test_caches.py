"""What a plan says about step caches: which are possible, how strong, and why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel import caches, make_plan
from accel.errors import PlanError
from accel.readouts.ranking import Readouts
from accel.readouts.results import Quality
from accel.types import ModelTraits, Plan, Preferences, StageTraits
from tests import builders

MACHINE = replace(builders.machine("bf16"), compiler="g++")
TRANSFORMER = StageTraits(
    "transformer",
    "WanTransformer3DModel",
    heads=12,
    head_dim=128,
    tokens=1000,
    attention_calls=60,
    self_attention=30,
    caches=dict.fromkeys(caches.NAMES, ""),
)
TRAITS = ModelTraits("Wan", "WanPipeline", (TRANSFORMER, StageTraits("vae", "AutoencoderKLWan")))


def plan(
    traits: ModelTraits = TRAITS, readouts: Readouts | None = None, cache: str = "auto", compile: str = "no"
) -> Plan:
    return make_plan(MACHINE, traits, Preferences(cache=cache, compile=compile), readouts=readouts)


def engaged(cache: str = "auto", compile: str = "no") -> str:
    stage = plan(cache=cache, compile=compile).stage("transformer")
    assert stage is not None
    return stage.cache.engaged


def test_auto_takes_none() -> None:
    assert engaged() == engaged(cache="none") == "none"
    assert "cache" not in {choice.setting for choice in plan().choices()}


@pytest.mark.parametrize("name", caches.NAMES)
def test_a_cache_is_taken_when_asked_for(name: str) -> None:
    found = plan(cache=name)
    (choice,) = [choice for choice in found.choices() if choice.setting == "cache"]
    assert (choice.engaged, choice.requested) == (name, name)
    assert "approximate" in choice.reasons[0]
    assert Plan.from_dict(found.to_dict()) == found
    cache = caches.known(name)
    assert cache is not None
    assert engaged(cache=f"{name}:{cache.strength:g}") == name
    assert engaged(cache=f"{name}:{cache.most:g}") == f"{name}:{cache.most:g}"


@given(st.sampled_from(caches.CACHES), st.floats(allow_nan=True, allow_infinity=True))
def test_a_strength_is_kept_or_refused_with_its_limits(cache: caches.StepCache, strength: float) -> None:
    fits = cache.least <= strength <= cache.most and (not cache.whole or strength == int(strength))
    wish = f"{cache.name}:{strength!r}"
    if fits:
        assert caches.strength_of(wish) == strength
    else:
        with pytest.raises(ValueError, match=f"from {cache.limits}, not {strength!r}".replace("+", r"\+")):
            caches.strength_of(wish)


@pytest.mark.parametrize("wish", ["first_block:", "first_block:x", "first_block:0.1:2", "taylorseer:2.5"])
def test_what_is_no_strength_is_refused(wish: str) -> None:
    with pytest.raises(PlanError, match=rf"cache={wish} can't be used: its strength is a"):
        plan(cache=wish)


def test_an_unknown_cache_is_refused_with_those_there_are() -> None:
    with pytest.raises(PlanError, match="cache=tea is not known, allowed are auto, none, first_block, mag"):
        plan(cache="tea")


def test_a_model_s_reason_is_given() -> None:
    stage = replace(TRANSFORMER, caches={**TRANSFORMER.caches, "mag": "it has no blocks"})
    with pytest.raises(PlanError, match="cache=mag can't be used here: it has no blocks"):
        plan(ModelTraits("Wan", "WanPipeline", (stage,)), cache="mag")
    with pytest.raises(PlanError, match="nothing is known of WanTransformer3DModel"):
        plan(ModelTraits("Wan", "WanPipeline", (replace(TRANSFORMER, caches={}),)), cache="mag")


def test_attention_can_t_be_skipped_inside_compiled_blocks() -> None:
    with pytest.raises(PlanError, match=r"cache=pyramid can't be used here: .* compile=yes makes into one piece"):
        plan(cache="pyramid", compile="yes")
    for name in ("first_block", "mag", "taylorseer"):
        assert engaged(cache=name, compile="yes") == name


def test_measured_likeness_is_told_where_it_holds() -> None:
    quality = Quality("a model", "transformer", "cache", "first_block", 20, 34.56, 0.97, 30.0, 0.9)
    known = Readouts(qualities={("transformer", "cache", "first_block"): quality})

    def told(wish: str) -> str:
        stage = plan(readouts=known, cache=wish).stage("transformer")
        assert stage is not None
        return " ".join(stage.cache.reasons)

    assert "34.6 dB" in told("first_block")
    assert "dB" not in told("first_block:0.2")
    assert "dB" not in told("mag")


def test_memory_counts_what_is_kept() -> None:
    tensor: Any = 1000 * 12 * 128 * 2 * 2  # bytes of one tensor of bf16 for two passes
    assert caches.memory("none", TRANSFORMER, 2) == 0
    assert caches.memory("pyramid:3", TRANSFORMER, 2) == 30 * tensor
    assert caches.memory("first_block", TRANSFORMER, 2) == 3 * tensor
