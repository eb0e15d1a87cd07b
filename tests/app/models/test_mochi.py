"""Mochi on a tiny pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from app.models import mochi
from app.models.base import Family
from app.request import GenerationRequest
from tests.app.models.families import check_clips, check_facts, check_schedulers

Tiny = Callable[[str], Path]

SHAPES = {
    mochi.MOCHI: "mochi",
}
each = pytest.mark.parametrize("family", SHAPES, ids=lambda family: family.name)


def test_every_family_is_held_to_something() -> None:
    assert tuple(SHAPES) == mochi.FAMILIES


@each
def test_what_a_family_says_agrees_with_its_files(family: Family, tiny_models: Tiny) -> None:
    check_facts(family, tiny_models(SHAPES[family]))
    check_schedulers(family, tiny_models(SHAPES[family]))


@pytest.mark.parametrize("family", [mochi.MOCHI], ids=lambda family: family.name)
def test_clips_are_made_repeated_and_accelerated(family: Family, tiny_models: Tiny, tmp_path: Path) -> None:
    check_clips(family, tiny_models(SHAPES[family]), tmp_path)


def test_one_step_is_one_too_few() -> None:
    (adjustment,) = mochi.MOCHI.normalise(GenerationRequest(model="mochi", steps=1)).adjustments
    assert adjustment.reason == "Mochi 1 takes at least 2 steps, so 1 becomes 2."
