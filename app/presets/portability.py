"""What of a request is different on this machine: said before it is applied, and nothing is run for it.

A model that is not here, LoRAs that are missing, values that the model adjusts, accelerators that can't run: each is
one sentence. What the machine can't do is taken out of the request that is applied, and its sentence says what is
engaged instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.answers import PlanAnswer
from app.errors import KinetileError, PlanRefusedError, UsageError
from app.loras import missing_loras
from app.models import family_for, sources
from app.models.base import Family
from app.paths import Home
from app.pictures import fitted
from app.queue.service import Service, with_preferences
from app.request import AccelPreferences, GenerationRequest

SETTINGS = tuple(AccelPreferences.model_fields)


@dataclass(frozen=True)
class Here:
    """A request on this machine.

    request: what can be applied to the form; equal to the one asked for when nothing stands against it. differences:
    sentences, empty when it is the same here. engaged: the accelerators that would serve it, in a few words, empty
    when the model is not here. runs: whether a clip could be made of it as applied.
    """

    request: GenerationRequest
    differences: tuple[str, ...] = ()
    engaged: str = ""
    runs: bool = True


def here(request: GenerationRequest, home: Home, service: Service, recorded: Mapping[str, Any] | None = None) -> Here:
    """How `request` fares here; `recorded` is the plan that its clip was made with. Never raises for its content."""
    try:
        family = family_for(request.model)
    except UsageError as error:
        return Here(request, (str(error),), runs=False)
    if family.folder is None or not family.folder.is_dir():
        return Here(request, (_not_here(family),), runs=False)
    said: list[str] = []
    missing = missing_loras(request, family, home)
    said += missing
    try:
        normalised = fitted(family.normalise(request), home)
    except UsageError as error:
        return Here(request, (*said, str(error)), runs=False)
    said += [*(adjustment.reason for adjustment in normalised.adjustments), *normalised.notes.values()]
    applied, answer, refused = _planned(request, normalised.request, service, recorded)
    said += refused
    if answer is None:
        return Here(applied, tuple(said), runs=False)
    said += [_sentence(difference) for difference in answer.differences]
    return Here(applied, tuple(dict.fromkeys(said)), answer.summary, runs=not missing)


def _planned(
    request: GenerationRequest, resolved: GenerationRequest, service: Service, recorded: Mapping[str, Any] | None
) -> tuple[GenerationRequest, PlanAnswer | None, list[str]]:
    """The request without the accelerators that can't run here, the plan for it under this machine's preferences, and a
    sentence for each of them.

    When nobody can say what runs here (the worker is gone, say), the request stays as it is and there is no plan.
    """
    forced = {name: value for name in SETTINGS if (value := getattr(request.accel, name)) != "auto"}
    kept = AccelPreferences()
    refused: list[tuple[str, str]] = []
    applied = request
    try:
        for name, value in forced.items():
            tried = kept.model_copy(update={name: value})
            try:
                service.plan(resolved.model_copy(update={"accel": tried}))
            except (UsageError, PlanRefusedError) as error:
                refused.append((name, str(error)))
            else:
                kept = tried
        applied = request.model_copy(update={"accel": kept})
        wished = with_preferences(resolved.model_copy(update={"accel": kept}), service.preferences())
        answer = service.plan(wished, dict(recorded) if recorded else None)
    except KinetileError as error:
        return applied, None, [*(why for _, why in refused), str(error)]
    return applied, answer, [_instead(name, why, answer) for name, why in refused]


def _instead(name: str, why: str, answer: PlanAnswer) -> str:
    """Why a setting is left out, and what serves in its place."""
    engaged = _engaged(name, answer.plan)
    return f"{_sentence(why)} Engaged instead: {engaged}."


def _engaged(name: str, plan: Mapping[str, Any]) -> str:
    if name == "gpus":
        return "one"
    wanted, setting = ("text_encoder", "linear") if name == "text_encoder_linear" else ("transformer", name)
    if name == "vae":
        wanted = "vae"
    for stage in plan.get("stages", ()):
        if stage.get("stage") == wanted and isinstance(choice := stage.get(setting), Mapping):
            engaged = str(choice.get("engaged", ""))
            return "the model's own code" if engaged in ("stock", "") else engaged
    return "the automatic choice"


def _not_here(family: Family) -> str:
    return f"{sources.why_not_here(family)} Its settings can be looked at, a clip can't be made yet."


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "?", ":")) else f"{text}."


__all__ = ["Here", "here"]
