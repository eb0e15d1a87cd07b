"""`--bench` and `--verify`: have this machine measured, follow it, and tell what came out.

The measuring happens in the worker of whoever owns the queue: of the page, when one is open. Ctrl-C stops it within a
call or step; pressed twice, at once.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from accel.readouts import chart, words
from accel.readouts.results import Clip, Measurement, Results
from app.console import Reporter, reporter_for
from app.errors import Cancelled, CannotRunError, JobFailedError, UsageError
from app.interrupt import Interrupts
from app.measuring import MeasureAsk, Measuring, subject_of
from app.paths import Home
from app.pictures import adopt
from app.presets import FIRST, read_source
from app.queue.service import Service, open_service
from app.request import GenerationRequest

LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class BenchSettings:
    """What the command line says. model: another one than the preset's; preset: a source as `--headless` takes it.

    json: a file for the results, True for standard output. verify: compare the reference with the automatic plan.
    """

    home: Home
    model: str | None = None
    preset: str | None = None
    assignments: tuple[str, ...] = ()
    quick: bool = False
    quality: bool | None = None
    json: Path | bool = False
    plot: Path | None = None
    verify: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def run_bench(settings: BenchSettings, stdout: TextIO | None = None, stderr: TextIO | None = None) -> int:
    """Measure, tell, and return the exit code. Raises KinetileError."""
    out, err = stdout or sys.stdout, stderr or sys.stderr
    if settings.plot is not None and settings.plot.suffix.lower() not in (".svg", ".png"):
        raise UsageError(f"--plot {settings.plot}: name a file that ends in .svg or .png.")
    files = [file for file in (settings.json, settings.plot) if isinstance(file, Path)]
    for file in files:
        if not os.access(file.absolute().parent, os.W_OK) or file.is_dir():
            raise CannotRunError(f"{file} can't be written: name another file, in a folder that can be written.")
    ask = ask_of(settings)
    reporter = reporter_for(err)
    with open_service(settings.home, **{"all_batches": False, "previews": False, **settings.options}) as service:
        reporter.say(f"Measuring {ask.title}" + ("" if service.owner else ", in the process that owns the queue"))
        done = _followed(service, ask, reporter)
        assert done.result is not None
        stale = [] if settings.verify else service.readouts()["stale"]
    told = reporter_for(out)
    if settings.json is True:
        print(json.dumps(done.result, indent=1), file=out, flush=True)
    elif settings.verify:
        _tell_clips(done.result, told)
    else:
        _tell_bench(done.result, stale, told)
    _write(settings, done.result, reporter)
    return 0


def ask_of(settings: BenchSettings) -> MeasureAsk:
    """What is to be measured. Raises UsageError."""
    if settings.preset is None:
        request = read_source(FIRST)[0].request if settings.model is None else GenerationRequest(model=settings.model)
    else:
        found = read_source(settings.preset, settings.home)
        if len(found) != 1:
            raise UsageError(f"{settings.preset} holds {len(found)} requests: name a preset or a clip.")
        request = adopt(found[0].request, settings.home, found[0].folder, found[0].pictures)
    if settings.model is not None:
        request = request.model_copy(update={"model": settings.model})
    request = request.with_set(settings.assignments)
    kind: Any = "verify" if settings.verify else "bench"
    return MeasureAsk(kind, subject_of(request), settings.quick, settings.quality)


def _followed(service: Service, ask: MeasureAsk, reporter: Reporter) -> Measuring:
    """The measurement once it is done. Raises Cancelled after Ctrl-C, or what it failed of."""
    interrupts = Interrupts(lambda: reporter.say("Stopping; press Ctrl-C again to stop at once."))
    number = service.measure(ask)
    reporter.begin("measuring")
    try:
        with interrupts:
            while not (state := service.measuring()).is_over and state.number == number:
                if interrupts.asked:
                    service.stop_measuring()
                reporter.tell(state.fraction, state.words)
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        service.stop_measuring()
        service.stop(now=True)
        raise Cancelled("Stopped.") from None
    finally:
        reporter.end()
    if state.number != number:
        raise JobFailedError("Another measurement took this one's place: start it again.")
    if state.state == "stopped":
        raise Cancelled(state.text)
    if state.state == "failed":
        raise CannotRunError(state.error)
    return state


# -- telling --


def _tell_bench(result: dict[str, Any], stale: list[dict[str, str]], reporter: Reporter) -> None:
    results, made = Results.from_dict(result["results"]), Measurement.from_dict(result["measurement"])
    for title, rows in words.groups(made.rows).items():
        reporter.say(title)
        reporter.table(words.COLUMNS, [words.cells(row) for row in rows])
        reporter.say()
    if made.clips:
        reporter.say(f"Whole clips of one seed, each in {max(clip.steps for clip in made.clips)} steps")
        reporter.table(words.CLIP_COLUMNS, [words.clip_cells(clip) for clip in made.clips])
        reporter.say()
    for line in words.remarks(results, made):
        reporter.say(line)
    for one in stale:
        reporter.say(f"Older figures of {one['name']} are not used: {one['why']}.")


def _tell_clips(result: dict[str, Any], reporter: Reporter) -> None:
    clips = [Clip.from_dict(clip) for clip in result["clips"]]
    reporter.say(result["title"])
    reporter.table(words.CLIP_COLUMNS, [words.clip_cells(clip) for clip in clips])
    reporter.say(words.comparison(clips))


def _write(settings: BenchSettings, result: dict[str, Any], reporter: Reporter) -> None:
    """The files that were asked for, each whole or not at all. Raises CannotRunError."""
    if isinstance(settings.json, Path):
        kept = result if settings.verify else result["results"]
        text = json.dumps(kept, indent=1)
        _written(settings.json, lambda path: path.write_text(text, encoding="utf-8"), reporter)
    if settings.plot is not None:
        made = Measurement.from_dict(result["measurement"])
        _written(settings.plot, lambda path: chart.save(made.rows, made.title, path), reporter)


def _written(file: Path, write: Callable[[Path], object], reporter: Reporter) -> None:
    partial = file.with_name(f".{file.stem}-{os.getpid()}{file.suffix}")  # the suffix says which format
    try:
        write(partial)
        os.replace(partial, file)
    except OSError as error:
        raise CannotRunError(f"{file} can't be written ({error.strerror or error}): name another file.") from error
    finally:
        partial.unlink(missing_ok=True)
    reporter.say(f"Written: {file}")
