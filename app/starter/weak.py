"""What a model gets wrong, on prompts of another draw than the frozen ones, and how much oftener training shows it.

The frozen list is never looked at here: a run may learn from its own mistakes, not from those it is judged by.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from app.starter import judge
from app.starter.judge import Verdict
from app.starter.mix import EVEN, USUAL, Emphasis
from app.starter.prompts import JudgedPrompt, draw_prompts, frozen_prompts
from app.starter.score import generate, load
from app.starter.training import Ranks
from app.starter.world import MOTIONS, SHAPES, Scene

SEED, COUNT, STEPS = 71, 360, 12
"""Of the draw, and the steps of its clips: enough to see what is wrong."""

GAIN, MOST = 4.0, 3.0
"""What is always right comes once, what is wrong in a quarter of its clips twice, nothing oftener than this."""

EMPHASIS = "emphasis.json"
"""File in a run's output."""


def weigh(ranks: Ranks, folder: Path, out: Path, count: int = COUNT) -> Emphasis:
    """Judge the pipeline in `folder`, write the emphasis to `out`, and return it."""
    prompts = drawn(count)
    scenes = [prompt.scene for prompt in prompts]
    clips = generate(ranks, load(ranks, folder), [p.prompt for p in prompts], STEPS, guidance=4.0, seed=11_000)
    found = emphasis(judge.Judge(ranks.device)(clips, scenes), scenes)
    (out / EMPHASIS).write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")
    return found


def drawn(count: int) -> list[JudgedPrompt]:
    """At most `count` prompts, none of the frozen list."""
    frozen = {prompt.prompt for prompt in frozen_prompts()}
    return [prompt for prompt in draw_prompts(SEED, count) if prompt.prompt not in frozen]


def emphasis(verdicts: Sequence[Verdict], scenes: Sequence[Scene]) -> Emphasis:
    """Shapes by how often the object was wrong; motions by how often object or motion were. Scenes of one object."""
    single = [(v, s) for v, s in zip(verdicts, scenes, strict=True) if s.shape2 is None]
    shapes = tuple(
        _weight([v.object for v, scene in single if scene.shape == shape and v.object is not None]) for shape in SHAPES
    )
    motions = tuple(
        _weight([v.object is not False and v.motion is not False for v, scene in single if scene.motion == motion]) - 1
        for motion in MOTIONS
    )
    return Emphasis(shapes, motions if any(motions) else EVEN.motions)


def _weight(right: Sequence[bool]) -> float:
    wrong = 1 - sum(right) / len(right) if right else 0.0
    return min(MOST, 1 + GAIN * wrong)


def read(out: Path) -> Emphasis:
    """What `weigh` wrote in this run, else what is usually hard."""
    file = out / EMPHASIS
    if not file.exists():
        return USUAL
    data = json.loads(file.read_text(encoding="utf-8"))
    return Emphasis(tuple(data["shapes"]), tuple(data["motions"]))
