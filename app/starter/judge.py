"""The judge: does a clip show its scene? Colour masks, silhouettes and paths only; it learned nothing from any model.

``python -m app.starter.judge check [N]`` scores true renders (the judge's own ceiling);
``python -m app.starter.judge freeze`` writes the prompt list once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from app.starter import measure
from app.starter.canvas import REFERENCE_ASPECT, chunks
from app.starter.prompts import JudgedPrompt, draw_prompts, freeze, frozen_prompts
from app.starter.shapes import WHITE_INDEX
from app.starter.world import COLORS, MOTIONS, SHAPES, Scene, render

__all__ = ["Judge", "JudgedPrompt", "Verdict", "draw_prompts", "frozen_prompts", "score_table"]

_SMALL_BELOW, _BIG_ABOVE = 0.158, 0.215
"""Radii, in units of the shorter side, that part small, medium and big objects."""


@dataclass(frozen=True)
class Verdict:
    """What is right about a clip; None where the scene does not ask. saw: colour, object and motion that were seen."""

    color: bool | None = None
    object: bool | None = None
    motion: bool | None = None
    size: bool | None = None
    background: bool | None = None
    camera: bool | None = None
    two_colors: bool | None = None
    two_binding: bool | None = None
    two_sides: bool | None = None
    saw: str = ""


@dataclass(frozen=True)
class _Path:
    """An object's way: x in units where the width is 1.6, y in heights, area in pixels; (frames,) on the CPU."""

    x: Tensor
    y: Tensor
    area: Tensor
    activity: float


def _turning_points(y: Tensor) -> int:
    """How often a path turns between up and down."""
    smooth = y.unfold(0, 3, 1).mean(-1).diff() * (len(y) - 1) / 24
    signs = torch.sign(smooth[smooth.abs() > 0.006])
    return int((signs.diff() != 0).sum())


def seen_motion(path: _Path) -> str:
    """The motion a path shows; thresholds were set on true renders."""

    def way(values: Tensor) -> float:
        return float(values[-2:].mean() - values[:2].mean())

    dx, dy = way(path.x), way(path.y)
    range_x, range_y = float(path.x.max() - path.x.min()), float(path.y.max() - path.y.min())
    growth = math.log(max(float(path.area[-2:].mean()), 1) / max(float(path.area[:2].mean()), 1))
    if range_x > 0.30 and range_y > 0.20 and abs(dx) < 0.22 and abs(dy) < 0.22:
        return "circle"
    if abs(growth) > 0.75 and abs(dx) < 0.25 and abs(dy) < 0.25:
        return "grow" if growth > 0 else "shrink"
    if range_y > 0.10 and _turning_points(path.y) >= 1 and abs(dx) < 0.35 and range_x < 0.6 * range_y:
        return "bounce"
    if abs(dx) > 0.30 and abs(dx) > 1.5 * range_y:
        return "left" if dx < 0 else "right"
    if abs(dy) > 0.15:
        return "up" if dy < 0 else "down"
    return "spin" if path.activity > 0.045 else "still"


