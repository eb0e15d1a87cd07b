"""Batch: presets, batches, clips and share codes in; clips and one summary out.

Everything that can be refused is refused first: all sources are read and checked, then the encoder, the disk and the
accelerators, and only then a model loads. After that one clip that fails does not stop the others.

Exit codes: 0 all clips made; 1 some failed; 2 bad usage, preset or request; 3 this machine can't; 130 stopped on
request.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

from app import acceleration, outputs, video
from app.console import Reporter, duration, reporter_for
from app.engine import Engine
from app.errors import Cancelled, CannotRunError, KinetileError, UsageError
from app.interrupt import Interrupts
from app.models import family_for
from app.paths import Home, home
from app.presets import FIRST, NamedRequest, encode_code, read_source
from app.render import Job, Rendered, render, versions

MAX_PROBLEMS = 20
"""Most mistakes told at once."""

EXIT_OK, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, Cancelled.exit_code

State = Literal["waiting", "done", "failed", "cancelled"]


@dataclass(frozen=True)
class BatchSettings:
    """What the command line says about a batch. `assignments` are KEY=VALUE, applied to every request."""

    assignments: tuple[str, ...] = ()
    count: int | None = None
    out: Path | None = None
    strict: bool = False
    dry_run: bool = False
    as_json: bool = False
    home: Home = field(default_factory=home)


@dataclass
class Outcome:
    """One clip of the batch and what became of it."""

    job: Job
    origin: str
    state: State = "waiting"
    rendered: Rendered | None = None
    error: KinetileError | None = None
    accelerators: str = ""
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        request, made = self.job.request, self.rendered
        return {
            "name": self.job.name,
            "source": self.origin,
            "state": self.state,
            "file": None if made is None else str(made.path),
            "poster": None if made is None else str(made.poster),
            "seconds": None if made is None else round(made.seconds, 3),
            "timings": {} if made is None else {key: round(value, 4) for key, value in made.timings.items()},
            "request": request.model_dump(mode="json"),
            "adjustments": [item.model_dump(mode="json") for item in self.job.adjustments],
            "accelerators": self.accelerators,
            "report": {} if made is None else made.clip.report,
            "notes": [*self.notes, *(made.warnings if made else ())],
            "error": None if self.error is None else str(self.error),
        }


def run_batch(
    sources: Sequence[str],
    settings: BatchSettings,
    *,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    make_engine: Callable[[Home], Engine] = Engine,
) -> int:
    """Make every clip that `sources` ask for (nothing named: the first shipped preset) and return the exit code.

    Results go to `stdout`, errors to `stderr`; with `as_json` one JSON document goes to `stdout` and the rest to
    `stderr`.
    """
    out, err = stdout or sys.stdout, stderr or sys.stderr
    reporter = reporter_for(err if settings.as_json else out)
    # A library that prints must not spoil the document: whatever is printed goes where progress goes.
    with redirect_stdout(err if settings.as_json else out):
        outcomes, errors, code = _run(sources, settings, reporter, err, make_engine)
    if settings.as_json:
        document = {
            "kinetile": 1,
            "exit_code": code,
            "versions": dict(versions()),
            "clips": [outcome.to_dict() for outcome in outcomes],
            "errors": [str(error) for error in errors],
        }
        print(json.dumps(document, ensure_ascii=False, indent=2), file=out, flush=True)
    return code


def share(source: str, settings: BatchSettings, stdout: TextIO | None = None) -> int:
    """Print the share code of the one request in `source`. Raises UsageError."""
    found = read_source(source, settings.home)
    if len(found) != 1:
        raise UsageError(f"{source} holds {len(found)} requests, but a share code holds one: name a preset or a clip.")
    request = found[0].request.with_set(settings.assignments)
    print(encode_code(request), file=stdout or sys.stdout, flush=True)
    return EXIT_OK


def _run(
    sources: Sequence[str],
    settings: BatchSettings,
    reporter: Reporter,
    err: TextIO,
    make_engine: Callable[[Home], Engine],
) -> tuple[list[Outcome], list[KinetileError], int]:
    """The clips, what kept the batch from beginning, and the exit code."""
    outcomes, problems = prepare(sources or [FIRST], settings)
    if problems:
        # The same mistake on every line of a batch would hide the others.
        for problem in problems[:MAX_PROBLEMS]:
            complain(problem, err)
        if len(problems) > MAX_PROBLEMS:
            complain(UsageError(f"... and {len(problems) - MAX_PROBLEMS} more sources with mistakes."), err)
        return [], problems, problems[0].exit_code
    folder = settings.out or settings.home.outputs
    try:
        _check_disk_and_encoder(outcomes, folder)
        _announce(outcomes, folder, reporter)
        _choose_accelerators(outcomes, reporter)
    except KinetileError as error:
        complain(error, err)
        return outcomes, [error], error.exit_code
    if settings.dry_run:
        reporter.say("Dry run: nothing was made.")
        return outcomes, [], EXIT_OK
    interrupts = Interrupts(lambda: reporter.say("Stopping after this step; press Ctrl-C again to stop at once."))
    try:
        with interrupts, make_engine(settings.home) as engine:
            _make_all(engine, outcomes, folder, reporter, err, interrupts)
    except KeyboardInterrupt:
        interrupts.asked = True
        for outcome in outcomes:
            if outcome.state == "waiting":
                outcome.state = "cancelled"
                break
    finally:
        reporter.end()
    _summarise(outcomes, folder, reporter, interrupts.asked)
    return outcomes, [], _exit_code(outcomes, interrupts.asked)


def prepare(sources: Sequence[str], settings: BatchSettings) -> tuple[list[Outcome], list[KinetileError]]:
    """One outcome, still waiting, per clip asked for; and what is wrong with the sources, all of it."""
    outcomes: list[Outcome] = []
    problems: list[KinetileError] = []
    for source in sources:
        try:
            for named in read_source(source, settings.home):
                outcomes += _outcomes_of(named, settings)
        except KinetileError as error:
            problems.append(error)
    return outcomes, problems


def _outcomes_of(named: NamedRequest, settings: BatchSettings) -> list[Outcome]:
    assignments = list(settings.assignments)
    if settings.count is not None:
        assignments.append(f"count={settings.count}")
    asked = named.request.with_set(assignments)
    family = family_for(asked.model)
    # A clip's recorded accelerators are used again, unless the person asks for others now.
    forced = any(item.startswith("accel.") for item in assignments)
    recorded = None if forced or named.metadata is None else named.metadata.get("plan")
    found = []
    for one in asked.expand():
        try:
            normalised = family.normalise(one, settings.strict)
        except UsageError as error:
            raise UsageError(f"{named.origin}: {error}") from None
        job = Job(named.name, one, normalised.request, normalised.adjustments, recorded)
        found.append(Outcome(job, named.origin, notes=list(named.warnings)))
    if named.metadata is not None and found:
        found[0].notes += _other_versions(named.metadata)
    return found


def _other_versions(metadata: Any) -> list[str]:
    """What differs between the programs that made a clip and those here: the pixels may, too."""
    then, now = metadata.get("versions"), versions()
    if not isinstance(then, dict):
        return []
    other = [f"{name} {then[name]} (here {now[name]})" for name in now if name in then and then[name] != now[name]]
    return [f"It was made with {', '.join(other)}: the pixels may differ slightly."] if other else []


def _check_disk_and_encoder(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Raise now what would otherwise be found after minutes of work."""
    video.check_encoder()
    needed = 0
    for outcome in outcomes:
        request = outcome.job.request
        needed += video.space_needed(int(request.width or 0), int(request.height or 0), int(request.frames or 0))
    outputs.check_space(folder, needed)


