"""A batch before it runs: sources become clips to make, with everything that is wrong with them said at once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from app import video
from app.answers import PlanAnswer
from app.errors import KinetileError, ModelMissingError, PlanRefusedError, UsageError, mistakes_of, refuse_all
from app.estimate import Estimate, disk_need
from app.job_types import name_of_clip
from app.loras import missing_loras
from app.models import family_for
from app.models.tokens import TokenUse
from app.paths import OUTPUTS, Home, home, read_bytes
from app.pictures import MAX_BYTES as MAX_PICTURE
from app.pictures import Field, adopt, fitted, keep
from app.plain import to_data
from app.presets import NamedRequest, read_each, read_source
from app.queue.jobs import Job, JobSpec
from app.queue.keeper import error_from
from app.queue.service import Service
from app.request import Assignment, GenerationRequest, canonical
from app.strict_json import short
from app.versions import versions
from app.video import outputs

MAX_CLIPS = 10_000
"""Most clips of one run: a small file can ask for ten million."""

MOST_NAMED = 3
"""Sources that are named in one sentence."""

State = Literal["waiting", "running", "done", "failed", "crashed", "cancelled"]


@dataclass(frozen=True)
class BatchSettings:
    """What the command line says about a batch. `assignments` (a text is KEY=VALUE) go to every request; so do
    `pictures`, files by the request's field. download: models that are not on this machine may be fetched. ray: the
    cluster that makes the clips, empty for this machine.
    """

    assignments: tuple[str | Assignment, ...] = ()
    count: int | None = None
    out: Path | None = None
    strict: bool = False
    dry_run: bool = False
    resume: bool = False
    fail_fast: bool = False
    as_json: bool = False
    download: bool = False
    pictures: Mapping[Field, Path] = field(default_factory=dict)
    ray: str = ""
    home: Home = field(default_factory=home)

    @property
    def folder(self) -> Path:
        """Where the clips go, absolute: another process may make them."""
        return (self.out or self.home.root / OUTPUTS).absolute()

    @property
    def written(self) -> dict[str, str]:
        """The request's fields that the command line sets, each with what was written for it there."""
        found: dict[str, str] = {}
        for one in map(Assignment.of, self.assignments):
            field = one.key.partition(".")[0]
            found[field] = f"{found[field]} {one.written}" if field in found else one.written
        return found | {name: f"--{name.replace('_', '-')}" for name in self.pictures}

    @contextlib.contextmanager
    def blaming(self, origin: str) -> Iterator[None]:
        """A mistake in a request names what a person has to change: what they wrote for that field, else its source."""
        try:
            yield
        except UsageError as error:
            refuse_all([self._blamed(mistake, origin) for mistake in mistakes_of(error)])

    def _blamed(self, error: UsageError, origin: str) -> UsageError:
        field, colon, rest = str(error).partition(": ")
        typed = self.written.get(field) if colon else None
        return UsageError(f"{typed}: {rest}" if typed else f"{origin}: {error}")


@dataclass
class Outcome:
    """One clip of the batch and what became of it. `job` once it is in the queue; `skipped`: an earlier run made it.
    `tokens`: how much of the prompt the model reads, None where that can't be told. `lacking`: its model is not here.
    """

    spec: JobSpec
    job: Job | None = None
    skipped: bool = False
    accelerators: str = ""
    estimate: Estimate | None = None
    notes: list[str] = field(default_factory=list)
    tokens: TokenUse | None = None
    lacking: ModelMissingError | None = None

    @property
    def can_be_made(self) -> bool:
        """Whether nothing is known that keeps it from being made, or it is made already."""
        return self.skipped or (self.lacking is None and (self.estimate is None or self.estimate.fits))

    @property
    def state(self) -> State:
        """Of the clip; "waiting" before it was begun."""
        return "waiting" if self.job is None or self.job.state == "queued" else self.job.state

    @property
    def error(self) -> KinetileError | None:
        """Why there is no clip."""
        if self.job is None or self.job.error is None:
            return self.lacking
        return error_from(to_data(self.job.error))

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        made = None if self.job is None else self.job.result
        return {
            "name": self.spec.name,
            "source": self.spec.origin,
            "state": self.state,
            "skipped": self.skipped,
            "file": None if made is None else str(made.output),
            "poster": None if made is None else str(made.poster),
            "seconds": None if made is None else round(made.timings.get("total", 0.0), 3),
            "timings": {} if made is None else {key: round(value, 4) for key, value in made.timings.items()},
            "request": self.spec.request.model_dump(mode="json"),
            "adjustments": [item.model_dump(mode="json") for item in self.spec.adjustments],
            "accelerators": self.accelerators,
            "report": {} if made is None else made.report,
            "ran_on": None if made is None else made.ran_on,
            "estimate": None if self.estimate is None else to_data(self.estimate),
            "notes": [*self.notes, *(made.warnings if made else ())],
            "error": None if self.error is None else str(self.error),
        }


