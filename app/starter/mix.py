"""What the transformer is trained on: which scenes, on which canvases, how often, and what counts most in a clip."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from torch import Tensor

from app.starter.canvas import Canvas
from app.starter.world import BACKGROUNDS, MOTIONS, PLACES, SHAPES, Scene, is_valid, random_scene

TWO_OBJECTS = 0.42
"""Share of the groups with two objects: which colour belongs to which object is the hardest thing to learn."""

EXTRA_MOTION, EXTRA_SMALL = 0.20, 0.18
"""Share of the scenes given a motion of the emphasis, or made small, on top of those drawn so: hard, too."""

PLACED = 0.3
"""Share of the scenes of one object that stand left or right where they can: what "left" means is learnt there first.
With two objects nothing is won by knowing either the word or the place alone."""

OBJECT_SHARE, MOST_WEIGHT = 0.8, 10.0
"""Weight that objects carry together, as a part of the clip's plain weight; and the most that a cell gets on top."""


@dataclass(frozen=True)
class Emphasis:
    """How often each of SHAPES comes against the others, and each of MOTIONS among those that are given extra."""

    shapes: tuple[float, ...]
    motions: tuple[float, ...]


EVEN = Emphasis((1.0,) * len(SHAPES), tuple(float(motion == "spin") for motion in MOTIONS))
"""Every shape alike; spinning is hard for all."""

_HARD_SHAPES = {"rocket": 2.7, "tree": 1.8, "house": 1.6, "bird": 1.6, "boat": 1.4, "star": 1.4}
_HARD_MOTIONS = {"spin": 1.4, "bounce": 0.7, "circle": 0.5, "still": 0.3, "right": 0.3}
USUAL = Emphasis(
    tuple(_HARD_SHAPES.get(shape, 1.0) for shape in SHAPES), tuple(_HARD_MOTIONS.get(motion, 0.1) for motion in MOTIONS)
)
"""For a run that has not weighed its own mistakes: those of three runs on 334 drawn prompts, none a frozen one."""


@dataclass(frozen=True)
class Kind:
    """One sort of training batch: its canvas, whether the first frame is given, and its share of the steps."""

    canvas: Canvas
    image: bool
    share: float

    def tokens(self) -> int:
        """Tokens of one clip: latents in patches of (1, 2, 2)."""
        frames, rows, columns = self.canvas.cells
        return frames * (rows // 2) * (columns // 2)

    def batch(self, base: int) -> int:
        """Clips a step with as many tokens as ``base`` clips of 256x160x25 have (520 each); even, at least one."""
        clips = round(base * 520 / self.tokens())
        return max(1, clips - clips % 8 if clips > 8 else clips)

    def __str__(self) -> str:
        canvas = self.canvas
        return f"{canvas.width}x{canvas.height}x{canvas.frames}{' from a picture' if self.image else ''}"


_WIDE, _TALL, _SQUARE = Canvas(160, 256, 25), Canvas(256, 160, 25), Canvas(192, 192, 25)
KINDS = (
    Kind(_WIDE, False, 0.57),
    Kind(_WIDE, True, 0.11),
    Kind(_SQUARE, False, 0.07),
    Kind(Canvas(160, 256, 49), False, 0.08),
    Kind(Canvas(160, 256, 13), False, 0.04),
    Kind(_SQUARE, True, 0.03),
    Kind(_TALL, False, 0.07),
    Kind(_TALL, True, 0.03),
)
"""The last two need no kernels of their own: to the blocks they have the shapes of the first two."""

TRY_OUT = (Kind(Canvas(64, 64, 5), False, 0.5), Kind(Canvas(64, 32, 7), True, 0.5))
"""Small kinds that show on any machine whether the chain holds together; nothing is learnt from them."""


def training_group(rng: random.Random, n: int, emphasis: Emphasis = EVEN) -> list[Scene]:
    """``n`` scenes that `world.render` takes as one batch; combinations held out from training never come out."""
    background, shape = rng.choice(BACKGROUNDS), rng.choices(SHAPES, emphasis.shapes)[0]
    two = rng.random() < TWO_OBJECTS
    shape2 = rng.choice([other for other in SHAPES if other != shape]) if two else None
    return [_harder(random_scene(rng, background, shape, shape2), rng, emphasis) for _ in range(n)]


def _harder(scene: Scene, rng: random.Random, emphasis: Emphasis) -> Scene:
    """Some scenes moved in a hard way, made small or put aside, where such a scene is allowed."""
    changed = scene
    if rng.random() < EXTRA_MOTION and scene.camera == "still":
        changed = replace(changed, motion=rng.choices(MOTIONS, emphasis.motions)[0])
    if rng.random() < EXTRA_SMALL and scene.shape2 is None:
        changed = replace(changed, size="small")
    changed = changed if is_valid(changed) else scene
    placed = replace(changed, place=rng.choice(PLACES[1:]))
    return placed if rng.random() < PLACED and is_valid(placed) else changed


def loss_weights(cells: Tensor) -> Tensor:
    """Weights for the loss, mean 1 in each clip: an object counts for nearly half, however small it is.

    The best prediction stays what it was, since each place is weighed against itself alone; but without weights nine
    tenths of the gradient come from scenery.
    """
    share = cells.mean((1, 2, 3), keepdim=True).clamp(min=1e-3)
    weights = 1 + cells * (OBJECT_SHARE / share).clamp(1.0, MOST_WEIGHT)
    return weights / weights.mean((1, 2, 3), keepdim=True)
