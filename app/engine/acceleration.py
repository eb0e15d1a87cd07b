"""The engine's one door to accel/: which plan for this request, put in, counted, taken out.

The order matters: threads and how they wait are set before torch is imported, and a model is described from its
configuration alone, so that a forced backend that can't run is refused before any weights are read.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import accel
from accel import threads
from accel.backends import reference
from accel.cache import prune
from accel.finite import engaged_backends
from accel.plan import ANY_MODEL
from accel.readouts import ranking, store
from accel.readouts.ranking import Readouts
from accel.types import (
    NO_CACHE,
    NO_OFFLOAD,
    NO_TILING,
    Choice,
    Machine,
    ModelTraits,
    Plan,
    Preferences,
    StagePlan,
)
from app.engine import loading, several
from app.engine import recorded as recorded_plans
from app.engine.room import room_of
from app.errors import CannotRunError, JobFailedError, ModelMissingError, PlanRefusedError, UsageError
from app.models import sources
from app.models.base import Family
from app.paths import Home
from app.request import GenerationRequest
from app.strict_json import short

TRAITS_KEPT = 200
_NOTHING = ("stock", "", "none", "off", "no")


@dataclass(frozen=True)
class Decision:
    """The plan for one request, and sentences on what a recorded plan wanted and this machine can't. shared: among
    which GPUs, None for one device. ran_on: the device or devices, as a person knows them.
    """

    plan: Plan
    differences: tuple[str, ...] = ()
    shared: several.Sharing | None = None
    ran_on: str = ""

    @property
    def data(self) -> dict[str, Any]:
        """The plan as JSON-able data."""
        return self.plan.to_dict() | ({} if self.shared is None else {"ranks": self.shared.to_data()})

    @property
    def identity(self) -> tuple[tuple[str, str, str], ...]:
        """Equal for plans that engage the same, whatever their reasons: such clips share a loaded model."""
        return tuple((choice.stage, choice.setting, choice.engaged) for choice in self.plan.choices())

    @property
    def dtypes(self) -> dict[str, str]:
        """Component name to dtype, for loading in the dtype that will run."""
        found = {"default": "float32"}
        for stage in self.plan.stages:
            if stage.dtype.engaged not in _NOTHING:
                found |= dict.fromkeys(_components(stage.stage), stage.dtype.engaged)
        return found

    @property
    def device(self) -> str:
        """The torch device that the denoiser runs on."""
        stage = self.plan.stage("transformer")
        return "cpu" if stage is None or stage.device.engaged in _NOTHING else stage.device.engaged

    @property
    def frees_text(self) -> bool:
        """Whether the text encoder goes once the prompt is read."""
        return self.plan.text_encoder.engaged == "free"

    def serves(self, request: GenerationRequest) -> tuple[Any, ...]:
        """What requests must have in common to share a loaded model: where its encoders are freed, all that can change
        what they are asked.
        """
        if not self.frees_text:
            return ()
        pictures = (request.image, request.last_image, request.width, request.height, request.frames)
        return (request.prompt, request.negative_prompt, request.guidance, *pictures)

    @property
    def accelerated(self) -> bool:
        """Whether anything but the reference backends is engaged."""
        return any(choice.engaged not in _references(choice) for choice in self.plan.choices())


_probing = threading.Lock()


def machine() -> Machine:
    """The machine, probed once per process; sets how many threads work and how they wait, which torch reads when
    imported.

    What a person set in the environment stays.
    """
    with _probing:  # plans are asked for while a clip is made
        return _machine()


@functools.cache
def _machine() -> Machine:
    found = accel.probe()
    threads.apply(found)
    return found


@functools.lru_cache(maxsize=64)
def traits(folder: Path, width: int, height: int, frames: int, cache: Path | None = None) -> ModelTraits:
    """The model in `folder` as accel sees it, for clips of this size. Reads no weights.

    Describing a model imports torch and diffusers, which takes seconds; the answer is kept in `cache` and used again
    while model, libraries and accel are the same.
    """
    machine()
    kept = None if cache is None else cache / f"traits-{_stamp(folder, width, height, frames)}.json"
    if kept is not None:
        with contextlib.suppress(OSError, ValueError):
            return ModelTraits.from_dict(json.loads(kept.read_text(encoding="utf-8")))
    found = accel.traits_of(_skeleton(folder), width=width, height=height, frames=frames)
    if kept is not None:
        with contextlib.suppress(OSError):
            partial = kept.with_name(f"{kept.name}.{os.getpid()}.partial")
            partial.write_text(json.dumps(found.to_dict()), encoding="utf-8")
            os.replace(partial, kept)
            # A person who tries many sizes leaves a description for each.
            prune(kept.parent.glob("traits-*.json"), TRAITS_KEPT - 1, kept)
    return found


def as_shipped(family: Family, home: Home) -> ModelTraits:
    """The model of `family` for a clip of its default size, under the name that a person knows it by.

    Raises CannotRunError when it isn't on this machine or can't be described here, for want of diffusers say.
    """
    wanted = family.defaults
    try:
        found = traits(folder_of(family), wanted.width, wanted.height, wanted.frames, home.cache)
    except ImportError as error:
        raise CannotRunError(f"{family.title} can't be described here ({error}).") from error
    return replace(
        found, family=f"a clip of {family.called.lower()}, {wanted.width}x{wanted.height}, {wanted.frames} frames"
    )


def folder_of(family: Family) -> Path:
    """Where the model's files lie. Raises ModelMissingError when they are not on this machine."""
    folder = sources.placed(family).folder
    if folder is None:
        raise ModelMissingError(sources.why_not_here(family))
    return folder