def _announce(outcomes: Sequence[Outcome], folder: Path, reporter: Reporter) -> None:
    """What will be made, and above all what not as asked; said once per source where its clips differ by seed only."""
    reporter.say(f"Making {_clips(len(outcomes))} in {folder}")
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        lines = [f"adjusted: {item.reason}" for item in outcome.job.adjustments]
        lines += [f"note: {note}" for note in outcome.notes]
        if not outcome.job.request.prompt.strip():
            lines.append("note: The prompt is empty, so the clip is made unconditionally, without guidance.")
        groups.setdefault((outcome.origin, outcome.job.name, *lines), []).append(outcome)
    for (_, name, *lines), members in groups.items():
        request = members[0].job.request
        seeds = f"seed {request.seed}" + (f" to {members[-1].job.request.seed}" if len(members) > 1 else "")
        reporter.say(
            f"{name}: {request.width}x{request.height}, {request.frames} frames at {request.fps:g} fps, "
            f"{request.steps} steps, guidance {request.guidance:g}, {seeds}"
        )
        for line in lines:
            reporter.say(f"  {line}")


def _choose_accelerators(outcomes: Sequence[Outcome], reporter: Reporter) -> None:
    """The plan of every clip. Raises CannotRunError for a forced one that can't run; says what a recorded one can't
    have.
    """
    reporter.say("Looking at the machine and the model")
    known: dict[Any, acceleration.Decision] = {}
    said: set[str] = set()
    for outcome in outcomes:
        request, recorded = outcome.job.request, outcome.job.recorded_plan
        key = (request.model, request.width, request.height, request.frames, request.accel, id(recorded))
        decision = known.get(key)
        if decision is None:
            decision = known[key] = acceleration.decide(family_for(request.model), request, recorded)
        outcome.accelerators = acceleration.summary(decision.data)
        outcome.notes += decision.differences
        for line in (f"Accelerators: {outcome.accelerators}", *(f"  note: {note}" for note in decision.differences)):
            if line not in said:
                reporter.say(line)
                said.add(line)


