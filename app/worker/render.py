"""One clip from request to file: the engine's frames, encoded with everything that is needed to make them again.

This is what batch, queue and page all call; they differ only in who listens.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app import video
from app.engine import Clip, Engine
from app.engine.kept import TOLD
from app.errors import KinetileError
from app.job_types import JobSpec
from app.pictures import to_metadata
from app.progress import Progress
from app.versions import versions

MACHINE = "KINETILE_MACHINE"
"""In the environment, where clips are made for another machine: this one's name there."""


@dataclass(frozen=True)
class Rendered:
    """A clip on disk. Seconds are wall time; `clip.timings` has the stages, `save` among them."""

    path: Path
    poster: Path
    seconds: float
    clip: Clip
    timings: dict[str, float]
    warnings: tuple[str, ...]


def render(
    engine: Engine,
    spec: JobSpec,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    *,
    previews: bool = False,
    uid: str = "",
    expected: Mapping[str, float] | None = None,
) -> Rendered:
    """Make the clip that `spec` describes and save it in its folder, marked with the job's `uid`. Raises what
    `Engine.generate` and `video.save` raise; nothing is left half-written.
    """
    begun = time.perf_counter()
    clip = engine.generate(
        spec.request,
        on_progress,
        should_stop,
        previews=previews,
        recorded_plan=spec.recorded_plan,
        expected=expected,
        keeps=True,
    )
    if machine := os.environ.get(MACHINE):
        where = clip.report.get("ran_on")
        clip = replace(clip, report={**clip.report, "ran_on": f"{machine}, {where}" if where else machine})
    if on_progress is not None:
        on_progress(Progress("saving", 0, 1, 0.99))
    made = time.perf_counter()
    saved = _saved(spec, clip, uid)
    ended = time.perf_counter()
    timings = {**clip.timings, "save": ended - made, "total": ended - begun}
    if on_progress is not None:
        on_progress(Progress("saving", 1, 1, 1.0, eta_seconds=0.0))
    return Rendered(saved.path, saved.poster, ended - begun, clip, timings, tuple(saved.warnings))


def _saved(spec: JobSpec, clip: Clip, uid: str) -> video.SavedClip:
    """The clip's file. Once that is there nobody needs its latents, which stay where it could not be written."""
    try:
        saved = video.save(clip.frames, clip.fps, spec.folder, spec.stem, metadata(spec, clip, uid), uid=uid)
    except KinetileError as error:
        if clip.latents is None or not clip.latents.is_file():
            raise
        raise type(error)(f"{error} {TOLD}") from error
    if clip.latents is not None:
        with contextlib.suppress(OSError):
            clip.latents.unlink()
    return saved


def metadata(spec: JobSpec, clip: Clip, uid: str = "") -> dict[str, Any]:
    """What is embedded in the clip's file: enough to make it again and to know how it was made."""
    return {
        "kinetile": 1,
        **({"job": uid} if uid else {}),
        "request": clip.request.model_dump(mode="json"),
        "asked": spec.asked.model_dump(mode="json"),
        **({"pictures": to_metadata(clip.pictures)} if clip.pictures else {}),
        "adjustments": [item.model_dump(mode="json") for item in dict.fromkeys(spec.adjustments + clip.adjustments)],
        "plan": clip.plan,
        "report": {**clip.report, "tokens": clip.tokens},
        "timings": {stage: round(seconds, 4) for stage, seconds in clip.timings.items()},
        "versions": versions(),
    }