def _stamp(folder: Path, *size: int) -> str:
    """Another text for another model, size, library or accel."""
    digest = hashlib.sha256(repr((str(folder), size)).encode())
    for package in ("torch", "diffusers", "transformers"):
        digest.update(f"{package} {importlib.metadata.version(package)}\n".encode())
    sources = [Path(accel.__file__).with_name(name) for name in ("traits.py", "types.py", "bridge.py")]
    for path in (*sources, *sorted(folder.glob("*.json")), *sorted(folder.glob("*/*config.json"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


@functools.lru_cache(maxsize=4)
def _skeleton(folder: Path) -> Any:
    loading.go_offline()
    return loading.skeleton(folder)


def decide(
    family: Family, request: GenerationRequest, recorded: Mapping[str, Any] | None = None, cache: Path | None = None
) -> Decision:
    """The plan for `request`; with `recorded`, a plan from a clip's metadata, as much of that one as can run here.
    `cache` is a folder for the model's description, see `traits`.

    Reads no weights. Raises UsageError for an accel setting that does not exist, CannotRunError for one that can't run
    here or a model that is not on this machine.
    """
    made = _decided(family, request, recorded, cache)
    return replace(made, ran_on=several.ran_on(machine(), made.device, made.shared))


def _decided(
    family: Family, request: GenerationRequest, recorded: Mapping[str, Any] | None, cache: Path | None
) -> Decision:
    if recorded is None and sources.placed(family).folder is None:
        check_wishes(request)  # before anybody fetches the model for nothing
    described = describe(family, request, cache)
    measured = readouts(described, family.name, cache)
    shared = several.sharing_for(machine(), described, request)
    if recorded is None:
        return Decision(plan_for(described, preferences_of(request), measured, shared), (), shared)
    try:
        if not isinstance(recorded, Mapping):
            raise ValueError(f"{short(recorded)} is no plan")
        then = Plan.from_dict(dict(recorded))
    except ValueError as error:
        why = short(str(error), 200)[1:-1]
        told = f"The accelerators it was made with can't be read ({why}); those that the request asks for are used."
        return Decision(plan_for(described, preferences_of(request), measured, shared), (told,), shared)
    seen = described if shared is None else shared.seen[-1]
    wishes = recorded_plans.as_recorded(machine(), then, seen)
    plan = plan_for(described, wishes if shared is None else shared.possible(wishes), None, shared)
    return Decision(plan, recorded_plans.differences(then, plan), shared)


class Engaged:
    """Accelerators in a loaded pipeline."""

    def __init__(self, pipeline: Any, decision: Decision) -> None:
        self._pipeline, self._decision = pipeline, decision
        self._installation = self._install()

    @property
    def accelerated(self) -> bool:
        """Whether anything but the reference backends is engaged."""
        return self._decision.accelerated

    @property
    def backends(self) -> str:
        """What is engaged, as a few words for an error."""
        return engaged_backends(self._installation.report()) or "the reference backends"

    def begin_clip(self) -> None:
        """Count from zero again."""
        self._installation.reset()

    def report(self) -> dict[str, Any]:
        """What was served and what fell back since `begin_clip`, and the threads it ran on."""
        import torch

        return {**self._installation.report(), "threads": torch.get_num_threads()}

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """While entered, the pipeline runs on the reference backends alone; it fits into memory as before."""
        self._installation.remove()
        plain = self._install(_plain(self._decision.plan))
        try:
            yield
        finally:
            plain.remove()
            self._installation = self._install()

    def _install(self, plan: Plan | None = None) -> Any:
        try:
            return accel.install(self._pipeline, plan or self._decision.plan)
        except accel.AccelError as error:
            raise JobFailedError(f"The accelerators could not be put in: {error}.") from error


def engage(pipeline: Any, decision: Decision) -> Engaged:
    """Move the pipeline to the plan's device unless its parts come there by themselves, set the threads, put the
    accelerators in.
    """
    import torch

    if decision.plan.threads.engaged.isdigit():
        torch.set_num_threads(int(decision.plan.threads.engaged))
    if decision.device != "cpu" and decision.plan.offload.engaged == "none":
        pipeline.to(decision.device)
    return Engaged(pipeline, decision)


def engage_encoders(pipeline: Any, decision: Decision) -> Any:
    """Accelerate what reads the prompt, in a pipeline whose other parts are not there. Kept for as long as they are."""
    import torch

    if decision.plan.threads.engaged.isdigit():
        torch.set_num_threads(int(decision.plan.threads.engaged))
    stages = tuple(stage for stage in decision.plan.stages if stage.stage == "text_encoder")
    return accel.install(pipeline, replace(decision.plan, stages=stages, offload=NO_OFFLOAD, tiling=NO_TILING))


def _plain(plan: Plan) -> Plan:
    """`plan` with the model's own code everywhere."""
    stock = {"attention": "stock", "linear": "stock", "vae": "stock", "compile": "no", "cache": "none"}

    def bare(stage: StagePlan) -> StagePlan:
        return replace(stage, **{name: replace(getattr(stage, name), engaged=value) for name, value in stock.items()})

    return replace(plan, stages=tuple(bare(stage) for stage in plan.stages))


def summary(plan: Mapping[str, Any], report: Mapping[str, Any] | None = None) -> str:
    """A plan in a few words, "float32, vae direct_conv3d 91/91": what runs, and with a report what was served of how
    many calls.
    """
    words: list[str] = []
    for stage in plan.get("stages", ()):
        if stage.get("stage") == "transformer":
            words.insert(0, stage["dtype"]["engaged"])
        for setting in ("attention", "linear", "vae", "compile", "cache"):
            choice = Choice.from_dict(stage.get(setting, NO_CACHE.to_dict()))
            if choice.engaged in _references(choice):
                continue
            label = f"{'text ' if choice.stage == 'text_encoder' else ''}{setting} {choice.engaged}"
            entries = [
                entry for name, entry in (report or {}).get(setting, {}).items() if name in _components(choice.stage)
            ]
            if calls := sum(entry.get("calls", 0) for entry in entries):
                label += f" {sum(entry.get('served', 0) for entry in entries)}/{calls}"
            words.append(label)
    for name, meaning in (("offload", "offload {}"), ("tiling", "tiles"), ("text_encoder", "text encoder freed")):
        engaged = plan.get(name, {}).get("engaged", "")
        if engaged not in ("", "none", "off", "keep"):
            words.append(meaning.format(engaged))
    shared = [f"shared by {plan['ranks']['count']}: {plan['ranks']['how']}"] if "ranks" in plan else []
    words = words if len(words) > 1 else [*words, "stock PyTorch"]
    return ", ".join([*words, *shared])


def preferences_of(request: GenerationRequest) -> Preferences:
    """The part of the request that accel decides about."""
    known = {item.name for item in fields(Preferences)}
    return Preferences(**{name: value for name, value in request.accel.model_dump().items() if name in known})


def describe(family: Family, request: GenerationRequest, cache: Path | None = None) -> ModelTraits:
    """The model of `family` for the clip that `request` (normalised) asks for. Raises CannotRunError."""
    size = (int(request.width or 0), int(request.height or 0), int(request.frames or 0))
    return traits(folder_of(family), *size, cache)


def readouts(traits: ModelTraits, model: str, cache: Path | None) -> Readouts:
    """What was measured on this machine and counts for this model; nothing without a folder."""
    if cache is None:
        return Readouts()
    return ranking.for_model(store.load(machine(), results_in(cache)).current, traits, model)


def results_in(cache: Path) -> Path:
    """The folder of readouts."""
    return cache / "readouts"


def plan_for(
    traits: ModelTraits,
    preferences: Preferences,
    measured: Readouts | None = None,
    shared: several.Sharing | None = None,
) -> Plan:
    """The plan for this machine, or for each of those that share a clip. Raises UsageError for a preference that does
    not exist, PlanRefusedError for one that can't be kept here.
    """
    room = room_of(machine()) if shared is None else shared.room()
    make = functools.partial(accel.make_plan, machine(), readouts=measured, room=room)
    try:
        return make(traits, preferences) if shared is None else shared.plan(make, preferences)
    except accel.PlanError as error:
        if error.unknown:
            raise UsageError(f"accel: {'; '.join(error.unknown)}.") from error
        left_out = () if machine().usable_gpus() else machine().unused_gpus()
        raise PlanRefusedError(f"{'; '.join([*error.reasons, *left_out])}.") from error


def check_wishes(request: GenerationRequest) -> None:
    """Raise, as `plan_for` would, for wishes that no model can have on this machine: before one is fetched."""
    wishes = replace(preferences_of(request), compile="auto", cache="auto")  # a model's own affair
    if request.accel.gpus > 1:
        several.gpus_for(machine(), request.accel.gpus)
    plan_for(ANY_MODEL, wishes)


def _references(choice: Choice) -> tuple[str, ...]:
    """The values of a choice that mean plain PyTorch. Settings that are no backend never count as accelerated."""
    if choice.setting in ("attention", "linear", "vae"):
        return (*_NOTHING, reference(choice.setting).name)  # type: ignore[arg-type]
    return _NOTHING if choice.setting in ("compile", "cache") else (choice.engaged,)


def _components(stage: str) -> tuple[str, ...]:
    """The names under which a pipeline may hold components of a stage."""
    return (stage, f"{stage}_2", f"{stage}_3")
