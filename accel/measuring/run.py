"""A whole benchmark: peaks, every backend at a model's calls, clips, and what is kept of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import accel
from accel.backends import REGISTRY
from accel.contract import Backend
from accel.figures import duration
from accel.measuring import clips as whole_clips
from accel.measuring import micro, peak
from accel.measuring.calls import Recorded, Size, record
from accel.measuring.clips import Contender, Make
from accel.measuring.course import Course, Tell
from accel.measuring.timing import ShouldStop
from accel.readouts import ranking, store
from accel.readouts.results import PROMPTS, Call, Measurement, Peak, Results, Row
from accel.types import Machine, ModelTraits, Plan, StageName

CLIP_SECONDS = {True: 25.0, False: 600.0}
"""Most seconds that the clips of a quick and of a full benchmark may take, reckoned beforehand."""

QUICK_STEPS = 3
QUALITY_SECONDS = 900.0
"""Clips of many prompts are compared unasked when that takes no longer than this."""

PEAK_SECONDS = {True: 0.5, False: 3.0}


@dataclass(frozen=True)
class Subject:
    """What is measured. model: the name under which its quality counts. pipeline: with or without weights.

    steps and prompt: of the person's preset. make: makes clips of `size`, None where there are no weights. prompts: for
    clips with approximate backends.
    """

    model: str
    title: str
    size: Size
    pipeline: Any
    steps: int = 1
    prompt: str = ""
    make: Make | None = None
    prompts: tuple[str, ...] = ()


@dataclass
class Benchmark:
    """One benchmark of one subject. quality: compare clips of many prompts (True), don't (False), or do when there is
    time (None). where: the folder of results, accel's own if None."""

    machine: Machine
    subject: Subject
    quick: bool = False
    quality: bool | None = None
    where: Path | None = None
    registry: tuple[Backend, ...] = REGISTRY
    tell: Tell = lambda done, text, left=None: None
    should_stop: ShouldStop = lambda: False

    def run(self) -> tuple[Results, Measurement]:
        """What is known now of this machine, and the new part of it. What was measured is kept as soon as it counts.

        Raises AccelError for a model whose calls can't be recorded, Stopped when told to stop.
        """
        started = time.monotonic()
        width, height, frames = self.subject.size
        traits = accel.traits_of(self.subject.pipeline, width=width, height=height, frames=frames)
        plan = accel.make_plan(self.machine, traits, registry=self.registry)
        others = Others()
        shelf = store.load(self.machine, self.where)
        results = shelf.current or Results(store.place(self.machine))
        plans = self.contenders(traits, plan)
        course = Course(self.tell)
        self.tell(0.0, "the calls that the model makes")
        recorded = record(self.subject.pipeline, self.subject.size)
        self.tell(0.0, "the machine's peak")
        results, notes = self.peaks(results, plan)
        pace = micro.QUICK if self.quick else micro.FULL
        course.expect("calls", micro.expected(self.machine, traits, plan, recorded, results, pace, self.registry))
        one, whole = (reckoned(recorded.calls, results, plan, steps) for steps in (self.steps, self.subject.steps))
        course.expect("clips", self.clips_expected(one, plans))
        course.expect("prompts", [whole] * _count(self.compared(plans, lambda some: whole * _count(some))))
        rows = self.rows(traits, plan, recorded, results, course)
        results, rows = raised(results, rows)
        made = Measurement(
            model=self.subject.model,
            title=self.subject.title,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            quick=self.quick,
            classes=ranking.classes(traits),
            dtypes={stage.stage: stage.dtype.engaged for stage in plan.stages},
            rows=rows,
            notes=(*shelf.problems, *recorded.notes, *notes),
            busy=others.busy(),
        )
        results, made = self.keep(results, made, started)
        if self.subject.make is not None:
            results, made = self.clips(results, made, plans, course)
            results, made = self.keep(results, made, started)
        course.finish()
        return results, made

    def keep(self, results: Results, made: Measurement, started: float) -> tuple[Results, Measurement]:
        made = replace(made, took=time.monotonic() - started)
        results = results.with_measurement(made)
        problem = store.save(results, self.where)
        return results, replace(made, notes=(*made.notes, problem)) if problem else made

    # -- parts --

    @property
    def steps(self) -> int:
        """Of the clips that are raced."""
        return min(QUICK_STEPS, self.subject.steps) if self.quick else self.subject.steps

    def contenders(self, traits: ModelTraits, plan: Plan) -> tuple[Contender, ...]:
        """The plans whose clips are compared; none without weights."""
        if self.subject.make is None:
            return ()
        plans = whole_clips.contenders(self.machine, traits, plan, self.registry)
        # so few steps have nothing in common that a cache would use
        return tuple(one for one in plans if not one.caches) if self.quick else plans

    def clips_expected(self, one: float, plans: tuple[Contender, ...]) -> list[float]:
        """Seconds of each clip that will be raced, where one takes so many; none when all of them take too long."""
        clips = [one] * len(plans) * (1 if self.quick else 2)
        return clips if sum(clips) <= CLIP_SECONDS[self.quick] else []

    def peaks(self, results: Results, plan: Plan) -> tuple[Results, tuple[str, ...]]:
        """With the peaks of the plan's device; a quick benchmark takes those that are known already."""
        device = plan.stages[0].device.engaged if plan.stages else "cpu"
        wanted = micro.dtypes_for_peaks(plan, device)
        if self.quick:
            wanted = [dtype for dtype in wanted if results.peak(device, dtype) is None]
        found, notes = peak.measure(device, wanted, PEAK_SECONDS[self.quick], self.should_stop)
        return results.with_peaks(found), notes

    def rows(
        self, traits: ModelTraits, plan: Plan, recorded: Recorded, results: Results, course: Course
    ) -> tuple[Row, ...]:
        return tuple(
            micro.rows(
                self.machine,
                traits,
                plan,
                recorded,
                results,
                micro.QUICK if self.quick else micro.FULL,
                registry=self.registry,
                tell=lambda done, of, text: course.begin("calls", done, text),
                should_stop=self.should_stop,
            )
        )

    def clips(
        self, results: Results, made: Measurement, plans: tuple[Contender, ...], course: Course
    ) -> tuple[Results, Measurement]:
        """With whole clips, and their likeness over many prompts where there is time for that."""
        make = self.subject.make
        assert make is not None
        one = clip_seconds(made.rows, self.steps)
        course.expect("clips", expected := self.clips_expected(one, plans))
        if not expected:
            whole = duration(one * len(plans) * (1 if self.quick else 2))
            most = duration(CLIP_SECONDS[self.quick])
            told = f"no clips were compared: that takes about {whole} here, and {most} are left for it"
            return results, replace(made, notes=(*made.notes, told))
        raced = whole_clips.race(
            plans,
            make,
            self.subject.prompt,
            self.steps,
            self.subject.steps,
            rounds=1 if self.quick else 2,
            warm=not self.quick,
            tell=lambda done, of, text: course.begin("clips", done, text),
            should_stop=self.should_stop,
        )
        made = replace(made, clips=raced)
        return self.qualities(results, made, plans, make, course)

    def qualities(
        self, results: Results, made: Measurement, plans: tuple[Contender, ...], make: Make, course: Course
    ) -> tuple[Results, Measurement]:
        def seconds(some: tuple[Contender, ...]) -> float:
            return whole_clips.seconds_for(made.clips, some, PROMPTS)

        wanted = self.asked_to_compare(plans)
        chosen = self.compared(plans, seconds)
        if wanted and not chosen:
            told = (
                f"clips of {PROMPTS} prompts were not compared: that would take about {duration(seconds(wanted[-1]))}"
            )
            return results, replace(made, notes=(*made.notes, told))
        if not chosen:
            course.expect("prompts", ())
            return results, made
        width, height, frames = self.subject.size
        course.expect("prompts", [seconds(chosen) / _count(chosen)] * _count(chosen))
        found, notes = whole_clips.qualities(
            self.subject.model,
            chosen,
            make,
            self.subject.prompts[:PROMPTS],
            self.subject.steps,
            f"{width}x{height}, {frames} frames, {self.subject.steps} steps",
            tell=lambda done, of, text: course.begin("prompts", done, text),
            should_stop=self.should_stop,
        )
        return results.with_qualities(found), replace(made, notes=(*made.notes, *notes))

    def asked_to_compare(self, plans: tuple[Contender, ...]) -> list[tuple[Contender, ...]]:
        """The plans whose clips of many prompts are to be compared, and fewer of them, should time be short: `auto` may
        take backends, and takes no cache."""
        if self.quality is False or (self.quality is None and self.quick):
            return []
        fewer = tuple(one for one in plans if not one.caches)
        return [some for some in (plans, fewer) if any(one.approximate for one in some)]

    def compared(
        self, plans: tuple[Contender, ...], seconds: Callable[[tuple[Contender, ...]], float]
    ) -> tuple[Contender, ...]:
        """Those for which there is time, none where all take too long."""
        asked = self.asked_to_compare(plans)
        return next((some for some in asked if self.quality or seconds(some) <= QUALITY_SECONDS), ())


