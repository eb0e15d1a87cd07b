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
    """Width and height in pixels that the model takes, nearest to that aspect and area."""
    area = family.defaults.width * family.defaults.height * QUALITIES[quality]
    wanted = ratio(aspect)
    pairs = (
        (w, h)
        for w in _around(family.rules.width, math.sqrt(area * wanted))
        for h in _around(family.rules.height, math.sqrt(area / wanted))
    )
    return min(pairs, key=lambda pair: (_apart(pair[0] / pair[1], wanted) * 2 + _apart(pair[0] * pair[1], area), pair))


def choice_of(family: Family, width: object, height: object) -> tuple[str, str]:
    """Aspect and quality of a size, the model's own aspect first; "Custom" twice where there are none."""
    own = sorted(ASPECTS, key=lambda aspect: _apart(ratio(aspect), family.defaults.width / family.defaults.height))
    for aspect in own:
        for quality in QUALITIES:
            if size_of(family, aspect, quality) == (width, height):
                return aspect, quality
    return CUSTOM, CUSTOM


def _around(grid: Grid, value: float) -> list[int]:
    near = grid.nearest(round(value))
    return [one for one in (near - grid.step, near, near + grid.step) if grid.holds(one)]


def _apart(one: float, other: float) -> float:
    return abs(math.log(one / other))
