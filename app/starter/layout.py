"""What lies in each latent cell, and a head that reads it off the transformer's middle while it trains.

The flow's loss says little of which object has which colour, and which way it points: most of it is scenery. The world
knows, so half-way through its blocks the transformer must be able to tell shape, colour and pose of what lies in each
cell. Representations that are led like this are learnt several times faster (REPA, Yu et al. 2024, lead by a trained
encoder instead). The head is no part of what is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from app.starter.canvas import CELL, CELL_FRAMES, Canvas
from app.starter.shapes import Pose
from app.starter.world import COLORS, SHAPES, Scene

POSE = 6
"""Numbers of a pose: way from the object's centre to the cell, x and y in radii; log of five radii; cosine and sine of
its angle; facing."""

FURTHEST = 2.5
"""Radii beyond which a way counts no further: cells of a shrinking object are larger than it."""


class Layout(NamedTuple):
    """shape and color int8 (n, t, h, w): 0 for scenery, else the index in SHAPES or COLORS plus one; pose bfloat16
    (n, 6, t, h, w), see `POSE`, zero for scenery."""

    shape: Tensor
    color: Tensor
    pose: Tensor


def empty_layout(clips: int, cells: tuple[int, int, int], device: torch.device) -> Layout:
    """Scenery everywhere. cells: latent frames, rows, columns."""
    shape, color = (torch.zeros(clips, *cells, dtype=torch.int8, device=device) for _ in range(2))
    return Layout(shape, color, torch.zeros(clips, POSE, *cells, dtype=torch.bfloat16, device=device))


def by_latent_frame(values: Tensor, most: bool = False) -> Tensor:
    """(n, frames, ...) -> (n, latent frames, ...): the first frame alone, then the means of each two, or the larger."""
    later = values[:, 1:].unflatten(1, (-1, CELL_FRAMES))
    return torch.cat([values[:, :1], later.amax(2) if most else later.mean(2)], 1)


def cell_centres(canvas: Canvas, device: torch.device) -> tuple[Tensor, Tensor]:
    """x (1, 1, 1, columns) and y (1, 1, rows, 1) in canvas heights."""
    _, rows, columns = canvas.cells
    x, y = ((torch.arange(count, device=device) + 0.5) * CELL / canvas.height for count in (columns, rows))
    return x.view(1, 1, 1, -1), y.view(1, 1, -1, 1)


def object_cells(pose: Pose, canvas: Canvas) -> Tensor:
    """Latent cells that an object touches: float32 (n, latent frames, rows, columns), 0 or 1."""
    across, down = cell_centres(canvas, pose.x.device)
    half = CELL / canvas.height / 2
    x, y, reach = (values[..., None, None] for values in (pose.x, pose.y, 1.15 * pose.radius))
    away = ((across - x).abs() - half).clamp(min=0) ** 2 + ((down - y).abs() - half).clamp(min=0) ** 2
    return by_latent_frame((away < reach**2).float(), most=True)


def layout_of(scenes: Sequence[Scene], poses: Sequence[Pose], touched: Sequence[Tensor], canvas: Canvas) -> Layout:
    """The layout of clips that were drawn together. touched: each object's latent cells, see `object_cells`."""
    device, cells = touched[0].device, touched[0].shape
    found = empty_layout(len(scenes), (cells[1], cells[2], cells[3]), device)
    names = [(SHAPES.index(shape) + 1) for _, shape in scenes[0].objects()]
    colors = torch.tensor([[COLORS.index(color) + 1 for color, _ in scene.objects()] for scene in scenes])
    colors = colors.to(device, torch.int8, non_blocking=True)
    for number, (name, pose, there) in enumerate(zip(names, poses, touched, strict=True)):
        inside = there > 0
        color = colors[:, number].view(-1, 1, 1, 1)
        found = Layout(
            torch.where(inside, torch.full_like(found.shape, name), found.shape),
            torch.where(inside, color, found.color),
            torch.where(inside[:, None], _pose_numbers(pose, canvas).to(torch.bfloat16), found.pose),
        )
    return found


def _pose_numbers(pose: Pose, canvas: Canvas) -> Tensor:
    """`POSE` numbers of every cell, float32 (n, 6, t, h, w)."""
    across, down = cell_centres(canvas, pose.x.device)
    x, y, radius, angle = (
        by_latent_frame(values)[..., None, None] for values in (pose.x, pose.y, pose.radius, pose.angle)
    )
    numbers = [
        ((across - x) / radius).clamp(-FURTHEST, FURTHEST),
        ((down - y) / radius).clamp(-FURTHEST, FURTHEST),
        (5 * radius).log(),
        angle.cos(),
        angle.sin(),
        pose.facing[..., None, None],
    ]
    size = len(pose.x), *canvas.cells
    return torch.stack([value.expand(size) for value in numbers], 1)


class Watched:
    """Keeps what a block of a transformer puts out until it is taken.

    Put around the block's call, compiled or not (so compile first): compiled calls are shared by all blocks and don't
    see a hook that one of them has.
    """

    def __init__(self, block: nn.Module) -> None:
        inner: Callable[..., Tensor] = block._compiled_call_impl or block._call_impl
        self._seen: Tensor | None = None

        def call(*given: Any, **named: Any) -> Tensor:
            self._seen = inner(*given, **named)
            return self._seen

        block._compiled_call_impl = call

    def take(self) -> Tensor:
        """What the block put out last. Raises ValueError when it has not run since the last time."""
        seen, self._seen = self._seen, None
        if seen is None:
            raise ValueError("The block that is watched has not run: run the transformer first.")
        return seen


class LayoutHead(nn.Module):
    """From a token of ``width`` numbers to shape, colour and pose in its 2 x 2 cells."""

    SIZES = (len(SHAPES) + 1, len(COLORS) + 1, POSE)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.read = nn.Linear(width, 4 * sum(self.SIZES))
        nn.init.zeros_(self.read.weight)
        nn.init.zeros_(self.read.bias)

    def forward(self, tokens: Tensor, cells: tuple[int, int, int]) -> tuple[Tensor, ...]:
        """Shape logits, colour logits and poses, float32 (n, 13 or 11 or 6, t, h, w), from (n, tokens, width)."""
        frames, rows, columns = cells
        found = self.read(self.norm(tokens)).float()
        found = found.view(len(tokens), frames, rows // 2, columns // 2, 2, 2, -1).permute(0, 6, 1, 2, 4, 3, 5)
        return found.reshape(len(tokens), -1, frames, rows, columns).split(self.SIZES, dim=1)

    def loss(self, tokens: Tensor, layout: Layout, weights: Tensor) -> Tensor:
        """How much of the layout the tokens don't tell, each cell counted by ``weights`` (n, t, h, w) of mean 1."""
        frames, rows, columns = layout.shape.shape[1:]
        shape, color, pose = self(tokens, (frames, rows, columns))
        wrong = F.cross_entropy(shape, layout.shape.long(), reduction="none")
        wrong = wrong + F.cross_entropy(color, layout.color.long(), reduction="none")
        off = (pose - layout.pose.float()).square().sum(1) * (layout.shape > 0)
        return ((wrong + off) * weights).mean()
