"""Benchmarks and comparisons in the worker's process: accel measures, the engine makes the clips."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from accel.errors import AccelError
from accel.measuring.clips import REFERENCE, Contender, Made, Make, contenders, race
from accel.measuring.course import Tell
from accel.measuring.run import Benchmark, Subject
from accel.measuring.timing import Stopped
from accel.readouts.results import AUTOMATIC, PROMPTS
from accel.types import Preferences
from app.engine import Engine, acceleration, loading
from app.errors import Cancelled, CannotRunError
from app.measuring import SEED, MeasureAsk
from app.models import family_for
from app.paths import Home
from app.request import AccelPreferences, GenerationRequest

LISTED = Path(__file__).resolve().parent.parent / "starter" / "prompts.json"

ShouldStop = Callable[[], bool]


def measure(ask: MeasureAsk, engine: Engine, home: Home, tell: Tell, should_stop: ShouldStop) -> dict[str, Any]:
    """The result, as `app.measuring.Measuring` describes it. Raises Cancelled when told to stop, KinetileError."""
    try:
        if ask.kind == "bench":
            return _bench(ask, engine, home, tell, should_stop)
        return _compare(ask, engine, home, tell, should_stop)
    except Stopped:
        raise Cancelled("Stopped; what was measured so far is not shown.") from None
    except AccelError as error:
        raise CannotRunError(f"It can't be measured: {error}.") from error


def _bench(ask: MeasureAsk, engine: Engine, home: Home, tell: Tell, should_stop: ShouldStop) -> dict[str, Any]:
    family, request = family_for(ask.request.model), ask.request
    folder, machine = acceleration.folder_of(family), acceleration.machine()
    engine.close()  # its memory belongs to what is measured
    loading.go_offline()
    subject = Subject(
        model=family.name,
        title=ask.title,
        size=(int(request.width or 0), int(request.height or 0), int(request.frames or 0)),
        pipeline=loading.skeleton(folder),
        steps=int(request.steps or 1),
        prompt=request.prompt,
        make=_maker(engine, request, should_stop),
        prompts=_prompts(),
    )
    where = acceleration.results_in(home.cache)
    results, made = Benchmark(machine, subject, ask.quick, ask.quality, where, tell=tell, should_stop=should_stop).run()
    return {"results": results.to_dict(), "measurement": made.to_dict()}


def _compare(ask: MeasureAsk, engine: Engine, home: Home, tell: Tell, should_stop: ShouldStop) -> dict[str, Any]:
    plans = _asked(ask) if ask.kind == "compare" else _verifying(ask.request, home)
    folder = home.cache / "compared"
    folder.mkdir(exist_ok=True)
    kept: dict[Preferences, Path] = {plan.preferences: folder / f"{at}.npy" for at, plan in enumerate(plans)}
    make = _maker(engine, ask.request, should_stop)

    def keeping(preferences: Preferences, prompt: str, steps: int) -> Made:
        made = make(preferences, prompt, steps)
        np.save(kept[preferences], made.frames)
        return made

    steps = int(ask.request.steps or 1)
    clips = race(
        plans,
        keeping,
        ask.request.prompt,
        steps,
        steps,
        warm=not ask.quick,
        tell=lambda done, of, text: tell(done / of, text),
        should_stop=should_stop,
    )
    frames = [str(kept[plan.preferences]) for plan, clip in zip(plans, clips, strict=True) if not clip.failed]
    return {"title": ask.title, "clips": [clip.to_dict() for clip in clips], "frames": frames}


def _asked(ask: MeasureAsk) -> list[Contender]:
    return [
        Contender(name, acceleration.preferences_of(ask.request.model_copy(update={"accel": plan})))
        for name, plan in zip(ask.names, ask.plans, strict=True)
    ]


def _verifying(request: GenerationRequest, home: Home) -> list[Contender]:
    """The reference plan, in float32 where that fits, and the automatic one."""
    family = family_for(request.model)
    plan = acceleration.decide(family, request, None, home.cache).plan
    described = acceleration.describe(family, request, home.cache)
    found = contenders(acceleration.machine(), described, plan)
    return [one for one in found if one.name in (REFERENCE, AUTOMATIC)]


def _maker(engine: Engine, request: GenerationRequest, should_stop: ShouldStop) -> Make:
    """Clips of `request` by the engine, each under its own preferences."""

    def make(preferences: Preferences, prompt: str, steps: int) -> Made:
        known = {name: value for name, value in asdict(preferences).items() if name in AccelPreferences.model_fields}
        wished = request.accel.model_copy(update=known)
        seed = SEED if request.seed is None else request.seed
        one = request.model_copy(update={"prompt": prompt, "steps": steps, "accel": wished, "seed": seed, "count": 1})
        try:
            clip = engine.generate(one, lambda progress: None, should_stop)
        except Cancelled:
            raise Stopped from None
        phases = {name: clip.timings.get(name, 0.0) for name in ("load", "text", "denoise", "decode")}
        dtype = next((one["dtype"]["engaged"] for one in clip.plan["stages"] if one["stage"] == "transformer"), "")
        return Made(clip.frames, phases, steps, acceleration.summary(clip.plan), dtype, clip.report)

    return make


def _prompts() -> tuple[str, ...]:
    """As many of the starter's list as are wanted, spread over all its kinds."""
    listed = [row["prompt"] for row in json.loads(LISTED.read_text(encoding="utf-8"))]
    return tuple(listed[:: max(1, len(listed) // PROMPTS)][:PROMPTS])
