"""The eight backgrounds, each painted once per clip as a still that the camera then moves over."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from app.starter.canvas import Canvas, Dice, blend, color

BACKGROUNDS = ("meadow", "sunset", "city", "desert", "snow", "studio", "space", "underwater")
STUDIO_TONES: dict[str, tuple[float, float, float]] = {
    "light grey": (0.74, 0.74, 0.76),
    "cream": (0.88, 0.84, 0.74),
    "light blue": (0.68, 0.79, 0.88),
    "light green": (0.70, 0.86, 0.76),
    "light pink": (0.89, 0.74, 0.78),
    "lavender": (0.77, 0.72, 0.87),
}
BRIGHTEST = 0.895
"""Scenery stays below this value so that white objects stand out (and the judge can tell them)."""

GROUND: dict[str, float | None] = {
    "meadow": 0.87,
    "sunset": 0.90,
    "city": 0.90,
    "desert": 0.87,
    "snow": 0.88,
    "studio": 0.88,
    "space": None,
    "underwater": 0.93,
}
"""Height of the ground line on which shadows fall, in canvas heights from the top; None where things float."""

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Brush:
    """What a painter needs: coordinates x (1,1,1,W), y (1,1,H,1) in canvas heights, and random numbers."""

    x: Tensor
    y: Tensor
    height: int
    spread: float
    dice: Dice

    def uniform(self, low: float, high: float) -> Tensor:
        """(n,1,1,1) uniform numbers."""
        return self.dice.uniform(low, high, 1, 1, 1)

    def across(self, low: float, high: float) -> Tensor:
        """(n,1,1,1) uniform x positions, given for the reference width."""
        return self.uniform(low, high) * self.spread

    def color(self, *rgb: float) -> Tensor:
        return color((rgb[0], rgb[1], rgb[2]), self.dice.device)

    def edge(self, inside: Tensor) -> Tensor:
        """Antialiased coverage of a region given its distance to the edge (positive inside, canvas heights)."""
        return (inside * self.height + 0.5).clamp(0, 1)

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.sqrt((self.x - x) ** 2 + (self.y - y) ** 2)

    def ridge(self, base: Tensor | float, amplitude: float, frequencies: tuple[float, float]) -> Tensor:
        """Height (n,1,1,W) of a rolling line: two sine waves of random phase."""
        line: Tensor | float = base
        for index, frequency in enumerate(frequencies):
            wave = torch.sin(2 * math.pi * frequency * self.x + self.uniform(0, 6.28))
            line = line + amplitude / (index + 1) * wave
        assert isinstance(line, Tensor)
        return line

    def slope(self, image: Tensor, line: Tensor, top: Triple, bottom: Triple, depth: Tensor | float) -> Tensor:
        """Paints everything below ``line``, shaded from ``top`` to ``bottom`` over ``depth``."""
        shade = blend(self.color(*top), self.color(*bottom), ((self.y - line) / depth).clamp(0, 1))
        return blend(image, shade, self.edge(self.y - line))

    def sky(self, top: Triple, bottom: Triple, horizon: Tensor | float) -> Tensor:
        """(n,3,H,W) gradient from the top down to ``horizon``."""
        image = blend(self.color(*top), self.color(*bottom), (self.y / horizon).clamp(0, 1))
        return image.expand(self.dice.n, 3, self.y.shape[2], self.x.shape[3])


def _scatter(first: Tensor, second: Tensor, third: Tensor | None = None) -> Tensor:
    """Repeatable noise 0..1 for whole-numbered cell coordinates (the usual sine hash)."""
    mixed = first * 127.1 + second * 311.7
    if third is not None:
        mixed = mixed + third * 74.7
    wild = torch.sin(mixed) * 43758.5453
    return wild - torch.floor(wild)


def _stars(image: Tensor, brush: Brush, density: float, lowest: float) -> Tensor:
    """Sparse soft stars, at most one per cell: denser fields cost the codec more than the objects do."""
    cell = 0.095
    column, row = torch.floor(brush.x / cell), torch.floor(brush.y / cell)
    seed = brush.uniform(0, 50).floor()
    a, b = _scatter(column, row, seed), _scatter(column + 7, row + 3, seed + 1)
    present = _scatter(column + 13, row + 5, seed + 2) < density
    away = brush.distance((column + 0.2 + 0.6 * a) * cell, (row + 0.2 + 0.6 * b) * cell)
    glow = torch.exp(-((away * 86) ** 2)) * (0.5 + 0.5 * a)
    return blend(image, brush.color(0.84, 0.85, 0.82), present * (brush.y < lowest) * glow)


def _cloud(image: Tensor, brush: Brush, index: int) -> Tensor:
    x, y = brush.across(-0.3 + index * 0.75, 0.45 + index * 0.75), brush.uniform(0.1, 0.36)
    size = brush.uniform(0.8, 1.3)
    cover = torch.zeros_like(brush.x)
    for dx, dy, radius in ((0, 0, 0.07), (-0.085, 0.02, 0.05), (0.085, 0.018, 0.055), (0.04, -0.03, 0.05)):
        squared = ((brush.x - x - dx * size) ** 2 + ((brush.y - y - dy * size) * 1.25) ** 2) / (radius * size) ** 2
        cover = torch.maximum(cover, torch.exp(-(squared**2)))
    return blend(image, brush.color(0.88, 0.89, 0.90), cover * 0.85)


def _meadow(brush: Brush) -> Tensor:
    horizon = brush.uniform(0.56, 0.66)
    image = brush.sky((0.53, 0.73, 0.90), (0.80, 0.88, 0.90), horizon)
    sun = brush.distance(brush.across(-0.2, 2), brush.uniform(0.08, 0.25))
    halo = 0.25 * torch.exp(-((sun / 0.16) ** 2)) * (sun > 0.075)
    image = blend(image, brush.color(0.89, 0.87, 0.70), brush.edge(0.075 - sun) * 0.95 + halo)
    for index in range(3):
        image = _cloud(image, brush, index)
    far = brush.ridge(horizon - 0.05, 0.05, (0.35, 0.9))
    hills = blend(brush.color(0.56, 0.72, 0.66), brush.color(0.50, 0.68, 0.58), brush.y)
    image = blend(image, hills, brush.edge(brush.y - far))
    near = brush.ridge(horizon + 0.06, 0.03, (0.3, 0.7))
    return brush.slope(image, near, (0.58, 0.76, 0.46), (0.38, 0.60, 0.32), 1 - horizon)


def _sunset(brush: Brush) -> Tensor:
    horizon = brush.uniform(0.58, 0.66)
    part = (brush.y / horizon).clamp(0, 1)
    image = blend(brush.color(0.50, 0.42, 0.62), brush.color(0.87, 0.60, 0.56), (part * 1.7).clamp(0, 1))
    image = blend(image, brush.color(0.89, 0.74, 0.56), (part * 2.2 - 1.2).clamp(0, 1))
    sun_x = brush.across(0.3, 1.5)
    sun = brush.distance(sun_x, horizon - 0.03)
    image = image + 0.10 * torch.exp(-((sun / 0.35) ** 2)) * brush.color(1, 0.8, 0.4)
    image = blend(image, brush.color(0.89, 0.82, 0.60), brush.edge(0.13 - sun))
    for _ in range(2):
        x, y = brush.across(0, 1.8), brush.uniform(0.12, 0.38)
        cloud = torch.exp(-(((brush.x - x) / 0.35) ** 2 + ((brush.y - y) / 0.025) ** 2))
        image = blend(image, brush.color(0.80, 0.60, 0.64), 0.6 * cloud)
    depth = ((brush.y - horizon) / (1 - horizon)).clamp(0, 1)
    sea = blend(brush.color(0.66, 0.52, 0.58), brush.color(0.26, 0.34, 0.50), depth**0.7)
    phase = 14 * depth.clamp(min=0.001) ** 0.6 + 0.06 * torch.sin(brush.x * 9 + brush.uniform(0, 6))
    ripple = (0.5 + 0.5 * torch.sin(6.28 * phase)) ** 3
    path = torch.exp(-(((brush.x - sun_x) / (0.09 + 0.25 * depth)) ** 2))
    sea = blend(sea, brush.color(0.89, 0.72, 0.56), ripple * 0.75 * path) + 0.02 * ripple
    return blend(image, sea, brush.edge(brush.y - horizon))


def _houses(
    image: Tensor, brush: Brush, width: float, highest: float, lowest: float, wall: Triple, lit: float
) -> Tensor:
    seed = brush.uniform(0, 60).floor()
    top = highest + (lowest - highest) * _scatter(torch.floor(brush.x / width + seed * 0.37), seed)
    # Windows are few and big: smaller ones vanish in a codec that shrinks 16 times.
    column, row = brush.x / 0.044, brush.y / 0.060
    pane_x = brush.edge((0.32 - (column - torch.floor(column) - 0.5).abs()) * 0.044)
    pane_y = brush.edge((0.30 - (row - torch.floor(row) - 0.5).abs()) * 0.060)
    on = _scatter(torch.floor(column), torch.floor(row), seed) > 0.72
    windows = on * pane_x * pane_y * (brush.y > top + 0.02)
    facade = blend(brush.color(*wall), brush.color(0.80, 0.70, 0.50), windows * lit)
    return blend(image, facade, brush.edge(brush.y - top))


def _city(brush: Brush) -> Tensor:
    image = brush.sky((0.17, 0.19, 0.34), (0.38, 0.33, 0.50), 0.8)
    image = _stars(image, brush, 0.16, 0.5)
    moon = brush.distance(brush.across(0.2, 1.6), brush.uniform(0.12, 0.26))
    image = blend(image, brush.color(0.86, 0.84, 0.70), brush.edge(0.075 - moon))
    image = image + 0.08 * torch.exp(-((moon / 0.18) ** 2))
    image = _houses(image, brush, 0.115, 0.40, 0.68, (0.27, 0.26, 0.40), 0.5)
    image = _houses(image, brush, 0.15, 0.55, 0.80, (0.19, 0.20, 0.30), 0.85)
    street = blend(brush.color(0.30, 0.29, 0.37), brush.color(0.22, 0.22, 0.29), ((brush.y - 0.82) / 0.18).clamp(0, 1))
    return blend(image, street, brush.edge(brush.y - 0.82))


def _desert(brush: Brush) -> Tensor:
    image = brush.sky((0.62, 0.76, 0.87), (0.89, 0.85, 0.74), 0.6)
    sun = brush.distance(brush.across(0.1, 1.7), brush.uniform(0.1, 0.25))
    image = blend(image, brush.color(0.89, 0.85, 0.68), brush.edge(0.085 - sun)) + 0.05 * torch.exp(-((sun / 0.2) ** 2))
    dunes: tuple[tuple[float, float, tuple[float, float], Triple, Triple], ...] = (
        (0.52, 0.05, (0.45, 1.1), (0.86, 0.72, 0.52), (0.78, 0.62, 0.43)),
        (0.64, 0.06, (0.3, 0.8), (0.84, 0.69, 0.48), (0.73, 0.57, 0.39)),
        (0.80, 0.04, (0.4, 0.9), (0.88, 0.74, 0.53), (0.76, 0.60, 0.42)),
    )
    for base, amplitude, frequencies, top, bottom in dunes:
        line = brush.ridge(base + brush.uniform(-0.02, 0.02), amplitude, frequencies)
        image = brush.slope(image, line, top, bottom, 0.25)
    return image


def _fir(image: Tensor, brush: Brush, index: int) -> Tensor:
    x, size = brush.across(-0.35 + index * 0.5, 0.1 + index * 0.5), brush.uniform(0.07, 0.12)
    for tier in range(3):
        down = (brush.y - (0.68 - size * (2.2 - tier * 0.6))) / (size * 0.9)
        wide = down * size * 0.5 * (1 + 0.15 * tier) - (brush.x - x).abs()
        green = brush.color(0.36, 0.48, 0.47) * (1 - 0.05 * tier)
        image = blend(image, green, brush.edge(wide) * (down > 0) * (down < 1))
    return image


def _snow(brush: Brush) -> Tensor:
    image = brush.sky((0.58, 0.69, 0.81), (0.80, 0.84, 0.87), 0.6)
    mountains = brush.ridge(0.45 + brush.uniform(-0.03, 0.03), 0.09, (0.5, 1.3))
    image = brush.slope(image, mountains, (0.74, 0.79, 0.86), (0.64, 0.71, 0.81), 0.2)
    image = brush.slope(image, brush.ridge(0.62, 0.04, (0.35, 0.9)), (0.83, 0.86, 0.88), (0.74, 0.80, 0.87), 0.25)
    for index in range(5):
        image = _fir(image, brush, index)
    return brush.slope(image, brush.ridge(0.72, 0.025, (0.3, 0.8)), (0.87, 0.88, 0.89), (0.76, 0.81, 0.87), 0.3)


def _studio(brush: Brush) -> Tensor:
    """A wall and a floor in neutral light; `background` tints it with the tone."""
    middle = brush.spread * 0.8
    light = 1.0 - 0.10 * ((brush.x - middle) ** 2 + (brush.y - 0.4) ** 2)
    floor = brush.edge(brush.y - 0.72) * 0.6 + 0.4 * ((brush.y - 0.6) / 0.25).clamp(0, 1)
    return light * (1 - 0.10 * floor) * brush.uniform(0.97, 1.02)


def _space(brush: Brush) -> Tensor:
    image = brush.sky((0.19, 0.17, 0.28), (0.27, 0.20, 0.36), 1.0)
    for tint in ((0.10, 0.02, 0.12), (0.0, 0.07, 0.14)):
        x, y = brush.across(0, 1.8), brush.uniform(0.1, 0.9)
        image = image + brush.color(*tint) * torch.exp(-(((brush.x - x) / 0.45) ** 2 + ((brush.y - y) / 0.25) ** 2))
    image = _stars(image, brush, 0.26, 1.0)
    where, y, radius = brush.uniform(0, 1), brush.uniform(0.14, 0.26), brush.uniform(0.10, 0.15)
    x = torch.where(where > 0.5, 1.5 + 0.15 * where, 0.1 + 0.4 * where) * brush.spread
    dx, dy = (brush.x - x) / radius, (brush.y - y) / radius
    globe = brush.edge((1 - torch.sqrt(dx**2 + dy**2)) * radius)
    bands = blend(brush.color(0.74, 0.58, 0.50), brush.color(0.56, 0.44, 0.46), 0.5 + 0.5 * torch.sin(dy * 9))
    image = blend(image, bands * (0.95 - 0.28 * (dx * 0.7 + dy * 0.5)).clamp(0.5, 1.1), globe)
    tilted = dy * 0.96 - dx * 0.28
    ring = torch.sqrt((dx * 0.96 + dy * 0.28) ** 2 + (tilted * 3.6) ** 2)
    visible = brush.edge((0.16 - (ring - 1.55).abs()) * radius * 0.8) * (1 - globe * (tilted < 0))
    return blend(image, brush.color(0.78, 0.70, 0.60), visible * 0.8)


def _underwater(brush: Brush) -> Tensor:
    image = brush.sky((0.50, 0.76, 0.80), (0.20, 0.42, 0.54), 1.0)
    rays = (0.5 + 0.5 * torch.sin((brush.x + brush.y * 0.45) * 7 + brush.uniform(0, 6))) ** 3
    image = image + 0.10 * rays * (1 - brush.y).clamp(0, 1) ** 1.3
    for _ in range(6):
        bubble = brush.distance(brush.across(-0.3, 2.1), brush.uniform(0.1, 0.8))
        skin = brush.edge(0.008 - (bubble - brush.uniform(0.010, 0.022)).abs())
        image = blend(image, brush.color(0.72, 0.86, 0.88), skin * 0.6)
    for index in range(5):
        x, tall = brush.across(-0.35 + index * 0.5, 0.1 + index * 0.5), brush.uniform(0.18, 0.34)
        down = (brush.y - (0.92 - tall)) / tall
        stem = x + 0.03 * torch.sin(brush.y * 16 + brush.uniform(0, 6))
        weed = blend(brush.color(0.28, 0.54, 0.46), brush.color(0.16, 0.38, 0.36), down.clamp(0, 1))
        cover = brush.edge(0.022 * down.clamp(0, 1) ** 0.5 - (brush.x - stem).abs()) * (down > 0)
        image = blend(image, weed, cover)
    return brush.slope(image, brush.ridge(0.88, 0.02, (0.4, 1.1)), (0.72, 0.68, 0.54), (0.56, 0.54, 0.46), 0.12)


_PAINTERS: dict[str, Callable[[Brush], Tensor]] = {
    "meadow": _meadow,
    "sunset": _sunset,
    "city": _city,
    "desert": _desert,
    "snow": _snow,
    "studio": _studio,
    "space": _space,
    "underwater": _underwater,
}


def background(kind: str, tones: Tensor, canvas: Canvas, dice: Dice) -> Tensor:
    """``dice.n`` stills of one background, ``canvas.margin`` pixels wider than the canvas on both sides.

    tones: float32 (n, 3), the studio's wall colour; other backgrounds ignore it.
    Returns float32 (n, 3, height, width + 2 * margin), values 0..``BRIGHTEST``. KeyError for an unknown kind.
    """
    device, height, margin = dice.device, canvas.height, canvas.margin
    x = (torch.arange(-margin, canvas.width + margin, device=device) + 0.5) / height
    y = (torch.arange(height, device=device) + 0.5) / height
    brush = Brush(x.view(1, 1, 1, -1), y.view(1, 1, -1, 1), height, canvas.spread, dice)
    image = _PAINTERS[kind](brush)
    if kind == "studio":
        image = (image * tones.view(-1, 3, 1, 1)).clamp(0, 0.89)
    return (image.clamp(0, 1) * brush.uniform(0.97, 1.02)).clamp(0, BRIGHTEST)