def _clips(count: int) -> str:
    return "1 clip" if count == 1 else f"{count:,} clips"


def _make_all(
    engine: Engine,
    outcomes: Sequence[Outcome],
    folder: Path,
    reporter: Reporter,
    err: TextIO,
    interrupts: Interrupts,
) -> None:
    for number, outcome in enumerate(outcomes, start=1):
        if interrupts.asked:
            return
        label = f"{number}/{len(outcomes)} {outcome.job.stem}"
        reporter.begin(label)
        try:
            outcome.rendered = render(engine, outcome.job, folder, reporter.update, lambda: interrupts.asked)
        except Cancelled as error:
            outcome.state, outcome.error = "cancelled", error
        except KinetileError as error:
            outcome.state, outcome.error = "failed", error
        else:
            outcome.state = "done"
        finally:
            reporter.end()
        _tell(outcome, label, reporter, err)


def _tell(outcome: Outcome, label: str, reporter: Reporter, err: TextIO) -> None:
    """One line on how a clip ended."""
    made = outcome.rendered
    if made is None:
        if outcome.state == "failed" and outcome.error is not None:
            complain(outcome.error, err, label)
        return
    stages = ", ".join(f"{key} {seconds:.1f}" for key, seconds in made.timings.items() if key != "total")
    reporter.say(f"{label}: {made.path.name} in {duration(made.seconds)} ({stages})")
    outcome.accelerators = acceleration.summary(made.clip.plan, made.clip.report)
    for line in (*made.warnings, *filter(None, [made.clip.report.get("retried")])):
        reporter.say(f"  note: {line}")


def _summarise(outcomes: Sequence[Outcome], folder: Path, reporter: Reporter, stopped: bool) -> None:
    rows = []
    for outcome in outcomes:
        made = outcome.rendered
        fields = dict.fromkeys(item.field for item in outcome.job.adjustments)
        file = made.path.name if made else f"({outcome.job.stem}: {_ENDED[outcome.state]})"
        rows.append([file, f"{made.seconds:.1f}" if made else "-", ", ".join(fields) or "-", outcome.accelerators])
    reporter.say()
    reporter.table(("file", "seconds", "adjusted", "accelerators"), rows)
    done = sum(outcome.state == "done" for outcome in outcomes)
    failed = sum(outcome.state == "failed" for outcome in outcomes)
    reporter.say()
    text = f"{done} of {len(outcomes)} made" + (f", {failed} failed" if failed else "")
    if stopped:
        text = f"Stopped on request: {text}, " + ("what was made is kept" if done else "nothing was kept")
    reporter.say(f"{text}. Folder: {folder}")


_ENDED = {"waiting": "not begun", "failed": "failed", "cancelled": "stopped", "done": "done"}


def _exit_code(outcomes: Sequence[Outcome], stopped: bool) -> int:
    failures = [outcome.error for outcome in outcomes if outcome.state == "failed"]
    if stopped and any(outcome.state != "done" for outcome in outcomes):
        return EXIT_INTERRUPTED
    if not failures:
        return EXIT_OK
    nothing_ran = len(failures) == len(outcomes) and all(isinstance(error, CannotRunError) for error in failures)
    return CannotRunError.exit_code if nothing_ran else EXIT_FAILED


def complain(error: BaseException, stream: TextIO, label: str = "") -> None:
    """One sentence for a person; where it came from only with KINETILE_DEBUG=1."""
    print(f"{label}: {error}" if label else str(error), file=stream, flush=True)
    if os.environ.get("KINETILE_DEBUG") == "1":
        detail = getattr(error, "detail", "") or "".join(traceback.format_exception(error))
        print(detail, file=stream, flush=True)
