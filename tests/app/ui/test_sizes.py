"""Aspect and quality against the model's grid."""

from __future__ import annotations

import math

import pytest

from app.models import all_families
from app.models.base import Family
from app.ui.sizes import ASPECTS, CUSTOM, QUALITIES, choice_of, ratio, size_of


@pytest.mark.parametrize("family", all_families(), ids=lambda family: family.name)
def test_every_choice_is_a_size_that_the_model_takes(family: Family) -> None:
    fixed = family.rules.width.least == family.rules.width.most
    for aspect in ASPECTS:
        areas = []
        for quality in QUALITIES:
            width, height = size_of(family, aspect, quality)
            assert family.rules.width.holds(width)
            assert family.rules.height.holds(height)
            if not fixed:
                assert abs(math.log(width / height / ratio(aspect))) < 0.25, (aspect, quality, width, height)
            areas.append(width * height)
        assert areas == sorted(areas), (aspect, areas)
        assert fixed or areas[0] < areas[1], (aspect, areas)
        full = family.rules.width.most * family.rules.height.most
        assert areas[1] < areas[2] or areas[2] > full / 4, "only a model at its largest has nothing finer"


@pytest.mark.parametrize("family", all_families(), ids=lambda family: family.name)
def test_the_models_own_size_is_standard(family: Family) -> None:
    aspect, quality = choice_of(family, family.defaults.width, family.defaults.height)
    assert quality == ("Draft" if family.rules.width.least == family.rules.width.most else "Standard")
    assert size_of(family, aspect, "Standard") == (family.defaults.width, family.defaults.height)


def test_other_sizes_are_custom() -> None:
    family = all_families()[0]
    for width, height in ((256, 512), (257, 160), (None, 160), ("256", 160)):
        assert choice_of(family, width, height) == (CUSTOM, CUSTOM)
