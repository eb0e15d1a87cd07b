"""Whole clips with each plan: seconds, how alike the frames are to the reference plan's, and what a preset would take.

Who makes the clips is no business of this module: `Make` is the engine of the app, or a pipeline. All clips of a
comparison have one prompt and one seed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel import caches
from accel.backends import REGISTRY, reference
from accel.contract import Backend
from accel.measuring.quality import Likeness, compare, together
from accel.measuring.timing import ShouldStop, Stopped
from accel.plan import KINDS, gpu_place, make_plan
from accel.readouts.results import AUTOMATIC, Clip, Quality
from accel.types import Kind, Machine, ModelTraits, Plan, Preferences, StageName

if TYPE_CHECKING:
    from accel.measuring.quality import Frames

REFERENCE = "reference"
FITS = 0.6
"""Part of the memory that weights in float32 may take for the reference to run in it."""


@dataclass(frozen=True)
class Made:
    """A clip. frames: uint8 (frames, height, width, 3). seconds: load, text, denoise, decode. engaged: its plan in a
    few words. report: what was served, as `Installation.report()` gives it."""

    frames: Frames
    seconds: dict[str, float]
    steps: int
    engaged: str = ""
    dtype: str = ""
    report: dict[str, Any] = field(default_factory=dict)


Make = Callable[[Preferences, str, int], Made]
"""Makes a clip of a prompt in so many steps, under these preferences. Raises Stopped when told to stop, anything else
for a clip that can't be made."""

Tell = Callable[[int, int, str], Any]


@dataclass(frozen=True)
class Contender:
    """A plan to compare. approximate: the stage, kind and backend that it tries out, None for the others. rehearsed:
    its first clip of a model measures the model, so a whole one is made before any is counted."""

    name: str
    preferences: Preferences
    approximate: tuple[StageName, Kind, str] | None = None
    rehearsed: bool = False

    @property
    def caches(self) -> bool:
        """Whether it tries out a step cache."""
        return self.approximate is not None and self.approximate[1] == "cache"


def contenders(
    machine: Machine, traits: ModelTraits, plan: Plan, registry: Iterable[Backend] = REGISTRY
) -> tuple[Contender, ...]:
    """The reference first, then plain torch in the plan's dtype, the plan itself, and it with each approximate backend
    and each step cache that can run here."""
    plain = {
        "attention": reference("attention").name,
        "linear": reference("linear").name,
        "text_encoder_linear": reference("linear").name,
        "vae": reference("vae").name,
        "compile": "no",
    }
    stage = plan.stage("transformer")
    dtype = stage.dtype.engaged if stage is not None else "float32"
    least = "float32" if _fits(machine, traits, plan) else dtype
    found = [Contender(REFERENCE, Preferences(**plain, dtype=least))]
    if dtype != least:
        found.append(Contender(f"plain {dtype}", Preferences(**plain, dtype=dtype)))
    found.append(Contender(AUTOMATIC, Preferences()))
    for item in registry:
        setting, stages = item.kind, [name for name, kinds in KINDS.items() if item.kind in kinds]
        if item.exact or not stages:
            continue
        wished = Preferences(**{setting: item.name})
        own: StageName = "vae" if item.kind == "vae" else "transformer"
        if _possible(machine, traits, wished, registry):
            found.append(Contender(f"{AUTOMATIC} with {item.name}", wished, (own, item.kind, item.name)))
    for name in caches.NAMES:
        wished = Preferences(cache=name)
        if _possible(machine, traits, wished, registry):
            tried: tuple[StageName, Kind, str] = ("transformer", "cache", name)
            found.append(Contender(f"{AUTOMATIC} with {name}", wished, tried, rehearsed=name in caches.REHEARSED))
    return tuple(found)


def _fits(machine: Machine, traits: ModelTraits, plan: Plan) -> bool:
    """Whether all weights in float32 fit into the memory that the plan's device has; unknown memory fits."""
    stage = plan.stage("transformer")
    device = "cpu" if stage is None else stage.device.engaged
    gpu = next((gpu for gpu in machine.usable_gpus() if device == f"{gpu_place(gpu)}:{gpu.index}"), None)
    memory = machine.memory.usable if gpu is None else gpu.memory
    return not memory or sum(one.parameters for one in traits.stages) * 4 <= memory * FITS


def _possible(machine: Machine, traits: ModelTraits, wished: Preferences, registry: Iterable[Backend]) -> bool:
    from accel.errors import PlanError

    try:
        make_plan(machine, traits, wished, registry=registry)
    except PlanError:
        return False
    return True


# -- speed --