class Judge:
    """Judges clips of any canvas; built once, holds the outlines of all objects on ``device``."""

    def __init__(self, device: torch.device | str):
        self.device = torch.device(device)
        self.silhouettes = measure.Silhouettes(self.device)
        # Ten masks and a float copy of each clip: some 100 MB a clip at 256x160x25.
        self._batch = 4 if self.device.type == "cpu" else 24

    @torch.no_grad()
    def __call__(self, videos: Tensor, scenes: Sequence[Scene]) -> list[Verdict]:
        """Verdicts on uint8 (n, 3, frames, height, width), one scene each. Raises ValueError when the counts differ."""
        if len(videos) != len(scenes):
            raise ValueError(
                f"{len(videos)} clips can't be judged by {len(scenes)} scenes: give one scene for each clip."
            )
        verdicts: list[Verdict] = []
        for part in chunks(len(videos), self._batch):
            verdicts += self._judge(videos[part].to(self.device).float() / 255, scenes[part])
        return verdicts

    def _judge(self, video: Tensor, scenes: Sequence[Scene]) -> list[Verdict]:
        masks = measure.color_masks(video)
        share = masks.float().mean((3, 4)).mean(2)
        # Eyes, sails and tyres are white or black on objects of any colour.
        weighed = share.clone()
        weighed[:, WHITE_INDEX] *= 0.42
        weighed[:, WHITE_INDEX + 1] *= 0.6
        free = measure.free_of_objects(masks)
        backgrounds, cameras = measure.nearest_backgrounds(video, free), measure.camera_moves(video, free)
        share, weighed = share.cpu(), weighed.cpu()
        verdicts = []
        for index, scene in enumerate(scenes):
            common = {
                "background": backgrounds[index] == scene.background,
                "camera": cameras[index] == scene.camera if scene.background != "studio" else None,
            }
            if scene.shape2 is None:
                found = self._one(video[index], masks[index], share[index], weighed[index], scene)
            else:
                found = self._two(masks[index], share[index], weighed[index], scene)
            verdicts.append(Verdict(**common, **found))  # type: ignore[arg-type]
        return verdicts

    def _likeness(self, mask: Tensor, turned: bool) -> Tensor:
        return measure.shape_likeness(mask[None].float(), self.silhouettes, turned)[0]

    def _one(self, video: Tensor, masks: Tensor, share: Tensor, weighed: Tensor, scene: Scene) -> dict[str, object]:
        """Verdicts on the one object, taken to be the largest patch of one colour."""
        color = int(weighed.argmax())
        mask = masks[color].float()
        present = float(share[color]) > 0.003
        likeness = self._likeness(mask, scene.motion == "spin")
        shape = SHAPES[int(likeness.argmax())]
        height, width = mask.shape[1:]
        _, x, y, area = (t.cpu() for t in measure.silhouette(mask))
        activity = float(measure.activity(video[None], mask[None]))
        motion = seen_motion(_Path(x / width * REFERENCE_ASPECT, y / height, area, activity))
        size = None
        if scene.size != "medium" and scene.motion not in ("grow", "shrink") and scene.camera != "zoom":
            unit = float(self.silhouettes.unit_areas[SHAPES.index(scene.shape)])
            radius = math.sqrt(float(area.mean()) / unit) / min(height, width)
            solid = present and float(likeness.max()) > 0.5  # scattered pixels have an area, but no size
            size = solid and (radius < _SMALL_BELOW if scene.size == "small" else radius > _BIG_ABOVE)
        return {
            "color": present and COLORS[color] == scene.color,
            "object": present and shape == scene.shape,
            "motion": present and motion == scene.motion if scene.camera == "still" else None,
            "size": size,
            "saw": f"{COLORS[color]} {shape} {motion}" if present else "nothing",
        }

    def _two(self, masks: Tensor, share: Tensor, weighed: Tensor, scene: Scene) -> dict[str, object]:
        """Verdicts on two objects: both colours there, each on its object, and on the side asked for."""
        objects = [(COLORS.index(color), shape) for color, shape in scene.objects()]
        wanted = [color for color, _ in objects]
        strongest = set(weighed.topk(3).indices.tolist())
        colors = all(float(share[color]) > 0.004 and color in strongest for color in wanted)
        seen = [SHAPES[int(self._likeness(masks[color], scene.motion == "spin").argmax())] for color in wanted]
        sides = None
        if scene.left_first is not None:
            middle = masks.shape[1] // 2
            first, second = (float(measure.silhouette(masks[color, middle][None].float())[1]) for color in wanted)
            sides = colors and (first < second) == scene.left_first
        return {
            "two_colors": colors,
            "two_binding": colors and seen == [shape for _, shape in objects],
            "two_sides": sides,
            "saw": " and ".join(f"{COLORS[color]} {shape}" for color, shape in zip(wanted, seen, strict=True)),
        }


def score_table(verdicts: Sequence[Verdict], scenes: Sequence[Scene]) -> dict[str, tuple[int, int, float]]:
    """Class -> (right, judged, percent); classes that nothing asked for are left out.

    "camera" counts moving cameras only: "always still" would score 80 % otherwise; still ones are "camera_still".
    """
    counts: dict[str, list[bool]] = {}
    for verdict, scene in zip(verdicts, scenes, strict=True):
        for field in fields(Verdict):
            value = getattr(verdict, field.name)
            if isinstance(value, bool):
                still = field.name == "camera" and scene.camera == "still"
                counts.setdefault("camera_still" if still else field.name, []).append(value)
    order = ["camera_still" if name == "still" else name for name in (*(f.name for f in fields(Verdict)), "still")]
    return {
        name: (sum(counts[name]), len(counts[name]), round(100 * sum(counts[name]) / len(counts[name]), 1))
        for name in order
        if name in counts
    }


def check(count: int, device: torch.device) -> None:
    """Prints the table on true renders of ``count`` prompts of a list of their own, each motion and every error."""
    generator = torch.Generator(device).manual_seed(1)
    scenes = [prompt.scene for prompt in draw_prompts(11, count)]
    judge, verdicts = Judge(device), list[Verdict]()
    for part in chunks(len(scenes), 12):
        videos = torch.cat([render([scene], device, generator) for scene in scenes[part]])
        verdicts += judge(videos, scenes[part])
    table = score_table(verdicts, scenes)
    for motion in MOTIONS:
        of_motion = [i for i, v in enumerate(verdicts) if v.motion is not None and scenes[i].motion == motion]
        table |= {
            f"motion {motion}": score_table([verdicts[i] for i in of_motion], [scenes[i] for i in of_motion])["motion"]
        }
    for name, (right, judged, percent) in table.items():
        print(f"{name:14} {right:4} of {judged:4}  {percent:5.1f} %")
    for verdict, scene in zip(verdicts, scenes, strict=True):
        wrong = [field.name for field in fields(Verdict) if getattr(verdict, field.name) is False]
        if wrong:
            print(", ".join(wrong), "wrong:", scene, "saw", verdict.saw)


def main(arguments: Sequence[str]) -> int:
    """``freeze`` or ``check [N]``; returns the exit code."""
    if arguments and arguments[0] == "freeze":
        try:
            freeze()
        except FileExistsError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    if arguments and arguments[0] == "check":
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        check(int(arguments[1]) if len(arguments) > 1 else 300, device)
        return 0
    print("Say `freeze` to write the frozen prompts or `check [N]` to judge N true renders.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
