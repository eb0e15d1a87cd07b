"""What the judge measures on clips: colour masks, silhouettes, backgrounds and camera moves. Batched, without opinions.

Lengths are given for the canvas they were tuned on and scale with the clip: `ROWS` is that canvas's height.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from app.starter import scenery, shapes
from app.starter.canvas import Canvas, Dice, chunks, constant
from app.starter.world import BACKGROUNDS, SHAPES, STUDIO_TONES

ROWS = 112
"""Height in pixels of the 192x112 clips on which the pixel constants below were tuned."""

_HUES = (358.0, 29.0, 51.0, 127.0, 181.0, 229.0, 277.0, 329.0)
"""Hue in degrees of the first eight colours of `shapes.COLORS`."""

_GRID = 40
"""Side of a normalised silhouette."""

_CAMERA_CUT = 0.12
"""Largest difference of one pixel (0..1) that counts when camera moves are compared."""

_CELLS = (6, 4)
"""Rows and columns of cells whose mean colours tell a background."""


def color_masks(video: Tensor) -> Tensor:
    """Which pixels have which colour: float (n, 3, t, h, w) in 0..1 -> bool (n, 10, t, h, w), ordered as COLORS."""
    brightest, darkest = video.amax(1), video.amin(1)
    chroma = brightest - darkest
    red, green, blue = video.unbind(1)
    sixth = torch.where(
        brightest == red,
        ((green - blue) / (chroma + 1e-6)) % 6,
        torch.where(brightest == green, (blue - red) / (chroma + 1e-6) + 2, (red - green) / (chroma + 1e-6) + 4),
    )
    hues = constant(_HUES, video.device).view(1, -1, 1, 1, 1)
    nearest = ((sixth[:, None] * 60 - hues + 180) % 360 - 180).abs().argmin(1)
    vivid = (chroma > 0.44) & (brightest > 0.42)
    hued = [vivid & (nearest == index) for index in range(len(_HUES))]
    return torch.stack([*hued, darkest > 0.905, brightest < 0.175], 1)


def silhouette(mask: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Masks float (n, h, w) centred and scaled to one area: (n, 40, 40); then centre x, y and area (n,) in pixels."""
    n, height, width = mask.shape
    x, y = (torch.arange(size, device=mask.device).float() for size in (width, height))
    area = mask.sum((1, 2)).clamp(min=1)
    cx, cy = (mask.sum(1) * x).sum(1) / area, (mask.sum(2) * y).sum(1) / area
    reach = torch.sqrt(area / math.pi)[:, None, None] * 2.1
    span = torch.linspace(-1, 1, _GRID, device=mask.device)
    grid_x = (cx[:, None, None] + span.view(1, 1, -1) * reach + 0.5) / width * 2 - 1
    grid_y = (cy[:, None, None] + span.view(1, -1, 1) * reach + 0.5) / height * 2 - 1
    size = (n, _GRID, _GRID)
    grid = torch.stack([grid_x.expand(size), grid_y.expand(size)], -1)
    return F.grid_sample(mask[:, None], grid, align_corners=False)[:, 0], cx, cy, area