def _count(plans: tuple[Contender, ...]) -> int:
    """Clips of many prompts: the reference's, and those of each approximate plan."""
    return PROMPTS * (1 + sum(one.approximate is not None for one in plans)) if plans else 0


def raised(results: Results, rows: Iterable[Row]) -> tuple[Results, tuple[Row, ...]]:
    """A call faster than every square product is this machine's peak, and the other shares follow."""
    kept = tuple(rows)
    for row in kept:
        if row.teraflops is None or row.share_of_peak is None or row.share_of_peak <= 1 or row.verdict == "wrong":
            continue
        dtype = micro.computes(row.backend, row.dtype)
        how = f"{row.call.title} by {row.backend}"
        results = results.with_peaks((Peak(row.device, dtype, row.teraflops, how),))
    return results, tuple(_share(results, row) for row in kept)


def _share(results: Results, row: Row) -> Row:
    top = results.peak(row.device, micro.computes(row.backend, row.dtype))
    return replace(row, share_of_peak=row.teraflops / top) if top and row.teraflops is not None else row


def reckoned(calls: Iterable[Call], results: Results, plan: Plan, steps: int) -> float:
    """The same before anything was timed, by operations and the machine's peak."""
    device = plan.stages[0].device.engaged if plan.stages else "cpu"
    speed = (results.peak(device, "float32") or micro.ASSUMED) * 1e12 * micro.REACHED
    return sum(call.flops * call.weight * passes(steps)[call.stage] for call in calls) / speed