def prepare(sources: Sequence[str], settings: BatchSettings) -> tuple[list[Outcome], list[KinetileError]]:
    """One outcome, still waiting, per clip asked for; and what is wrong with the sources, all of it."""
    outcomes: list[Outcome] = []
    problems: list[KinetileError] = []
    seen: Counter[str] = Counter()
    batch = secrets.token_hex(8)
    for source in sources:
        for one in _each(source, settings):
            if isinstance(one, KinetileError):
                problems += _mistakes_of(one)
                continue
            try:
                outcomes += _outcomes_of(one, settings, batch, seen)
            except KinetileError as error:
                problems += _mistakes_of(error)
            if len(outcomes) > MAX_CLIPS:
                problems.append(
                    UsageError(f"{one.origin}: one run makes at most {MAX_CLIPS:,} clips; split the batch.")
                )
                break
    # What was typed is told beside sources that can't be read, too; of LoRAs it counts on those of a request.
    typed = [one for one in map(Assignment.of, settings.assignments) if not one.key.startswith("loras.")]
    problems += GenerationRequest().with_each(typed)[1]
    # what was typed for all requests is wrong once, however many there are
    return outcomes, list({str(problem): problem for problem in problems}.values())


def _mistakes_of(error: KinetileError) -> Sequence[KinetileError]:
    return mistakes_of(error) if isinstance(error, UsageError) else (error,)


def _each(source: str, settings: BatchSettings) -> Iterator[NamedRequest | KinetileError]:
    """What a source asks for, and every mistake of it in its place."""
    try:
        yield from read_each(source, settings.home)
    except KinetileError as error:
        yield error


def asked_in(sources: Sequence[str], settings: BatchSettings) -> list[NamedRequest]:
    """What the sources ask for; nothing where one of them can't be read, which is for `prepare` to tell."""
    try:
        read = [named for source in sources for named in read_source(source, settings.home)]
        return [replace(named, request=named.request.with_set(settings.assignments)) for named in read]
    except KinetileError:
        return []


def recorded_plan(named: NamedRequest, settings: BatchSettings) -> Any:
    """The accelerators that a clip was made with, to be used again, unless the person asks for others now; on more
    GPUs, too.
    """
    keys = {Assignment.of(one).key for one in settings.assignments} - {"accel.gpus"}
    forced = any(key.partition(".")[0] == "accel" for key in keys)
    return None if forced or named.metadata is None else named.metadata.get("plan")


def _asked(named: NamedRequest, settings: BatchSettings) -> GenerationRequest:
    """What is asked for once the command line is heard, its pictures kept. Raises UsageError for all that is wrong."""
    asked, wrong = named.request.with_each(settings.assignments)
    if settings.count is not None:
        asked = asked.model_copy(update={"count": settings.count})
    try:
        with settings.blaming(named.origin):
            asked = _with_pictures(asked, named, settings)
    except UsageError as error:
        wrong.append(error)
        asked = asked.model_copy(update={name: path.name for name, path in settings.pictures.items()})
    try:
        with settings.blaming(named.origin):
            family_for(asked.model).normalise(asked, settings.strict)
    except UsageError as error:
        wrong.append(error)
    refuse_all(wrong)
    return asked


def _outcomes_of(named: NamedRequest, settings: BatchSettings, batch: str, seen: Counter[str]) -> list[Outcome]:
    asked = _asked(named, settings)
    with settings.blaming(named.origin):
        family = family_for(asked.model)
        normalised = [
            (one, fitted(family.normalise(one, settings.strict), settings.home, settings.strict))
            for one in asked.expand()
        ]
    recorded = recorded_plan(named, settings)
    name = named.name if named.metadata is None else name_of_clip(named.name, named.request.seed)
    content = _content(asked)
    seen[content] += 1  # the same line twice in a batch asks for two clips
    found = []
    for index, (one, possible) in enumerate(normalised):
        spec = JobSpec(
            name=name,
            asked=one,
            request=possible.request,
            folder=settings.folder,
            adjustments=possible.adjustments,
            notes=tuple(possible.notes.values()),
            recorded_plan=recorded,
            origin=named.origin,
            key=f"{content}-{seen[content]}:{index}/{asked.count}",
            batch=batch,
            fail_fast=settings.fail_fast,
        )
        found.append(Outcome(spec, notes=[*named.warnings, *spec.notes], tokens=possible.prompt_tokens))
    # One clip's missing LoRA is its own affair: the others are made, and the file may come before its turn.
    lacking = missing_loras(asked, family, settings.home)
    for outcome in found:
        outcome.notes += lacking
    if named.metadata is not None and found:
        found[0].notes += _other_versions(named.metadata)
    return found


