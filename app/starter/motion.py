"""How objects move: paths in the world, and their place on screen under a moving camera."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from app.starter.canvas import CELL, Canvas, Dice
from app.starter.shapes import FEET, Pose

MOTIONS = ("left", "right", "up", "down", "bounce", "spin", "circle", "grow", "shrink", "still")
SIZES = ("small", "medium", "big")
_RADII = ((0.115, 0.135), (0.17, 0.20), (0.26, 0.30))
"""Radius of each size, in units of the canvas's shorter side."""

_FLOOR = 0.87
"""Lowest point of a bounce, in canvas heights."""


@dataclass(frozen=True)
class Stage:
    """Where objects act. ground: y of the shadows or None; standing: whether heavy things stand on it."""

    canvas: Canvas
    dice: Dice
    ground: float | None
    standing: bool


@dataclass(frozen=True)
class Together:
    """Random numbers (n, 1) that two objects of one clip share, so that they move alike."""

    bounces: Tensor
    direction: Tensor
    start: Tensor

    @classmethod
    def draw(cls, dice: Dice) -> Together:
        start = dice.stepped(dice.uniform(0, 2 * math.pi, 1), math.pi / 2)
        return cls(dice.coin(2.0, 3.0), dice.coin(1.0, -1.0), start)


@dataclass(frozen=True)
class Path:
    """An object's way through the world, float32 (n, frames) in canvas heights; see `Pose`. feet: (n, 1) or None."""

    x: Tensor
    y: Tensor
    radius: Tensor
    angle: Tensor
    squash: Tensor
    facing: Tensor
    stands: Tensor | None
    feet: float

    def on_screen(self, pan: Tensor, zoom: Tensor, stage: Stage) -> Pose:
        """The path as the camera sees it; shadows of standing things stay under their feet."""
        middle = stage.canvas.aspect / 2
        x = (self.x - pan - middle) * zoom + middle
        y, radius = (self.y - 0.5) * zoom + 0.5, self.radius * zoom
        ground = None
        if stage.ground is not None:
            ground = (torch.full_like(y, stage.ground) - 0.5) * zoom + 0.5
            if self.stands is not None:
                ground = torch.where(self.stands, y + radius * (self.feet - 0.04), ground)
        return Pose(x, y, radius, self.angle, 1 + self.squash, 1 - self.squash, self.facing, ground)


def choreograph(
    shape: str, motion: Tensor, size: Tensor, side: Tensor | None, together: Together, stage: Stage
) -> Path:
    """The path of one object per clip.

    motion, size: int64 (n, 1), indices in MOTIONS and SIZES; side: float (n, 1), -1 left of the middle, 0 about there,
    1 right of it; None: all about there.
    """
    dice, canvas = stage.dice, stage.canvas
    spread, scale = canvas.spread, canvas.object_scale
    time = torch.linspace(0, 1, canvas.frames, device=dice.device).view(1, -1)

    def on(*names: str) -> Tensor:
        return torch.stack([motion == MOTIONS.index(name) for name in names]).any(0)

    small, medium, big = (dice.between(low * scale, high * scale) for low, high in _RADII)
    radius = torch.where(size == 0, small, torch.where(size == 1, medium, big)).expand(-1, canvas.frames)
    middle = canvas.aspect / 2
    cell = CELL / canvas.height
    start = middle + dice.stepped(dice.uniform(-0.12, 0.12, 1) * spread, cell)
    if side is not None:
        apart = dice.stepped(dice.between(0.40, 0.48) * spread, cell)
        start = torch.where(side == 0, start, middle + side * apart)
    sideways = dice.between(0.70, 1.0) * spread * (time - 0.5)
    heading = on("right").float() - on("left").float()
    x = start + heading * sideways

    y = dice.stepped(dice.uniform(0.45, 0.60, 1), cell).expand_as(radius)
    stands = None
    if shape in FEET and stage.standing:
        stands = on("still", "left", "right")
        y = torch.where(stands, dice.between(0.80, 0.88) - radius * FEET[shape], y)
    climb = torch.minimum(dice.between(0.42, 0.52), 0.95 - 2 * radius) * (0.5 - time)
    vertical = dice.between(0.48, 0.54) + climb * (on("up").float() - on("down").float())
    y = torch.where(on("up", "down"), vertical, y)

    leap = torch.sin(math.pi * together.bounces * time).abs()
    height = torch.minimum(dice.between(0.34, 0.44), _FLOOR - 0.03 - 2 * radius)
    squash = (1 - leap / 0.35).clamp(0, 1) * 0.20 * on("bounce")
    y = torch.where(on("bounce"), _FLOOR - radius - height * leap + squash * radius * 0.8, y)

    turn = 2 * math.pi * time
    round_trip = together.start + together.direction * turn
    orbit = torch.minimum(dice.between(0.20, 0.24), 0.48 - radius)
    x = torch.where(on("circle"), middle + 1.5 * spread * orbit * torch.cos(round_trip), x)
    y = torch.where(on("circle"), 0.5 + orbit * torch.sin(round_trip), y)

    least, most = dice.between(0.10 * scale, 0.125 * scale), dice.between(0.27 * scale, 0.32 * scale)
    grown = least + (most - least) * torch.where(on("grow"), time, 1 - time)
    still_radius = radius
    radius = torch.where(on("grow", "shrink"), grown, radius)

    # One whole turn, always the same way: a small model draws 24 angles well, but not every angle at every time.
    angle = turn * on("spin")
    if shape == "ball":
        angle = angle + heading * sideways / still_radius
    if shape == "rocket":
        angle = angle + 0.6 * heading
    facing = torch.where(heading < 0, -1.0, 1.0)
    return Path(x, y, radius, angle, squash, facing, stands, FEET.get(shape, 0.0))
