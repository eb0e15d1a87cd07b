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
from accel.measuring.timing import ShouldStop
from accel.readouts import ranking, store
from accel.readouts.results import PROMPTS, Measurement, Peak, Results, Row
from accel.types import Machine, ModelTraits, Plan

CLIP_SECONDS = {True: 25.0, False: 600.0}
"""Most seconds that the clips of a quick and of a full benchmark may take, reckoned beforehand."""

QUICK_STEPS = 3
QUALITY_SECONDS = 900.0
"""Clips of many prompts are compared unasked when that takes no longer than this."""

PEAK_SECONDS = {True: 0.5, False: 3.0}

Tell = Callable[[float, str], Any]
"""Told how much is done (0 to 1) and what comes next."""


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
    tell: Tell = lambda done, text: None
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
        self.tell(0.0, "the calls that the model makes")
        recorded = record(self.subject.pipeline, self.subject.size)
        results, notes = self.peaks(results, plan)
        rows = self.rows(traits, plan, recorded, results)
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
            results, made = self.clips(results, made, traits, plan)
            results, made = self.keep(results, made, started)
        self.tell(1.0, "done")
        return results, made

    def keep(self, results: Results, made: Measurement, started: float) -> tuple[Results, Measurement]:
        made = replace(made, took=time.monotonic() - started)
        results = results.with_measurement(made)
        problem = store.save(results, self.where)
        return results, replace(made, notes=(*made.notes, problem)) if problem else made

    # -- parts --

    def peaks(self, results: Results, plan: Plan) -> tuple[Results, tuple[str, ...]]:
        """With the peaks of the plan's device; a quick benchmark takes those that are known already."""
        device = plan.stages[0].device.engaged if plan.stages else "cpu"
        wanted = micro.dtypes_for_peaks(plan, device)
        if self.quick:
            wanted = [dtype for dtype in wanted if results.peak(device, dtype) is None]
        self.tell(0.02, "the machine's peak")
        found, notes = peak.measure(device, wanted, PEAK_SECONDS[self.quick], self.should_stop)
        return results.with_peaks(found), notes

    def rows(self, traits: ModelTraits, plan: Plan, recorded: Recorded, results: Results) -> tuple[Row, ...]:
        from_, to = 0.1, 1.0 if self.subject.make is None else 0.6

        def tell(done: int, of: int, text: str) -> None:
            self.tell(from_ + (to - from_) * done / of, text)

        return tuple(
            micro.rows(
                self.machine,
                traits,
                plan,
                recorded,
                results,
                micro.QUICK if self.quick else micro.FULL,
                registry=self.registry,
                tell=tell,
                should_stop=self.should_stop,
            )
        )

    def clips(
        self, results: Results, made: Measurement, traits: ModelTraits, plan: Plan
    ) -> tuple[Results, Measurement]:
        """With whole clips, and their likeness over many prompts where there is time for that."""
        make = self.subject.make
        assert make is not None
        plans = whole_clips.contenders(self.machine, traits, plan, self.registry)
        if self.quick:  # so few steps have nothing in common that a cache would use
            plans = tuple(one for one in plans if not one.caches)
        steps = min(QUICK_STEPS, self.subject.steps) if self.quick else self.subject.steps
        expected = clip_seconds(made.rows, steps) * len(plans) * (1 if self.quick else 2)
        most = CLIP_SECONDS[self.quick]
        if expected > most:
            told = f"no clips were made: they would take about {duration(expected)}, and have {duration(most)} at most"
            return results, replace(made, notes=(*made.notes, told))
        to = 1.0 if self.quality is False or self.quick else 0.75

        def tell(done: int, of: int, text: str) -> None:
            self.tell(0.6 + (to - 0.6) * done / of, text)

        raced = whole_clips.race(
            plans,
            make,
            self.subject.prompt,
            steps,
            self.subject.steps,
            rounds=1 if self.quick else 2,
            warm=not self.quick,
            tell=tell,
            should_stop=self.should_stop,
        )
        made = replace(made, clips=raced)
        return self.qualities(results, made, plans, make)

    def qualities(
        self, results: Results, made: Measurement, plans: tuple[Contender, ...], make: Make
    ) -> tuple[Results, Measurement]:
        if not any(one.approximate for one in plans) or (self.quality is None and self.quick) or self.quality is False:
            return results, made
        seconds = whole_clips.seconds_for(made.clips, plans, PROMPTS)
        if self.quality is None and seconds > QUALITY_SECONDS:  # `auto` may take backends, and takes no cache
            fewer = tuple(one for one in plans if not one.caches)
            if any(one.approximate for one in fewer):
                plans, seconds = fewer, whole_clips.seconds_for(made.clips, fewer, PROMPTS)
        if self.quality is None and seconds > QUALITY_SECONDS:
            told = f"clips of {PROMPTS} prompts were not compared: that would take about {duration(seconds)}"
            return results, replace(made, notes=(*made.notes, told))
        width, height, frames = self.subject.size

        def tell(done: int, of: int, text: str) -> None:
            self.tell(0.75 + 0.25 * done / of, text)

        found, notes = whole_clips.qualities(
            self.subject.model,
            plans,
            make,
            self.subject.prompts[:PROMPTS],
            self.subject.steps,
            f"{width}x{height}, {frames} frames, {self.subject.steps} steps",
            tell=tell,
            should_stop=self.should_stop,
        )
        return results.with_qualities(found), replace(made, notes=(*made.notes, *notes))


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


def clip_seconds(rows: Iterable[Row], steps: int) -> float:
    """What a clip of so many guided steps takes with plain torch in float32, by its calls alone."""
    passes = {"text_encoder": 1.0, "transformer": 2.0 * steps, "vae": 1.0}
    plain = (row for row in rows if row.verdict == "reference" and row.dtype == "float32" and row.time is not None)
    return sum(row.time.median * row.call.weight * passes[row.call.stage] for row in plain if row.time is not None)


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
