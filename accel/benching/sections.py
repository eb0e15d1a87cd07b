"""The sections of a measurement; each gives JSON data: a title, what was measured, and one row per contender.

A row: `seconds` (phase -> median, least, most), `rounds`, `threads`, `error` against the first contender, `plan` (what
was engaged), `report` (what was served), `memory` (bytes on the GPU: weights, peak), `profile` where asked for; or
`failed`, the reason.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from accel.benching.processes import ROOT, busy_process, plain_environment
from accel.benching.race import LEAST_PATIENCE, Job, Race, Times, errors, summed_up
from accel.benching.work import CACHES, CONTENDERS, WORKS, Scale, Work
from accel.threads import environment
from accel.types import Machine
from accel.waiting import WAITING_ENVIRONMENT

Section = dict[str, Any]

CLIP: dict[str, Any] = {"prompt": "A red ball bounces up and down in a studio", "steps": 20, "guidance": 4.0}
CLIP |= {"width": 256, "height": 160, "frames": 25}
SMALL = {"width": 64, "height": 64, "frames": 5, "steps": 2}
SWEEP_STEPS = 6

SHARE_OF_PEAK = 0.5
"""Part of all cores' speed in the probe's product that a whole forward is taken to reach, to choose how much of a model
is run."""
SHARE_OF_MEMORY = 0.6


@dataclass(frozen=True)
class Settings:
    """What is measured with. model: folder of a diffusers pipeline, None when only shapes are measured.

    contenders: names of CONTENDERS, empty for each section's own. preferences: for the plans of all contenders.
    layers: how many of a large model's are run, 0 for as many as memory and time allow. cut: which of a work's cuts is
    run, 0 for the whole, None for the largest that fits.
    """

    machine: Machine
    model: Path | None = None
    contenders: tuple[str, ...] = ()
    preferences: dict[str, str] = field(default_factory=dict)
    clip: dict[str, Any] = field(default_factory=dict)
    scale: Scale = "full"
    rounds: int = 5
    layers: int = 0
    cut: int | None = None
    profile: bool = False

    @property
    def device(self) -> str:
        """Where everything is measured: as asked for, else on the first GPU that can be used, else on the CPU."""
        asked = self.preferences.get("device", "auto")
        gpus = [f"cuda:{gpu.index}" for gpu in self.machine.usable_gpus() if gpu.vendor != "apple"]
        return asked if asked != "auto" else next(iter(gpus), "cpu")

    def chosen(self, *usual: str) -> tuple[str, ...]:
        return self.contenders or usual

    def job(self, contender: str, waiting: str | None = None, **work: Any) -> Job:
        """waiting: how idle workers wait; None for what a contender has by itself."""
        preferences = {**self.preferences, "device": self.device}
        job = {"contender": contender, "machine": self.machine.to_dict(), "preferences": preferences, **work}
        environ = plain_environment()
        if not CONTENDERS[contender].plain:
            environ |= environment(self.machine)
        if waiting is not None:
            for names in WAITING_ENVIRONMENT.values():
                environ = {name: value for name, value in environ.items() if name not in names}
            environ |= WAITING_ENVIRONMENT[waiting]
        return job, environ

    def clip_of(self, **changes: Any) -> dict[str, Any]:
        small = SMALL if self.scale == "tiny" else {}
        return {"model": str(self.model), "clip": {**CLIP, **self.clip, **changes, **small}}


# -- the sections --


def correct(settings: Settings, end: float) -> Section:
    """Every backend usable here against float64."""
    quick = ["--quick"] if settings.scale == "tiny" else []
    command = [sys.executable, "-m", "accel.selfcheck", *quick]
    try:
        environ = {**plain_environment(), **environment(settings.machine)}
        left = max(LEAST_PATIENCE, end - time.monotonic())
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=left, check=False)
        lines, right = done.stdout.splitlines(), done.returncode == 0
        lines += [] if right else done.stderr.splitlines()[-1:]
    except subprocess.TimeoutExpired as stopped:
        told = stopped.stdout or b""
        lines = (told.decode() if isinstance(told, bytes) else told).splitlines()
        right = False
        lines.append(f"stopped after {left:.0f} s")
    return {"title": "every CPU backend against float64", "right": right, "lines": lines, "rows": {}}


def clip(settings: Settings, end: float) -> Section:
    """A whole clip: text, denoising, decoding."""
    names = settings.chosen("plain-fp32", "plain-bf16", "auto", "fp32", "int8")
    work = settings.clip_of()
    return {"title": _clip_title(work), **_raced(settings, {name: settings.job(name, **work) for name in names}, end)}


def shape(settings: Settings, end: float, work: Work) -> Section:
    """One call of one module with random weights."""
    usual = ("plain-fp32", "plain-bf16", "auto")
    names = settings.chosen(
        *(usual if work.name not in NEEDS_GPU else ("plain-bf16", "auto", "fa3-fp8", "fp8-compiled", "fp8-fused"))
    )
    cut = fitting(settings, work, len(names), end - time.monotonic())
    jobs = {name: settings.job(name, work=work.name, cut=cut, scale=settings.scale) for name in names}
    whole = "" if cut == work.cuts[0] else f"; {_amount(work, cut)} of {_amount(work, work.cuts[0])}"
    measured = {"cut": cut, "teraflops": work.flops(cut) / 1e12}
    return {"title": work.title + whole, **measured, **_raced(settings, jobs, end)}


def caches(settings: Settings, end: float) -> Section:
    """Whole denoisings with each step cache. The first is not kept: in it some caches only measure the model."""
    work = WORKS["step-1.3b"]
    names = settings.chosen("auto", *(f"cache-{name}" for name in CACHES))
    steps = SMALL["steps"] * 4 if settings.scale == "tiny" else CLIP["steps"]
    cut = work.cuts[-1] if settings.scale == "tiny" else min(settings.layers or work.cuts[0], work.cuts[0])
    told = {"work": work.name, "cut": cut, "scale": settings.scale, "steps": steps}
    jobs = {name: settings.job(name, **told) for name in names}
    title = f"{steps} guided steps shaped like Wan 2.1 1.3B's, 832x480, 17 frames; {_amount(work, cut)}, random weights"
    return {"title": title, **_raced(settings, jobs, end, rehearse=True)}


def busy(settings: Settings, end: float) -> Section:
    """A clip alone and beside one busy process, with workers that sleep and with workers that spin while they wait."""
    work = settings.clip_of()
    jobs = {"plain-fp32": settings.job("plain-fp32", **work)}
    jobs |= {f"auto, {waiting}": settings.job("auto", waiting, **work) for waiting in WAITING_ENVIRONMENT}
    runs: dict[str, list[Times]] = {}
    with Race(jobs, end) as race:
        race.rounds(1)
        for _ in range(settings.rounds):
            begun = time.monotonic()
            for name, (times,) in race.rounds(1).items():
                runs.setdefault(f"{name}: quiet", []).append(times)
            with busy_process():
                for name, (times,) in race.rounds(1).items():
                    runs.setdefault(f"{name}: beside a busy process", []).append(times)
            if 2 * time.monotonic() - begun > end:
                break
    rows: dict[str, Any] = {name: {"seconds": summed_up(one), "rounds": len(one)} for name, one in runs.items()}
    rows |= {name: {"failed": why} for name, why in race.failures.items()}
    return {"title": _clip_title(work) + ", quiet and beside one busy process", "rows": rows}


def threads(settings: Settings, end: float) -> Section:
    """A short clip with one thread, two, four ... and with workers that sleep or spin."""
    work = settings.clip_of(steps=SWEEP_STEPS)
    counts = sorted({min(2**power, settings.machine.cores.usable) for power in range(10)})
    # a forced number: stages that settle their own would undo what is swept here
    forced = replace(settings, preferences={**settings.preferences, "threads": str(counts[-1])})
    jobs = {waiting: forced.job("auto", waiting, **work) for waiting in WAITING_ENVIRONMENT}
    rows: dict[str, Any] = {}
    with Race(jobs, end) as race:
        for count in counts:
            race.ask({"threads": count})
            warm = {name: times[0] for name, times in race.rounds(1).items()}
            for name, runs in race.rounds(min(3, settings.rounds), warm).items():
                rows[f"{count} threads, {name}"] = {"seconds": summed_up(runs), "rounds": len(runs)}
    rows |= {name: {"failed": why} for name, why in race.failures.items()}
    return {"title": _clip_title(work), "rows": rows}


SECTIONS: dict[str, tuple[float, Callable[[Settings, float], Section]]] = {
    "correct": (1.5, correct),
    "clip": (1.5, clip),
    "caches": (1.0, caches),
    "busy": (1.0, busy),
    "threads": (1.0, threads),
    "step-1.3b": (2.0, lambda settings, end: shape(settings, end, WORKS["step-1.3b"])),
    "step-5b": (1.5, lambda settings, end: shape(settings, end, WORKS["step-5b"])),
    "step-14b": (3.0, lambda settings, end: shape(settings, end, WORKS["step-14b"])),
    "encode": (1.0, lambda settings, end: shape(settings, end, WORKS["encode"])),
    "decode": (1.5, lambda settings, end: shape(settings, end, WORKS["decode"])),
}
"""Name -> its share of the time against the others, and what measures it."""

NEEDS_MODEL = ("clip", "busy", "threads")
NEEDS_GPU = ("step-14b", "caches")


def fitting(settings: Settings, work: Work, contenders: int, seconds: float) -> Any:
    """The cut that was asked for, else the largest of `work` that this machine can hold for all contenders and run
    three times in `seconds`."""
    if settings.scale == "tiny":
        return work.cuts[-1]
    if settings.cut is not None:
        return work.cuts[min(settings.cut, len(work.cuts) - 1)]
    if settings.layers and work.stage != "vae":
        return min(settings.layers, work.cuts[0])
    if settings.device != "cpu":
        return work.cuts[0]
    machine = settings.machine
    product = machine.figure("fp32", "linear_float32_ms") or 10.0
    speed = machine.cores.usable * 2 * 512**3 / (product / 1e3) * SHARE_OF_PEAK
    memory = (machine.memory.usable or 8 * 2**30) * SHARE_OF_MEMORY
    for cut in work.cuts:
        # float32 once, the others in half the memory and at least twice as fast
        takes = work.flops(cut) / speed * (1 + 0.5 * (contenders - 1)) * 3
        holds = work.parameters(cut) * (4 + 2 * (contenders - 1))
        if takes <= seconds and holds <= memory:
            return cut
    return work.cuts[-1]


def _raced(settings: Settings, jobs: dict[str, Job], end: float, rehearse: bool = False) -> Section:
    with tempfile.TemporaryDirectory() as place, Race(jobs, end) as race:
        folder = Path(place)
        if rehearse:
            race.rounds(1)
        runs = race.rounds(settings.rounds, race.save(folder))
        told = race.ask({"report": True})
        profiles = race.ask({"profile": True}) if settings.profile else {}
        wrong = errors(folder, next(iter(jobs)))
        rows: dict[str, Any] = {}
        for name in jobs:
            if name not in runs:
                rows[name] = {"failed": race.failures[name]}
                continue
            rows[name] = {"seconds": summed_up(runs[name]), "rounds": len(runs[name]), **race.built[name]}
            rows[name] |= {"error": wrong.get(name), **told.get(name, {}), **profiles.get(name, {})}
    return {"rows": rows}


def _clip_title(work: dict[str, Any]) -> str:
    clip = work["clip"]
    return f"a clip of {clip['width']}x{clip['height']}, {clip['frames']} frames, {clip['steps']} steps"


def _amount(work: Work, cut: Any) -> str:
    if work.stage == "vae":
        width, height, frames = cut
        return f"{width}x{height}, {4 * frames - 3} frames"
    return f"{cut} layers"


def names(wanted: Sequence[str], settings: Settings) -> list[str]:
    """The sections to run: those wanted, else all that can run."""
    missing = [] if settings.model is not None else [*NEEDS_MODEL]
    missing += [] if settings.device != "cpu" else [*NEEDS_GPU]
    return list(wanted) or [name for name in SECTIONS if name not in missing]
