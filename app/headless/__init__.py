"""Batch: presets, batches, clips and share codes in; clips and one summary out.

Everything that can be refused is refused first: all sources are read and checked, then the encoder, the disk and the
accelerators. Then the clips become jobs of the queue (of the process that owns it, if another one does), and this
process follows them; one that fails does not stop the others.

Exit codes: 0 all clips made; 1 some failed; 2 bad usage, preset or request; 3 this machine can't; 130 stopped on
request.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, TextIO

from app import catalogue
from app.answers import PlanAnswer
from app.console import Reporter, complain, duration, reporter_for
from app.engine import acceleration, several
from app.errors import Cancelled, CannotRunError, KinetileError, ModelMissingError, UsageError
from app.headless.batch import (
    BatchSettings,
    Outcome,
    asked_in,
    check_disk_and_encoder,
    lacking,
    plan_of,
    prepare,
    recorded_plan,
    resumed,
)
from app.headless.following import Follower
from app.headless.words import ENDED, clips_text, estimate_line, why_unplayable
from app.interrupt import Interrupts
from app.models.base import notes_of
from app.presets import FIRST, encode_code, read_source
from app.queue.service import Service, open_service
from app.remote.cluster import Address, Cluster, connect
from app.versions import versions

MAX_PROBLEMS = 10
"""Most mistakes told at once."""

EXIT_OK, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, Cancelled.exit_code


def run_batch(
    sources: Sequence[str],
    settings: BatchSettings,
    *,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    **options: Any,
) -> int:
    """Make every clip that `sources` ask for (nothing named: the first shipped preset) and return the exit code.

    Results go to `stdout`, errors to `stderr`; with `as_json` one JSON document goes to `stdout` and the rest to
    `stderr`. `options` are those of `open_service`.
    """
    out, err = stdout or sys.stdout, stderr or sys.stderr
    reporter = reporter_for(err if settings.as_json else out)
    # A library that prints must not spoil the document: whatever is printed goes where progress goes.
    with redirect_stdout(err if settings.as_json else out):
        outcomes, errors, code = _Batch(settings, reporter, err, options).run(sources)
    if settings.as_json:
        document = {
            "kinetile": 1,
            "exit_code": code,
            "versions": dict(versions()),
            "clips": [outcome.to_dict() for outcome in outcomes],
            "errors": [str(error) for error in errors],
        }
        unicode = "utf" in (out.encoding or "utf-8").lower()  # elsewhere an escape is what every character survives as
        print(json.dumps(document, ensure_ascii=not unicode, indent=2), file=out, flush=True)
    return code


def share(source: str, settings: BatchSettings, stdout: TextIO | None = None) -> int:
    """Print the share code of the one request in `source`. Raises UsageError."""
    found = read_source(source, settings.home)
    if len(found) != 1:
        raise UsageError(f"{source} holds {len(found)} requests, but a share code holds one: name a preset or a clip.")
    request = found[0].request.with_set(settings.assignments)
    print(encode_code(request), file=stdout or sys.stdout, flush=True)
    return EXIT_OK


class _Batch:
    """One run of a batch."""

    def __init__(self, settings: BatchSettings, reporter: Reporter, err: TextIO, options: dict[str, Any]) -> None:
        self._settings, self._reporter, self._err = settings, reporter, err
        self._far = {"module": options.pop("far_module")} if "far_module" in options else {}
        self._options = {"all_batches": False, "previews": False, **options}
        self._outcomes: list[Outcome] = []
        self._cluster: Cluster | None = None

    def run(self, sources: Sequence[str]) -> tuple[list[Outcome], list[KinetileError], int]:
        """The clips, what kept the batch from beginning, and the exit code."""
        settings = self._settings
        queued = settings.resume and not sources
        try:
            self._fetch_missing(sources or [FIRST])
        except KinetileError as error:
            return [], [error], self._refuse([error])
        self._outcomes, problems = ([], []) if queued else prepare(sources or [FIRST], settings)
        problems = problems or self._not_over_ray()
        if problems:
            return [], problems, self._refuse(problems)
        try:
            check_disk_and_encoder(self._outcomes, settings.folder)
            service = self._open_service()
        except KinetileError as error:
            return self._outcomes, [error], self._refuse([error])
        try:
            return self._run_with(service)
        finally:
            if self._cluster is not None:
                self._cluster.close()

    def _not_over_ray(self) -> list[KinetileError]:
        """Why clips can't be made over Ray, which gives each of its engines one GPU."""
        if not self._settings.ray:
            return []
        several = [outcome for outcome in self._outcomes if outcome.spec.request.accel.gpus > 1]
        found = dict.fromkeys(
            f"{outcome.spec.origin}: gpus={outcome.spec.request.accel.gpus} can't be had with --ray, which gives each "
            "engine one GPU; leave one of the two out."
            for outcome in several
        )
        return [UsageError(text) for text in found]

    def _open_service(self) -> Service:
        """The queue here, or in a cluster's service. Raises KinetileError."""
        settings = self._settings
        if not settings.ray:
            return open_service(settings.home, **self._options)
        from app.remote.service import open_crew  # it needs the queue's owner, which needs this room's interrupts

        address = Address.parse(settings.ray)
        self._reporter.say(f"Looking at the machines of --ray {settings.ray}")
        self._cluster = connect(address, settings.home, **self._far)
        try:
            for note in self._cluster.notes:
                self._reporter.say(f"note: Left out: {note}")
            names = ", ".join(place.name for place in self._cluster.places)
            self._reporter.say(f"{len(self._cluster.places)} to make clips: {names}")
            return open_crew(settings.home, self._cluster, self._options)
        except BaseException:
            self._cluster.close()
            raise

    def _run_with(self, service: Service) -> tuple[list[Outcome], list[KinetileError], int]:
        settings, many = self._settings, self._cluster is not None
        stopping = "Waiting for the clips that are being made" if many else "Stopping after this step"
        interrupts = Interrupts(lambda: self._reporter.say(f"{stopping}; press Ctrl-C again to stop at once."))
        follower = Follower(service, lambda: open_service(settings.home, **self._options), interrupts)
        follower.finish_running = many
        try:
            self._prepare_with(service)
            if settings.dry_run:
                follower.leave()
                return self._outcomes, [], self._tell_estimates()
            with interrupts:
                self._make_all(follower)
                follower.leave()
        except KinetileError as error:
            follower.leave()
            return self._outcomes, [error], self._refuse([error])
        except KeyboardInterrupt:
            interrupts.asked = True
            follower.stop_now(self._outcomes)
        except Exception:  # a mistake of ours: what was not begun stays queued, and no worker is left behind
            follower.stop_now(self._outcomes)
            raise
        finally:
            self._reporter.end()
        stranded = [CannotRunError(service.stranded)] if service.stranded and self._are_left() else []
        self._summarise(interrupts.asked)
        if stranded:
            return self._outcomes, [*stranded], self._refuse(stranded)
        return self._outcomes, [], self._exit_code(interrupts.asked)

    def _are_left(self) -> bool:
        return any(outcome.state == "waiting" for outcome in self._outcomes)

    def _refuse(self, problems: Sequence[KinetileError]) -> int:
        for problem in problems[:MAX_PROBLEMS]:
            complain(problem, self._err)
        if len(problems) > MAX_PROBLEMS:
            complain(UsageError(f"... and {len(problems) - MAX_PROBLEMS} more mistakes."), self._err)
        return problems[0].exit_code

    # -- before it runs --

    def _fetch_missing(self, sources: Sequence[str]) -> None:
        """With --download: bring the models here that the clips need, unless a clip can't be made with any model.
        Raises KinetileError.
        """
        settings = self._settings
        asked = asked_in(sources, settings) if settings.download else []
        missing = catalogue.missing([named.request.model for named in asked])
        for named in asked if missing and not settings.ray else ():
            if recorded_plan(named, settings) is None:
                with self._settings.blaming(named.origin):
                    acceleration.check_wishes(named.request)
        for model in missing:
            if settings.dry_run:
                self._reporter.say(f"--download would fetch {model} first.")
            else:
                catalogue.fetch_model(model, self._reporter)

    def _prepare_with(self, service: Service) -> None:
        """What can only be told by the queue and the worker. Raises KinetileError."""
        if self._settings.resume and not self._outcomes:
            self._outcomes = [Outcome(job.spec, job) for job in service.snapshot().waiting]
            if not self._outcomes:
                self._reporter.say("Nothing is queued, so there is nothing to go on with.")
        elif self._settings.resume:
            resumed(self._outcomes, service.known([outcome.spec.key for outcome in self._outcomes]))
        if self._announce():
            self._choose_accelerators(service)
            self._tell_folders(service)
        if self._settings.dry_run:
            for outcome in self._open():
                if outcome.lacking is None:
                    outcome.estimate = service.estimate(outcome.spec.request, outcome.spec.folder)

    def _open(self) -> list[Outcome]:
        return [outcome for outcome in self._outcomes if not outcome.skipped]

    def _tell_folders(self, service: Service) -> None:
        """How many clips are made, and where: once nothing can refuse them all any more."""
        folders = list(dict.fromkeys(outcome.spec.folder for outcome in self._open()))
        where = str(folders[0]) if len(folders) == 1 else f"{len(folders)} folders"
        making = "Would make" if self._settings.dry_run else "Making"
        possible = sum(outcome.lacking is None for outcome in self._open())
        self._reporter.say(f"{making} {clips_text(possible)} in {where}")
        if not service.owner and (note := why_unplayable(self._settings.home, folders)):
            self._reporter.say(f"note: {note}")

    def _announce(self) -> bool:
        """What will be made, and above all what not as asked; said once per source where its clips differ by seed
        only. Returns whether there is anything to make.
        """
        skipped = sum(outcome.skipped for outcome in self._outcomes)
        if skipped:
            self._reporter.say(f"Skipping {clips_text(skipped)} that an earlier run made.")
        if not self._open():
            return False
        groups: dict[tuple[str, ...], list[Outcome]] = {}
        for outcome in self._open():
            lines = [f"adjusted: {item.reason}" for item in outcome.spec.adjustments]
            lines += [f"note: {note}" for note in (*outcome.notes, *notes_of(outcome.spec.request))]
            groups.setdefault((outcome.spec.origin, outcome.spec.name, *lines), []).append(outcome)
        for (_, name, *lines), members in groups.items():
            request = members[0].spec.request
            seeds = f"seed {request.seed}" + (f" to {members[-1].spec.request.seed}" if len(members) > 1 else "")
            tokens = f", {use.sentence()}" if (use := members[0].tokens) else ""
            self._reporter.say(
                f"{name}: {request.width}x{request.height}, {request.frames} frames at {request.fps:g} fps, "
                f"{request.steps} step{'s' * (request.steps != 1)}, guidance {request.guidance:g}, {seeds}{tokens}"
            )
            for line in lines:
                self._reporter.say(f"  {line}")
        return True

    def _choose_accelerators(self, service: Service) -> None:
        """The plan of every clip. Raises CannotRunError for a forced one that can't run, or where no clip's model is
        here; a clip whose model is missing fails in its turn, beside others. Says what a recorded plan can't have.
        """
        self._reporter.say("Looking at the machine and the model")
        known: dict[Any, PlanAnswer | ModelMissingError] = {}
        said: set[str] = set()
        for outcome in self._open():
            request, recorded = outcome.spec.request, outcome.spec.recorded_plan
            size = (request.width, request.height, request.frames)
            guided = request.accel.gpus > 1 and several.is_guided(request)
            key = (request.model, size, request.accel, guided, id(recorded))
            if key not in known:
                known[key] = plan_of(outcome.spec, service, self._settings)
            answer = known[key]
            if isinstance(answer, ModelMissingError):
                outcome.lacking = answer
                continue
            outcome.accelerators = answer.summary
            notes = (*(f"{sentence}." for sentence in answer.unused_gpus), *answer.differences)
            outcome.notes += notes
            for line in (f"Accelerators: {answer.summary}", *(f"  note: {note}" for note in notes)):
                if line not in said:
                    self._reporter.say(line)
                    said.add(line)
        self._tell_lacking()

    def _tell_lacking(self) -> None:
        """Which clips will fail for want of their models, by file and line. Raises ModelMissingError if all would."""
        told = lacking(self._outcomes, self._settings)
        if told and all(outcome.lacking is not None for outcome in self._outcomes):
            raise ModelMissingError(" ".join(told))
        for sentence in told:
            complain(ModelMissingError(sentence), self._err)

    def _tell_estimates(self) -> int:
        """What the batch will take; returns the exit code."""
        found = [(outcome, outcome.estimate) for outcome in self._open() if outcome.estimate is not None]
        self._reporter.say()
        if found:
            self._reporter.say(estimate_line([estimate for _, estimate in found]))
        blocked: dict[str, str] = {}
        for outcome, estimate in found:
            for reason in estimate.blocked:
                blocked.setdefault(reason, outcome.spec.stem)
        for reason, stem in blocked.items():
            complain(CannotRunError(reason), self._err, f"{stem} is blocked")
        self._reporter.say("Dry run: nothing was made.")
        good = [outcome for outcome in self._outcomes if outcome.can_be_made]
        if len(good) == len(self._outcomes):
            return EXIT_OK
        return EXIT_FAILED if good else CannotRunError.exit_code

    # -- while and after --

    def _make_all(self, follower: Follower) -> None:
        numbers = {id(outcome): number for number, outcome in enumerate(self._outcomes, start=1)}

        def label(outcome: Outcome) -> str:
            return f"{numbers[id(outcome)]}/{len(self._outcomes)} {outcome.spec.stem}"

        def ended(outcome: Outcome) -> None:
            self._reporter.end()
            self._tell(outcome, label(outcome))

        follower.on_begin = lambda outcome: self._reporter.begin(label(outcome))
        follower.on_progress = self._reporter.update
        follower.on_end = ended
        if self._cluster is not None:  # several at once: one bar for all of them
            follower.on_begin = lambda outcome: self._reporter.say(f"{label(outcome)}: begun")
            follower.on_progress = lambda progress: None
        follower.on_news = self._reporter.say
        follower.make(self._open(), self._settings.fail_fast)

    def _tell(self, outcome: Outcome, label: str) -> None:
        """One line on how a clip ended."""
        made = None if outcome.job is None else outcome.job.result
        if made is None:
            if outcome.state in ("failed", "crashed") and outcome.error is not None:
                complain(outcome.error, self._err, label)
            return
        seconds = made.timings.get("total", 0.0)
        stages = ", ".join(f"{key} {value:.1f}" for key, value in made.timings.items() if key != "total")
        on = f" on {made.ran_on}" if made.ran_on else ""
        self._reporter.say(f"{label}: {made.output.name} in {duration(seconds)}{on} ({stages})")
        outcome.accelerators = acceleration.summary(made.plan, made.report)
        for line in made.warnings:
            self._reporter.say(f"  note: {line}")

    def _summarise(self, stopped: bool) -> None:
        if not self._outcomes:
            return
        rows = []
        for outcome in self._outcomes:
            made = None if outcome.job is None else outcome.job.result
            fields = ", ".join(dict.fromkeys(item.field for item in outcome.spec.adjustments)) or "-"
            seconds = "-" if made is None or outcome.skipped else f"{made.timings.get('total', 0.0):.1f}"
            file = made.output.name if made else f"({outcome.spec.stem}: {ENDED[outcome.state]})"
            how = "made before" if outcome.skipped else outcome.accelerators
            if outcome.state in ("failed", "crashed") and outcome.error is not None:
                how = str(outcome.error)  # what was told when it failed is hours above in a long batch
            rows.append([file, seconds, fields, how])
        self._reporter.say()
        self._reporter.table(("file", "seconds", "adjusted", "accelerators, or why not"), rows)
        done = sum(outcome.state == "done" for outcome in self._outcomes)
        failed = sum(outcome.state in ("failed", "crashed") for outcome in self._outcomes)
        waiting = sum(outcome.state == "waiting" and outcome.job is not None for outcome in self._outcomes)
        text = f"{done} of {len(self._outcomes)} made" + (f", {failed} failed" if failed else "")
        if stopped:
            text = f"Stopped on request: {text}, " + ("what was made is kept" if done else "nothing was kept")
        self._reporter.say()
        self._reporter.say(f"{text}. Folder: {self._settings.folder}")
        if waiting:
            self._reporter.say(
                f"{clips_text(waiting)} still queued: --resume alone goes on with that, and the same command with "
                "--resume also makes what was stopped."
            )

    def _exit_code(self, stopped: bool) -> int:
        states = [outcome.state for outcome in self._outcomes]
        if stopped and any(state != "done" for state in states):
            return EXIT_INTERRUPTED
        failures = [outcome.error for outcome in self._outcomes if outcome.state in ("failed", "crashed")]
        if all(state == "done" for state in states):
            return EXIT_OK
        nothing_ran = len(failures) == len(states) and all(isinstance(error, CannotRunError) for error in failures)
        return CannotRunError.exit_code if nothing_ran else EXIT_FAILED


__all__ = ["BatchSettings", "Outcome", "run_batch", "share"]
