"""Which colour and which side a caption gives to which object, and a head that reads it off the text encoder.

Cross-attention sees words without their order, so it is the text encoder that must say in the word "ball" which colour
the ball has. The flow alone hardly asks for it: after four trainings the encoder was a bag of words, "a red ball and a
blue box" and "a blue ball and a red box" gave one and the same clip. The head is no part of what is saved.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from app.starter.model import END, PADDING
from app.starter.world import COLORS, PLACES, SHAPES, Scene

NOBODY = -1
"""In the place of a second object where there is one alone."""


def named(scenes: Sequence[Scene]) -> Tensor:
    """Colour, shape and place of each object, as indices of COLORS, SHAPES and PLACES: int8 (scenes, 2, 3).

    Of two objects one is left and one is right; `NOBODY` where there is no second one.
    """
    rows = []
    for scene in scenes:
        objects = scene.objects()
        places = [scene.place] if len(objects) == 1 else ["left", "right"]
        if scene.left_first is False:
            places.reverse()
        row = [
            (COLORS.index(color), SHAPES.index(shape), PLACES.index(place))
            for (color, shape), place in zip(objects, places, strict=True)
        ]
        rows.append(row + [(NOBODY,) * 3] * (2 - len(row)))
    return torch.tensor(rows, dtype=torch.int8)


class NamingHead(nn.Module):
    """Asked for a colour or a shape, it looks through a caption's words once, as cross-attention does, and tells the
    other one and the place of the object that has it."""

    ANSWERS = (len(COLORS), len(SHAPES), len(PLACES))

    def __init__(self, width: int) -> None:
        super().__init__()
        self.asked = nn.Parameter(torch.randn(len(COLORS) + len(SHAPES), width) / width**0.5)
        self.norm = nn.LayerNorm(width)
        self.keys, self.values = nn.Linear(width, width), nn.Linear(width, width)
        self.read = nn.Linear(width, sum(self.ANSWERS))
        nn.init.zeros_(self.read.weight)
        nn.init.zeros_(self.read.bias)

    def forward(self, text: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        """Logits of colours, shapes and places, float32 (n, 22, 10 or 12 or 3), for each colour and then each shape.

        text: (n, tokens, width); ids: int64 (n, tokens).
        """
        words = self.norm(text)
        likeness = (self.asked @ self.keys(words).mT).float() / text.shape[2] ** 0.5
        shares = likeness.masked_fill((ids == PADDING)[:, None], -3e4).softmax(2)
        found = self.read(shares.to(words.dtype) @ self.values(words))
        return found.float().split(self.ANSWERS, dim=2)

    def loss(self, text: Tensor, ids: Tensor, objects: Tensor) -> Tensor:
        """What the words don't tell of their objects (see `named`), a mean over objects; empty captions don't count."""
        colors, shapes, places = self(text, ids)
        color, shape, place = objects.long().clamp(min=0).unbind(2)
        by_shape = shape + len(COLORS)
        wrong = (
            _wrong(shapes, color, shape)
            + _wrong(colors, by_shape, color)
            + _wrong(places, color, place)
            + _wrong(places, by_shape, place)
        )
        counted = (objects[:, :, 0] != NOBODY) & (ids[:, :1] != END)
        return (wrong * counted).sum() / counted.sum().clamp(min=1)


def _wrong(logits: Tensor, asked: Tensor, right: Tensor) -> Tensor:
    """Cross-entropy (n, 2) of the answers to the questions ``asked`` (n, 2), from logits (n, questions, answers)."""
    chosen = logits.gather(1, asked[..., None].expand(-1, -1, logits.shape[2]))
    return F.cross_entropy(chosen.flatten(0, 1), right.flatten(), reduction="none").view(right.shape)
