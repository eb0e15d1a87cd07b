"""The canvas a clip is drawn on, and the two small tools that every drawing function needs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

REFERENCE_ASPECT = 1.6
"""Width / height the world was composed for (256x160). Other canvases spread horizontal distances to their width."""

CELL, CELL_FRAMES = 16, 2
"""Pixels a side and frames of one latent cell; the first frame has cells of its own."""

WIDEST_PAN = 0.36
"""Largest way of a camera pan over one clip, in canvas heights at the reference aspect."""


@dataclass(frozen=True)
class Canvas:
    """Size of a clip: ``height`` and ``width`` in pixels, ``frames`` in number. Raises ValueError when too small.

    Positions are measured in canvas heights: y runs 0..1 downwards, x runs 0..``aspect`` to the right.
    """

    height: int = 160
    width: int = 256
    frames: int = 25

    def __post_init__(self) -> None:
        if min(self.height, self.width) < 32 or self.frames < 2:
            raise ValueError(
                f"A canvas of {self.width}x{self.height} pixels and {self.frames} frames is too small: "
                "use at least 32x32 pixels and 2 frames."
            )

    @property
    def aspect(self) -> float:
        """Width in canvas heights."""
        return self.width / self.height

    @property
    def cells(self) -> tuple[int, int, int]:
        """Latent frames, rows and columns."""
        return (self.frames - 1) // CELL_FRAMES + 1, self.height // CELL, self.width // CELL

    @property
    def spread(self) -> float:
        """Factor on horizontal distances that were composed for the reference aspect."""
        return self.aspect / REFERENCE_ASPECT

    @property
    def object_scale(self) -> float:
        """Factor on object radii, so that objects fit a canvas narrower than high."""
        return min(1.0, self.aspect)

    @property
    def margin(self) -> int:
        """Pixels of scenery needed beyond each side, so that no pan ever shows the end of it."""
        return math.ceil(WIDEST_PAN / 2 * self.spread * self.height) + 2


@dataclass(frozen=True)
class Dice:
    """Random numbers for ``n`` clips, drawn on ``device`` from ``generator`` (the device's default one when None).

    loose: objects stand anywhere and have any size and speed of their word's range. Otherwise they stand on latent
    cells and each word means one size and one speed: a small model draws those crisply and blurs what lies between.
    """

    n: int
    device: torch.device
    generator: torch.Generator | None = None
    loose: bool = True

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """float32 (n, *shape), uniform in [low, high)."""
        return torch.rand(self.n, *shape, device=self.device, generator=self.generator) * (high - low) + low

    def between(self, low: float, high: float) -> Tensor:
        """float32 (n, 1) from a range: anywhere in it if loose, else its middle."""
        if self.loose:
            return self.uniform(low, high, 1)
        return torch.full((self.n, 1), (low + high) / 2, device=self.device)

    def stepped(self, values: Tensor, step: float) -> Tensor:
        """``values``, if not loose each at the nearest multiple of ``step``."""
        return values if self.loose else (values / step).round() * step

    def coin(self, yes: float, no: float, probability: float = 0.5) -> Tensor:
        """float32 (n, 1): ``yes`` with the given probability, else ``no``."""
        return torch.where(self.uniform(0, 1, 1) < probability, yes, no)


@functools.lru_cache(maxsize=512)
def constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    """A float32 tensor of ``values``, copied to ``device`` once only (small copies stall a GPU). Read only."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=torch.float32, device=device)


def color(values: tuple[float, float, float], device: torch.device) -> Tensor:
    """One RGB colour, 0..1, as a cached tensor (1, 3, 1, 1)."""
    return constant(values, device).view(1, 3, 1, 1)


def blend(first: Tensor, second: Tensor, amount: Tensor | float) -> Tensor:
    """``first`` where amount is 0, ``second`` where it is 1."""
    return first + (second - first) * amount


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices of at most ``size`` items that cover ``count`` items."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
