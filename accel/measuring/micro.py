"""Every usable backend at every call of a model, timed in turns, held against the exact result: one row each.

All backends of a call, in the plan's dtype and in float32, run in turns with plain torch, so that ratios hold on a busy
machine too. A call that would take too long is measured on a part of it (`calls.within`), which the row says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from accel.backends import REGISTRY
from accel.contract import Backend
from accel.figures import figure
from accel.measuring import calls as recording
from accel.measuring.blocks import Block
from accel.measuring.calls import Recorded
from accel.measuring.executed import executed, memory
from accel.measuring.peak import synchronize
from accel.measuring.timing import LEAST, Samples, ShouldStop, Stopped, gain, interleave, spread
from accel.measuring.trials import Candidate, NotTakenError, Trial
from accel.readouts.results import Call, Results, Row, Spread, Verdict, judged, limit
from accel.types import Machine, ModelTraits, Plan, StagePlan, StageTraits

Tell = Callable[[int, int, str], Any]
"""Told of progress: done, of how many, and what comes next."""


@dataclass(frozen=True)
class Pace:
    """How much time is spent. row: seconds for the samples of one backend at one call; call: most seconds that one call
    may take, by the peak; least: calls with a smaller part of their stage's operations are left out, a VAE's never;
    profiled: whether the profiler tells which kernels ran."""

    row: float
    call: float
    least: float = 0.0
    profiled: bool = True


FULL = Pace(row=1.0, call=2.0)
QUICK = Pace(row=0.15, call=0.2, least=0.02)

ASSUMED = 0.05
"""TFLOP/s of a machine whose peak was not measured."""

REACHED = 0.3
"""Part of the peak that a call is taken to reach, to reckon how long it will take."""


FIRST_RUNS, BESIDE = 5, 0.1
"""What is reckoned for a candidate beside its samples: runs that tell error, memory and kernels; seconds to pack it."""


@dataclass
class _Entry:
    """A candidate that runs, with what its first run told."""

    candidate: Candidate
    trial: Trial
    error: float
    memory: int | None
    executed: str

    @property
    def wrong(self) -> bool:
        return not self.error <= limit(self.candidate.backend.exact, self.candidate.dtype)


def rows(
    machine: Machine,
    traits: ModelTraits,
    plan: Plan,
    recorded: Recorded,
    results: Results,
    pace: Pace,
    *,
    registry: Iterable[Backend] = REGISTRY,
    tell: Tell = lambda done, of, text: None,
    should_stop: ShouldStop = lambda: False,
) -> Iterator[Row]:
    """One row per backend, dtype and call, each call's as soon as they are there. results: for the peaks in it.

    Raises Stopped. What a backend raises becomes its row's note, never an end.
    """
    chosen = tuple(registry)
    left = list(_worth(recorded.calls, pace.least))
    threads = torch.get_num_threads()
    try:
        for number, call in enumerate(left):
            tell(number, len(left), f"{call.stage.replace('_', ' ')}: {call.title}")
            bench = _bench(machine, traits, plan, results, pace, call, should_stop)
            if bench is None:
                continue
            torch.set_num_threads(int(bench.plan.threads.engaged))
            yield from bench.of(call, chosen, recorded.blocks.get(call.title))
    finally:
        torch.set_num_threads(threads)


def expected(
    machine: Machine,
    traits: ModelTraits,
    plan: Plan,
    recorded: Recorded,
    results: Results,
    pace: Pace,
    registry: Iterable[Backend] = REGISTRY,
) -> list[float]:
    """Seconds that `rows` will take for each call, by its operations and the peaks in `results`."""
    chosen, found = tuple(registry), []
    for call in _worth(recorded.calls, pace.least):
        bench = _bench(machine, traits, plan, results, pace, call, bool)
        found.append(0.0 if bench is None else bench.seconds(call, chosen))
    return found


def _bench(
    machine: Machine,
    traits: ModelTraits,
    plan: Plan,
    results: Results,
    pace: Pace,
    call: Call,
    should_stop: ShouldStop,
) -> _Bench | None:
    """What measures a call; None where its stage is not planned or not described."""
    stage, described = plan.stage(call.stage), traits.stage(call.stage)
    if stage is None or described is None:
        return None
    return _Bench(machine, described, stage, results, pace, should_stop)


def _worth(found: Iterable[Call], least: float) -> Iterator[Call]:
    together = list(found)
    for call in together:
        whole = sum(one.flops * one.count for one in together if one.stage == call.stage)
        # parts of a VAE with little to multiply may take most of its time
        if call.stage == "vae" or call.flops * call.count >= least * whole:
            yield call


@dataclass
class _Bench:
    machine: Machine
    traits: StageTraits
    plan: StagePlan
    results: Results
    pace: Pace
    should_stop: ShouldStop

    @property
    def device(self) -> str:
        return self.plan.device.engaged

    def of(self, call: Call, registry: tuple[Backend, ...], block: Block | None) -> Iterator[Row]:
        """The rows of one call."""
        call = recording.within(call, self._flops(self.dtypes))
        entries: dict[str, _Entry] = {}
        failed: list[Row] = []
        with torch.inference_mode():
            try:
                for dtype in self.dtypes:
                    trial = Trial(call, dtype, self.device, block)
                    for backend in self.usable(call, dtype, registry):
                        found = self._enter(trial, backend)
                        if isinstance(found, Row):
                            failed.append(found)
                        else:
                            entries[f"{dtype} {backend.name}"] = found
                runs = {name: entry.candidate.run for name, entry in entries.items()}
                samples = interleave(
                    runs,
                    self.pace.row * len(runs),
                    wait=lambda: synchronize(self.device),
                    should_stop=self.should_stop,
                )
            finally:
                for entry in entries.values():
                    entry.candidate.close()
        yield from self._rows(call, entries, samples)
        yield from failed

    def seconds(self, call: Call, registry: tuple[Backend, ...]) -> float:
        """About how long `of` will take."""
        many = sum(len(self.usable(call, dtype, registry)) for dtype in self.dtypes)
        call = recording.within(call, self._flops(self.dtypes))
        single = call.flops / self._flops(self.dtypes) * self.pace.call
        return many * (BESIDE + FIRST_RUNS * single + max(self.pace.row, LEAST * single))

    @property
    def dtypes(self) -> list[str]:
        """The plan's, and the reference's."""
        return list(dict.fromkeys([self.plan.dtype.engaged, "float32"]))

    def usable(self, call: Call, dtype: str, registry: tuple[Backend, ...]) -> list[Backend]:
        """The backends that can run here in this dtype, the reference first."""
        place = self.device.partition(":")[0]
        found = [
            item
            for item in registry
            if item.kind == call.kind
            and place in item.devices
            and dtype in item.dtypes
            and not item.why_not(self.machine, self.traits)
        ]
        return sorted(found, key=lambda item: not item.reference)

    def _flops(self, dtypes: list[str]) -> float:
        """Operations that one call may have, by the slowest of the dtypes."""
        peaks = [self.results.peak(self.device, dtype) or ASSUMED for dtype in dtypes]
        return min(peaks) * 1e12 * REACHED * self.pace.call

    def _enter(self, trial: Trial, backend: Backend) -> _Entry | Row:
        """The first run: it warms up, and tells error, memory and kernels."""
        if self.should_stop():
            raise Stopped
        base = Row(trial.call, backend.name, backend.title, trial.dtype, self.device, backend.exact, "failed")
        try:
            candidate = trial.candidate(backend)
        except NotTakenError as reason:
            return replace(base, verdict="not served", note=str(reason))
        except Exception as error:
            return replace(base, note=_told(error))
        try:
            result, taken = memory(candidate.run, self.device)
            wrong = trial.error(result)
            del result
            ran = executed(candidate.run, self.device) if self.pace.profiled else ""
        except Exception as error:
            candidate.close()
            return replace(base, note=_told(error))
        return _Entry(candidate, trial, wrong, taken, ran)

    def _rows(self, call: Call, entries: dict[str, _Entry], samples: dict[str, Samples]) -> Iterator[Row]:
        plain = {
            entry.candidate.dtype: samples[name] for name, entry in entries.items() if entry.candidate.backend.reference
        }
        for name, entry in entries.items():
            backend, tally = entry.candidate.backend, entry.candidate.tally
            own, time = samples[name], spread(samples[name])
            over = {dtype: gain(own, theirs) for dtype, theirs in plain.items()}
            speed = call.flops / time.median / 1e12
            peak = self.results.peak(self.device, computes(backend.name, entry.candidate.dtype))
            served, calls = (1, 1) if tally is None else (tally.served_calls, tally.calls)
            yield Row(
                call=call,
                backend=backend.name,
                title=backend.title,
                dtype=entry.candidate.dtype,
                device=self.device,
                exact=backend.exact,
                verdict=_verdict(entry, over.get(entry.candidate.dtype)),
                time=time,
                gain=over.get(entry.candidate.dtype),
                speedup=over[self.plan.dtype.engaged].median if self.plan.dtype.engaged in over else None,
                over_fp32=over["float32"].median if "float32" in over else None,
                teraflops=speed,
                share_of_peak=None if peak is None else speed / peak,
                error=entry.error,
                memory=entry.memory,
                executed=entry.executed,
                served=served,
                calls=calls,
                fallback="" if tally is None else "; ".join(tally.reasons),
                note=_wrong(entry) if entry.wrong else "",
            )


def computes(backend: str, dtype: str) -> str:
    """The numbers that the backend of that name multiplies, as `Peak.dtype` names them."""
    if "int8" in backend:
        return "int8"
    return "float8" if "fp8" in backend else dtype


def _verdict(entry: _Entry, over: Spread | None) -> Verdict:
    tally = entry.candidate.tally
    if entry.candidate.backend.reference:
        return "reference"
    if entry.wrong:
        return "wrong"
    if tally is not None and tally.served_calls < tally.calls:
        return "not served"
    return judged(over) if over is not None else "unclear"


def _wrong(entry: _Entry) -> str:
    backend = entry.candidate.backend
    most = limit(backend.exact, entry.candidate.dtype)
    return f"wrong: relative error {figure(entry.error, 2)} in {entry.trial.call.title}, at most {most:g} is right"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def dtypes_for_peaks(plan: Plan, device: str) -> list[str]:
    """The dtypes whose peak a plan's rows are held against."""
    wanted = {"float32", *(stage.dtype.engaged for stage in plan.stages)}
    return [*sorted(wanted), "int8", *(["float8"] if device.startswith("cuda") else [])]
