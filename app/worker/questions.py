"""What the worker answers besides making clips: plan, doctor, accelerators, readouts. Runs in its process only."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import accel
from accel import caches, doctor
from accel.backends import backend, backends
from accel.readouts import ranking, store
from accel.readouts.results import Results
from accel.types import Choice, Kind, Preferences, StageName
from app.answers import Accelerator, PlanAnswer
from app.engine import acceleration, loading, several
from app.engine.room import room_of
from app.errors import PlanRefusedError, UsageError
from app.estimate import memory_need
from app.models import family_for
from app.paths import Home
from app.plain import from_data, to_data
from app.request import GenerationRequest
from app.worker.wire import Message

SETTINGS: tuple[tuple[str, StageName, Kind], ...] = (
    ("attention", "transformer", "attention"),
    ("linear", "transformer", "linear"),
    ("text_encoder_linear", "text_encoder", "linear"),
    ("vae", "vae", "vae"),
)
"""Each setting of the preferences that chooses a backend, with its stage and kind."""


def warm() -> None:
    """Import what the first clip needs, so that it begins sooner."""
    acceleration.machine()
    loading.go_offline()
    loading.import_libraries()


def answer(message: Message, home: Home) -> Any:
    """The answer to a message from the server, as plain data. Raises KinetileError."""
    match message["do"]:
        case "plan":
            return to_data(_plan(_request(message), message.get("recorded"), home))
        case "doctor":
            return _doctor()
        case "accelerators":
            return [to_data(row) for row in accelerators(_request(message), home)]
        case "readouts":
            return readouts(home)
        case other:
            raise UsageError(f"The worker knows no question {other!r}.")


def _request(message: Message) -> GenerationRequest:
    found: GenerationRequest = from_data(GenerationRequest, message["request"])
    return found


def _plan(request: GenerationRequest, recorded: Any, home: Home) -> PlanAnswer:
    family = family_for(request.model)
    decision = acceleration.decide(family, request, recorded, home.cache)
    assert family.folder is not None, "decide refuses a model that is not on this machine"
    described = acceleration.traits(family.folder, *_size(request), home.cache)
    shared = decision.shared
    memory = _device_memory(decision.device) if shared is None else shared.memory
    need = memory_need(family.folder, described, decision.data, request, memory)
    need = need if shared is None else replace(need, processes=shared.count)
    summary = acceleration.summary(decision.data)
    return PlanAnswer(decision.data, summary, need, decision.differences, _unused_gpus(decision))


def _unused_gpus(decision: acceleration.Decision) -> tuple[str, ...]:
    stage = decision.plan.stage("transformer")
    by_itself = stage is not None and (stage.device.requested, stage.device.engaged) == ("auto", "cpu")
    return acceleration.machine().unused_gpus() if by_itself else ()


def _size(request: GenerationRequest) -> tuple[int, int, int]:
    return int(request.width or 0), int(request.height or 0), int(request.frames or 0)


def _device_memory(device: str) -> int:
    """Bytes that a model may take of the GPU that torch calls `device`, 0 for the CPU; Apple's GPUs share the machine's
    memory.
    """
    kind, _, index = device.partition(":")
    gpus = [gpu for gpu in acceleration.machine().gpus if kind == "cuda" and str(gpu.index) == index]
    return min(gpus[0].memory, room_of(acceleration.machine()).device or gpus[0].memory) if gpus else 0


def _doctor() -> dict[str, Any]:
    machine = acceleration.machine()
    return doctor.as_data(machine, accel.make_plan(machine, doctor.TYPICAL))


def accelerators(request: GenerationRequest, home: Home) -> tuple[Accelerator, ...]:
    """Every backend of every setting, as it stands for `request` (its preferences included) on this machine."""
    family = family_for(request.model)
    described = acceleration.traits(acceleration.folder_of(family), *_size(request), home.cache)
    wishes = acceleration.preferences_of(request)
    shared = several.sharing_for(acceleration.machine(), described, request)
    readouts = acceleration.readouts(described, family.name, home.cache)
    plan = acceleration.plan_for(described, wishes, readouts, shared)
    results = store.load(acceleration.machine(), acceleration.results_in(home.cache)).current
    measured = ranking.figures(results, described)
    rows = []
    for setting, stage, kind in SETTINGS:
        engaged = plan.stage(stage)
        if engaged is None:
            continue
        choice = getattr(engaged, kind)
        place = engaged.device.engaged.partition(":")[0]
        raced = {rank.backend for rank in readouts.of(stage, kind, engaged.dtype.engaged, place)}
        for item in backends(kind):
            name = item.name
            on = choice.engaged == name or (item.reference and choice.engaged == "stock")
            figures = measured.get((stage, kind, name))
            refusals = () if on else _against(described, replace(wishes, **{setting: name}), setting, shared)
            rows.append(
                Accelerator(
                    setting=setting,
                    stage=stage,
                    name=name,
                    title=item.title,
                    state="on" if on else "unavailable" if refusals else "off",
                    reasons=choice.reasons if on else refusals or _why_off(choice, item.exact, name, raced),
                    forced=on and choice.requested != "auto",
                    exact=item.exact,
                    reference=item.reference,
                    **({} if figures is None else asdict(figures)),
                )
            )
    return (*rows, *_caches(described, wishes, plan, results, shared))


def _caches(
    described: accel.ModelTraits,
    wishes: Preferences,
    plan: accel.Plan,
    results: Results | None,
    shared: several.Sharing | None,
) -> tuple[Accelerator, ...]:
    """A row for each step cache, and one for none."""
    stage = plan.stage("transformer")
    if stage is None:
        return ()
    choice, sped = stage.cache, ranking.cache_speedups(results, described)
    rows = []
    for name, title in ((caches.NONE, "Every step computed"), *((one.name, one.title) for one in caches.CACHES)):
        on, plain = choice.engaged.partition(":")[0] == name, name == caches.NONE
        refusals = () if on or plain else _refusals(described, replace(wishes, cache=name), shared)
        off = choice.reasons if plain else ("approximate, so it is only used when chosen", *_meaning(name))
        rows.append(
            Accelerator(
                setting="cache",
                stage="transformer",
                name=name,
                title=title,
                state="on" if on else "unavailable" if refusals else "off",
                reasons=choice.reasons if on else refusals or off,
                forced=on and choice.requested != "auto",
                exact=plain,
                reference=plain,
                speedup=sped.get(name),
            )
        )
    return tuple(rows)


def _meaning(name: str) -> tuple[str, ...]:
    cache = caches.known(name)
    return () if cache is None else (f"{cache.strength:g}: {cache.meaning}",)


def readouts(home: Home) -> dict[str, Any]:
    """What was measured here: {"results": or None, "stale": [{"name", "when", "why"}], "problems": [sentence]}."""
    shelf = store.load(acceleration.machine(), acceleration.results_in(home.cache))
    stale = [
        {
            "name": one.results.place.name,
            "when": max((made.when for made in one.results.measurements), default=""),
            "why": one.why,
        }
        for one in shelf.stale
    ]
    results = None if shelf.current is None else shelf.current.to_dict()
    return {"results": results, "stale": stale, "problems": list(shelf.problems)}


def _against(
    traits: accel.ModelTraits, wishes: Preferences, setting: str, shared: several.Sharing | None
) -> tuple[str, ...]:
    """Why the backend wished for by one setting can't be used, empty when it can: its own reasons, and where it has
    none, the other switches it does not go together with."""
    together = _refusals(traits, wishes, shared)
    if not together:
        return ()
    others = [one for one in SETTINGS if one[0] != setting and getattr(wishes, one[0]) != "auto"]
    if alone := _refusals(traits, replace(wishes, **{one[0]: "auto" for one in others}), shared):
        return alone
    stage, own = next(
        (stage, backend(kind, getattr(wishes, name))) for name, stage, kind in SETTINGS if name == setting
    )
    rivals = [
        item
        for name, where, kind in others
        if where == stage
        for item in backends(kind)
        if item.name == getattr(wishes, name) and not set(item.dtypes) & set(own.dtypes)
    ]
    said = (
        f"does not go together with {item.name}, which runs in {' or '.join(item.dtypes)}: switch that off first"
        for item in rivals
    )
    return tuple(said) or together


def _refusals(traits: accel.ModelTraits, wishes: Preferences, shared: several.Sharing | None) -> tuple[str, ...]:
    """Why the wishes can't be kept, empty when they can."""
    make = partial(accel.make_plan, acceleration.machine())
    try:
        make(traits, wishes) if shared is None else shared.plan(make, wishes)
    except accel.PlanError as error:
        return tuple(error.reasons)
    except PlanRefusedError as error:
        return (str(error).removesuffix("."),)
    return ()


def _why_off(choice: Choice, exact: bool, name: str, raced: Container[str]) -> tuple[str, ...]:
    """Why a backend that could run was not chosen, as far as the plan tells. raced: the backends whose measurement on
    this machine decided."""
    if choice.requested != "auto":
        return (f"{choice.engaged} was chosen by hand",)
    before = f"not {name}: "
    if told := tuple(reason.removeprefix(before) for reason in choice.reasons if reason.startswith(before)):
        return told
    if not exact:
        return ("approximate, so it is only used when chosen",)
    if name in raced:
        return (f"{choice.engaged} is faster here",)
    return (f"{choice.engaged} was taken instead: {choice.reasons[0]}",)