class Silhouettes:
    """The objects' outlines to compare with: upright ones, and turned in steps of 15 degrees."""

    def __init__(self, device: torch.device):
        upright, turned = [], []
        for index, shape in enumerate(SHAPES):
            for facing in (1.0, -1.0):
                steps = [(shapes.main_mask(shape, facing, k * math.pi / 12, 40, 128, device), k) for k in range(24)]
                turned += [(index, mask) for mask, _ in steps]
                # A rolling ball's stripe turns; a flying rocket leans.
                upright += [(index, mask) for mask, k in steps if k == 0 or shape == "ball"]
                if shape == "rocket":
                    upright += [(index, shapes.main_mask(shape, facing, lean, 40, 128, device)) for lean in (-0.6, 0.6)]
        self._banks = {False: self._pack(upright), True: self._pack(turned)}
        areas = [shapes.main_mask(shape, 1, 0, 40, 128, device).sum() / 1600 for shape in SHAPES]
        self.unit_areas = torch.stack(areas)
        """Main-coloured area of each object of radius 1, float (12,)."""

    @staticmethod
    def _pack(bank: list[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
        masks = torch.stack([mask for _, mask in bank])
        return torch.tensor([index for index, _ in bank], device=masks.device), silhouette(masks)[0].flatten(1)

    def likeness(self, outlines: Tensor, turned: bool) -> Tensor:
        """Best intersection over union of each outline (n, 40, 40) with each object: (n, 12)."""
        index, bank = self._banks[turned]
        parts = []
        for part in chunks(len(outlines), 16):
            one = outlines[part].flatten(1)[:, None]
            overlap = torch.minimum(one, bank).sum(-1) / torch.maximum(one, bank).sum(-1)
            parts.append(torch.stack([overlap[:, index == shape].amax(1) for shape in range(len(SHAPES))], 1))
        return torch.cat(parts)


def five_frames(frames: int) -> list[int]:
    """Five frame numbers from first to last."""
    return [round(k * (frames - 1) / 4) for k in range(5)]


def shape_likeness(masks: Tensor, silhouettes: Silhouettes, turned: bool) -> Tensor:
    """Likeness (n, 12) of masks float (n, t, h, w), averaged over five frames that show enough of the object."""
    n, frames, height, width = masks.shape
    outlines, _, _, area = silhouette(masks[:, five_frames(frames)].reshape(n * 5, height, width))
    enough = (area.view(n, 5, 1) > 60 * (min(height, width) / ROWS) ** 2).float()
    likeness = silhouettes.likeness(outlines, turned).view(n, 5, -1)
    return (likeness * enough).sum(1) / enough.sum(1).clamp(min=1)


def free_of_objects(masks: Tensor) -> Tensor:
    """Float (n, t, h, w): 1 where no colour mask comes near, that is where scenery shows."""
    n, _, frames, height, width = masks.shape
    side = 2 * round(7 * min(height, width) / ROWS) + 1
    any_object = masks.any(1).float().view(n * frames, 1, height, width)
    grown = F.max_pool2d(any_object, (side, 1), 1, (side // 2, 0))
    grown = F.max_pool2d(grown, (1, side), 1, (0, side // 2))
    return 1 - grown.view(n, frames, height, width)


@functools.lru_cache(maxsize=8)
def _palettes(height: int, width: int, device: torch.device) -> tuple[tuple[str, ...], Tensor]:
    """Name and mean cell colours (p, 3, cells) of every background; the studio has one entry per tone."""
    canvas = Canvas(height, width)
    generator = torch.Generator(device).manual_seed(77)
    tones = constant(tuple(scenery.STUDIO_TONES.values()), device)
    names, cells = [], []
    for name in BACKGROUNDS:
        for tone in range(len(STUDIO_TONES) if name == "studio" else 1):
            dice = Dice(48, device, generator)
            still = scenery.background(name, tones[tone].expand(48, 3), canvas, dice)
            seen = still[..., canvas.margin : canvas.margin + width]
            names.append(name)
            cells.append(F.adaptive_avg_pool2d(seen, _CELLS).flatten(2).mean(0))
    return tuple(names), torch.stack(cells)


def nearest_backgrounds(video: Tensor, free: Tensor) -> list[str]:
    """The background whose mean colours come nearest to the first frame's, objects left out; "" when none shows."""
    names, palettes = _palettes(video.shape[3], video.shape[4], video.device)
    weight = free[:, None, 0]
    share = F.adaptive_avg_pool2d(weight, _CELLS).flatten(2)
    cells = F.adaptive_avg_pool2d(video[:, :, 0] * weight, _CELLS).flatten(2) / share.clamp(min=0.02)
    counted = (share > 0.25).float()
    distance = ((cells[:, None] - palettes) ** 2).sum(2)
    distance = (distance * counted).sum(2) / counted.sum(2).clamp(min=1)
    enough = counted.sum(2).flatten() >= 4
    return [names[index] if ok else "" for index, ok in zip(distance.argmin(1).tolist(), enough.tolist(), strict=True)]


def camera_hypotheses(spread: float) -> list[tuple[str, float, float]]:
    """(name, shift of the view in canvas heights, zoom) between an early and the last frame."""
    ways = [0.179 + 0.0268 * step for step in range(13)]
    pans = [("left", -way * spread, 1.0) for way in ways] + [("right", way * spread, 1.0) for way in ways]
    return [("still", 0.0, 1.0), *pans, *(("zoom", 0.0, zoom) for zoom in (1.2, 1.27, 1.34, 1.41, 1.48))]


def camera_moves(video: Tensor, free: Tensor) -> list[str]:
    """The camera move that best turns an early frame's scenery into the last frame's; "" when too little shows."""
    n, _, frames, height, width = video.shape
    early = round((frames - 1) / 12)
    source = torch.cat([video[:, :, early], free[:, None, early], torch.ones_like(free[:, None, early])], 1)
    target, target_free = video[:, :, -1], free[:, -1]
    rows = torch.linspace(-1 + 1 / height, 1 - 1 / height, height, device=video.device)
    columns = torch.linspace(-1 + 1 / width, 1 - 1 / width, width, device=video.device)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    hypotheses = camera_hypotheses(Canvas(height, width).spread)
    errors = []
    for _, shift, zoom in hypotheses:
        grid = torch.stack([(x + 2 * shift * height / width) / zoom, y / zoom], -1).expand(n, height, width, 2)
        moved = F.grid_sample(source, grid, align_corners=False)
        weight = moved[:, 3] * target_free * (moved[:, 4] > 0.99)
        # Cut off, so that parts of a moving object that no mask covers (a roof, a beak) don't outweigh the scenery.
        error = ((moved[:, :3] - target).abs().clamp(max=_CAMERA_CUT) * weight[:, None]).sum((1, 2, 3))
        # The constant keeps a hypothesis that leaves little to compare from winning by chance.
        errors.append(error / (weight.sum((1, 2)) * 3 + 0.0078 * 3 * height * width))
    best = torch.stack(errors, 1).argmin(1).tolist()
    enough = (source[:, 3] * target_free).mean((1, 2)) > 0.05
    return [hypotheses[index][0] if ok else "" for index, ok in zip(best, enough.tolist(), strict=True)]


def activity(video: Tensor, mask: Tensor) -> Tensor:
    """Mean change (n,) of the pixels inside an object, float mask (n, t, h, w), over an eighth of the clip."""
    step = max(1, round((video.shape[2] - 1) / 8))
    change = (video[:, :, step:] - video[:, :, :-step]).abs().mean(1)
    inside = mask[:, step:]
    smallest = 50 * (min(video.shape[3:]) / ROWS) ** 2
    return (change * inside).sum((1, 2, 3)) / inside.sum((1, 2, 3)).clamp(min=smallest)