def _with_pictures(asked: GenerationRequest, named: NamedRequest, settings: BatchSettings) -> GenerationRequest:
    """The request with its pictures kept: those of --image and --last-image, else what the source brings."""
    kept = adopt(asked.model_copy(update=dict.fromkeys(settings.pictures)), settings.home, named.folder, named.pictures)
    wrong: list[UsageError] = []
    for name, path in settings.pictures.items():
        try:
            data = read_bytes(path, MAX_PICTURE)
            kept = kept.model_copy(update={name: keep(settings.home, data, path.name, str(path), name)})
        except UsageError as error:
            wrong.append(UsageError(f"{name}: {error}"))
    refuse_all(wrong)
    return kept


def _content(asked: GenerationRequest) -> str:
    """Equal for equal requests, the seed as it was asked for: null stays null."""
    return hashlib.sha256(json.dumps(canonical(asked), sort_keys=True).encode()).hexdigest()[:24]


def _other_versions(metadata: Any) -> list[str]:
    """What differs between the programs that made a clip and those here: the pixels may, too."""
    then, now = metadata.get("versions"), versions()
    if not isinstance(then, dict):
        return []
    # The file may come from anywhere: what it calls a version is shown no longer than one is.
    said = {name: short(then[name], 24).strip('"') for name in now if then.get(name, now[name]) != now[name]}
    other = [f"{name} {version} (here {now[name]})" for name, version in said.items()]
    return [f"It was made with {', '.join(other)}: the pixels may differ slightly."] if other else []


def resumed(outcomes: Sequence[Outcome], known: Mapping[str, Job]) -> None:
    """Give each outcome the job that an earlier run left for it: a clip that lies there is skipped, a queued job is
    taken over. Clips that are made now get the seeds of their series, where it had drawn one.
    """
    first: dict[tuple[str, str], int] = {}
    for outcome in outcomes:
        job = known.get(outcome.spec.key)
        if job is None:
            continue
        series, index = _series(outcome.spec.key)
        first.setdefault(series, int(job.spec.request.seed or 0) - index)
        if job.state == "done" and job.result is not None and job.result.output.is_file():
            outcome.job, outcome.skipped, outcome.spec = job, True, job.spec
        elif job.state in ("queued", "running"):
            outcome.job, outcome.spec = job, job.spec
    for outcome in outcomes:
        series, index = _series(outcome.spec.key)
        if outcome.job is None and series in first:
            seed = {"seed": first[series] + index}
            spec = outcome.spec
            outcome.spec = replace(
                spec, asked=spec.asked.model_copy(update=seed), request=spec.request.model_copy(update=seed)
            )


def plan_of(spec: JobSpec, service: Service, settings: BatchSettings) -> PlanAnswer | ModelMissingError:
    """The accelerators of a clip, or that its model is not here. Raises CannotRunError, naming the clip's source, for
    a forced one that can't run.
    """
    with settings.blaming(spec.origin):
        try:
            return service.plan(spec.request, spec.recorded_plan)
        except ModelMissingError as error:
            return error
        except PlanRefusedError as error:
            if {"accel", "model"} & settings.written.keys():
                raise
            raise PlanRefusedError(f"{spec.origin}: {error}") from error


def lacking(outcomes: Sequence[Outcome], settings: BatchSettings) -> list[str]:
    """Which models are not here, a sentence each that names the file and line, or what was typed, that asks for it."""
    asking: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        if outcome.lacking is not None:
            named = settings.written.get("model", outcome.spec.origin)
            asking.setdefault(str(outcome.lacking), {})[named] = None
    found = []
    for sentence, origins in asking.items():
        more = len(origins) - MOST_NAMED
        some = ", ".join(list(origins)[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
        found.append(f"{some}: {sentence}")
    return found


def _series(key: str) -> tuple[tuple[str, str], int]:
    content, _, place = key.partition(":")
    index, _, count = place.partition("/")
    return (content, count), int(index)


def check_disk_and_encoder(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Raise now what would otherwise be found after minutes of work."""
    video.check_encoder()
    outputs.check_space(folder, sum(disk_need(outcome.spec.request) for outcome in outcomes))