def race(
    plans: Sequence[Contender],
    make: Make,
    prompt: str,
    steps: int,
    whole: int,
    *,
    rounds: int = 1,
    warm: bool = True,
    tell: Tell = lambda done, of, text: None,
    should_stop: ShouldStop = lambda: False,
) -> tuple[Clip, ...]:
    """A clip per plan, `rounds` times in turns; seconds are the least of all rounds. steps: of these clips; whole: of
    the preset whose time is predicted. warm: make a clip of one step first, which is not counted.

    A plan whose clip can't be made says why, and the others go on. Raises Stopped.
    """
    made: dict[str, list[Made]] = {plan.name: [] for plan in plans}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for place, plan in enumerate(plans):
            if plan.name in failed:
                continue
            if should_stop():
                raise Stopped
            tell(number * len(plans) + place, rounds * len(plans), f"a clip with the plan: {plan.name}")
            try:
                if plan.rehearsed and not number:
                    make(plan.preferences, prompt, steps)
                elif warm:
                    make(plan.preferences, prompt, 1)
                made[plan.name].append(make(plan.preferences, prompt, steps))
            except Stopped:
                raise
            except Exception as error:
                failed[plan.name] = _reason(error)
    base = made[plans[0].name][0].frames if made[plans[0].name] else None
    return tuple(_clip(plan.name, made[plan.name], failed.get(plan.name, ""), whole, base) for plan in plans)


def _clip(name: str, made: list[Made], failed: str, whole: int, base: Frames | None) -> Clip:
    if failed or not made:
        return Clip(name, "", "", {}, 0.0, 0, 0.0, failed=failed or "it was not made")
    first = made[0]
    phases = {phase: min(one.seconds.get(phase, 0.0) for one in made) for phase in first.seconds}
    per_step = phases.get("denoise", 0.0) / max(1, first.steps)
    fixed = sum(seconds for phase, seconds in phases.items() if phase in ("load", "text", "decode"))
    alike = None if base is None or base is first.frames else compare(first.frames, base)
    served, calls = _counts(first.report)
    return Clip(
        plan=name,
        engaged=first.engaged,
        dtype=first.dtype,
        seconds={**phases, "total": sum(phases.values())},
        per_step=per_step,
        steps=first.steps,
        predicted=fixed + per_step * whole,
        psnr=None if alike is None else alike.psnr,
        ssim=None if alike is None else alike.ssim,
        served=served,
        calls=calls,
        rounds=len(made),
    )


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _counts(report: Mapping[str, Any]) -> tuple[int, int]:
    entries = [entry for kind in ("attention", "linear", "vae") for entry in report.get(kind, {}).values()]
    return sum(int(one.get("served", 0)) for one in entries), sum(int(one.get("calls", 0)) for one in entries)


# -- quality --


def qualities(
    model: str,
    plans: Sequence[Contender],
    make: Make,
    prompts: Sequence[str],
    steps: int,
    size: str,
    *,
    tell: Tell = lambda done, of, text: None,
    should_stop: ShouldStop = lambda: False,
) -> tuple[tuple[Quality, ...], tuple[str, ...]]:
    """Clips of every prompt with each approximate plan against the first plan's, the reference; and a sentence for each
    plan that failed, which has no quality.

    Frames wait on the disk, since one plan makes all its clips before the next is put in. Raises Stopped, and whatever
    making a clip of the reference raises.
    """
    import numpy as np

    tried = [plan for plan in plans if plan.approximate is not None]
    total = (1 + len(tried)) * len(prompts)
    done = 0
    with tempfile.TemporaryDirectory() as place:

        def clip(plan: Contender, prompt: str) -> Frames:
            nonlocal done
            if should_stop():
                raise Stopped
            tell(done, total, f"{plan.name}: {prompt[:60]}")
            done += 1
            return make(plan.preferences, prompt, steps).frames

        for number, prompt in enumerate(prompts):
            np.save(Path(place) / f"{number}.npy", clip(plans[0], prompt))
        found, notes = [], []
        for plan in tried:
            alike: list[Likeness] = []
            try:
                if plan.rehearsed:
                    make(plan.preferences, prompts[0], steps)
                for number, prompt in enumerate(prompts):
                    alike.append(compare(clip(plan, prompt), np.load(Path(place) / f"{number}.npy")))
            except Stopped:
                raise
            except Exception as error:
                done = (2 + tried.index(plan)) * len(prompts)
                notes.append(f"{plan.name} made no clips to compare: {_reason(error)}")
                continue
            found.append(_quality(model, plan, alike, size))
    return tuple(found), tuple(notes)


def _quality(model: str, plan: Contender, alike: Sequence[Likeness], size: str) -> Quality:
    assert plan.approximate is not None
    whole, worst = together(alike), min(alike, key=lambda one: one.psnr)
    lowest = min(one.ssim for one in alike)
    return Quality(model, *plan.approximate, len(alike), whole.psnr, whole.ssim, worst.psnr, lowest, size)


def seconds_for(clips: Sequence[Clip], plans: Sequence[Contender], prompts: int) -> float:
    """What `qualities` will take, by the clips that were raced: predictions without loading."""
    per_plan = {clip.plan: clip.predicted - clip.seconds.get("load", 0.0) for clip in clips if not clip.failed}
    wanted = [plan.name for plan in plans if plan.approximate is not None or plan.name == REFERENCE]
    return sum(per_plan.get(name, 0.0) for name in wanted) * prompts