def passes(steps: int) -> dict[StageName, float]:
    """How often each stage runs in a clip of so many guided steps."""
    return {"text_encoder": 1.0, "transformer": 2.0 * steps, "vae": 1.0}


def clip_seconds(rows: Iterable[Row], steps: int) -> float:
    """What a clip of so many guided steps takes with plain torch in float32, by its calls alone."""
    plain = (row for row in rows if row.verdict == "reference" and row.dtype == "float32" and row.time is not None)
    often = passes(steps)
    return sum(row.time.median * row.call.weight * often[row.call.stage] for row in plain if row.time is not None)


class Others:
    """How much other programs do since this was made."""

    def __init__(self) -> None:
        self._before = self._now()

    def busy(self) -> float | None:
        """The part of all cores that they used meanwhile; None where that can't be told."""
        before, now = self._before, self._now()
        if before is None or now is None or now[1] <= before[1]:
            return None
        used, whole, own = (later - earlier for later, earlier in zip(now, before, strict=True))
        return min(1.0, max(0.0, (used - own) / whole))

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds of all cores together: in use, in all, and used by this process and its children."""
        with contextlib.suppress(ImportError):
            import psutil

            times = psutil.cpu_times()
            # guests are counted among users already
            whole = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            resting = times.idle + getattr(times, "iowait", 0.0)
            own = psutil.Process().cpu_times()
            return whole - resting, whole, sum(own[:4]) if len(own) >= 4 else own.user + own.system
        return None
