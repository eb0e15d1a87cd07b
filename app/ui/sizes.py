"""Sizes by aspect and quality instead of by pixels, on the grid that the model allows."""

from __future__ import annotations

import math
from functools import cache

from app.models.base import Family, Grid

ASPECTS = ("16:9", "8:5", "4:3", "1:1", "3:4", "5:8", "9:16")
QUALITIES = {"Draft": 0.4, "Standard": 1.0, "Fine": 2.4}
"""Area in comparison with the model's default size."""
CUSTOM = "Custom"


def ratio(aspect: str) -> float:
    """Width over height of "16:9"."""
    width, height = aspect.split(":")
    return int(width) / int(height)


@cache
def size_of(family: Family, aspect: str, quality: str) -> tuple[int, int]:
    """Width and height in pixels that the model takes, nearest to that aspect and area: the model's own size where
    that is meant, and no larger than both sides can be.
    """
    own, rules, wanted = family.defaults, family.rules, ratio(aspect)
    if quality == "Standard" and aspect == _by_nearness(family)[0]:
        return own.width, own.height
    area = own.width * own.height * QUALITIES[quality]
    area = min(area, rules.width.most**2 / wanted, rules.height.most**2 * wanted)
    pairs = (
        (w, h)
        for w in _around(rules.width, math.sqrt(area * wanted))
        for h in _around(rules.height, math.sqrt(area / wanted))
    )
    found = min(pairs, key=lambda pair: (_apart(pair[0] / pair[1], wanted) * 2 + _apart(pair[0] * pair[1], area), pair))
    if quality == "Fine":  # a model that is near its largest already: never less than standard
        return max(size_of(family, aspect, "Standard"), found, key=lambda pair: pair[0] * pair[1])
    return found


def choice_of(family: Family, width: object, height: object) -> tuple[str, str]:
    """Aspect and quality of a size, the model's own aspect first; "Custom" twice where there are none. A model that is
    at its largest already has one size for two qualities: the lower one is told.
    """
    for aspect in _by_nearness(family):
        for quality in QUALITIES:
            if size_of(family, aspect, quality) == (width, height):
                return aspect, quality
    return CUSTOM, CUSTOM


@cache
def _by_nearness(family: Family) -> tuple[str, ...]:
    """The aspects, those nearest to the model's own first."""
    own = family.defaults.width / family.defaults.height
    return tuple(sorted(ASPECTS, key=lambda aspect: _apart(ratio(aspect), own)))


def _around(grid: Grid, value: float) -> list[int]:
    near = grid.nearest(round(value))
    return [one for one in (near - grid.step, near, near + grid.step) if grid.holds(one)]


def _apart(one: float, other: float) -> float:
    return abs(math.log(one / other))
