"""The Create form: its fields by name, a request from their values, and their values from a request.

What has no control of its own (the backends asked for) travels in `carried` as JSON, so that a preset comes back
exactly as it was imported; `app.ui.carried` tells it in words.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import gradio as gr

from accel.reading import parse_json
from app.errors import UsageError, mistakes_of, refuse_all
from app.models import family_for
from app.request import MAX_SEED, GenerationRequest, parse_request
from app.validation import OR_NOTHING

NAMES = (
    "model",
    "prompt",
    "negative_prompt",
    "width",
    "height",
    "frames",
    "fps",
    "steps",
    "guidance",
    "guidance_2",
    "seed_mode",
    "seed",
    "count",
    "scheduler",
    "shift",
    "image",
    "last_image",
    "loras",
    "gpus",
    "carried",
)
"""The fields in the order of their values; `FormFields.components` has the same order."""

WHOLE = ("width", "height", "frames", "steps", "count")
BROKEN = ("fps", "guidance", "guidance_2", "shift")
PICTURES = ("image", "last_image")
CARRIED = ("accel",)
_SOURCE = "Create"
RANDOM, FIXED, REUSE = "Random", "Fixed", "Reuse"


@dataclass
class FormFields:
    """The components by name; empty until Create is built."""

    by_name: dict[str, Any] = field(default_factory=dict)
    source: Any = None
    """The component that says whose settings were taken over."""

    @property
    def components(self) -> list[Any]:
        """As inputs (for `read`) and as outputs (for `fill`)."""
        return [self.by_name[name] for name in NAMES]

    def fill(self, request: GenerationRequest) -> list[Any]:
        """Updates for `components` that make the form ask for exactly `request`."""
        values = values_of(request)
        # what a preset brings is seen, whether or not the model can use it
        shown = {**{name: bool(values[name]) for name in PICTURES}, "loras": bool(request.loras)}
        return [
            gr.update(value=value, **({"visible": True} if shown.get(name) else {})) for name, value in values.items()
        ]

    def read(self, *values: Any) -> GenerationRequest:
        """The request that the form asks for. Raises UsageError naming every field that can't be taken."""
        return request_of(dict(zip(NAMES, values, strict=True)))

    def look(self, *values: Any) -> tuple[GenerationRequest, dict[str, str]]:
        """The request without what is wrong, and that by field, as `looked_at`."""
        return looked_at(dict(zip(NAMES, values, strict=True)))


def values_of(request: GenerationRequest) -> dict[str, Any]:
    """What the fields hold for a request; an empty field means the model's default, and so does None."""
    family = family_for(request.model)
    defaults = family.defaults
    filled = {
        name: getattr(request, name) if getattr(request, name) is not None else getattr(defaults, name)
        for name in (one.name for one in fields(defaults))
    }
    data = request.model_dump(mode="json", include=set(CARRIED), exclude={"accel": {"gpus"}}, exclude_defaults=True)
    data = {name: value for name, value in data.items() if value}
    values = {
        **filled,
        "model": family.name,
        "prompt": request.prompt,
        "seed_mode": RANDOM if request.seed is None else FIXED,
        "seed": "" if request.seed is None else str(request.seed),
        "count": request.count,
        **{name: getattr(request, name) or "" for name in PICTURES},
        "loras": loras_text(request, family.name),
        "gpus": request.accel.gpus,
        "carried": json.dumps(data, ensure_ascii=False) if data else "",
    }
    return {name: values[name] for name in NAMES}


def request_of(values: dict[str, Any]) -> GenerationRequest:
    """The request that these values ask for. Raises UsageError naming every field that can't be taken."""
    request, wrong = looked_at(values)
    refuse_all([UsageError(f"{name}: {sentence}") for name, sentence in wrong.items()])
    return request


def looked_at(values: dict[str, Any]) -> tuple[GenerationRequest, dict[str, str]]:
    """The request that these values ask for without the fields that can't be taken, and a sentence for each of those.
    Raises UsageError for what no field can be blamed for.
    """
    data, wrong = _given(values)
    try:
        return parse_request(data, _SOURCE), wrong
    except UsageError as error:
        keys = set()
        for mistake in mistakes_of(error):
            key, field, sentence = _placed(str(mistake))
            keys.add(key)
            wrong.setdefault(field, sentence)
        kept = {name: value for name, value in data.items() if name not in keys}
        return parse_request(kept, _SOURCE), {name: wrong[name] for name in NAMES if name in wrong}


def _placed(mistake: str) -> tuple[str, str, str]:
    """The request's key that a mistake is about, the form's field for it, and the sentence that is said there."""
    path, _, reason = mistake.removeprefix(f"{_SOURCE}, ").partition(": ")
    key, _, inner = path.partition(".")
    reason = reason.replace(OR_NOTHING, "")
    if key == "accel":  # partly in a field of its own
        return (key, "gpus", reason) if inner == "gpus" else (key, "carried", f"{inner}: {reason}")
    return key, key, f"{inner}: {reason}" if inner else reason


def _given(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """What the fields hold as a request says it, and a sentence for those that hold nothing of the kind."""
    data: dict[str, Any] = {"prompt": values["prompt"] or ""}
    wrong: dict[str, str] = {}

    def taken(name: str, read: Callable[[Any], dict[str, Any]]) -> None:
        try:
            data.update(read(values[name]))
        except UsageError as error:
            wrong[name] = str(error).removeprefix(f"{name}: ")

    taken("model", _model)
    # An emptied field says something where the model would put its own words into it.
    if values["negative_prompt"] or ("model" in data and family_for(data["model"]).defaults.negative_prompt):
        data["negative_prompt"] = values["negative_prompt"] or ""
    if values["scheduler"]:
        data["scheduler"] = values["scheduler"]
    data |= {name: _whole(values[name]) for name in WHOLE if values[name] is not None}
    data |= {name: values[name] for name in BROKEN if values[name] is not None}
    if values["seed_mode"] != RANDOM:
        taken("seed", _seed)
    data |= {name: values[name] for name in PICTURES if values[name]}
    taken("loras", _loras)
    taken("carried", carried_of)
    if values["gpus"] is not None:
        data["accel"] = {**data.get("accel", {}), "gpus": _whole(values["gpus"])}
    return data, wrong


def _model(name: Any) -> dict[str, Any]:
    family_for(name)
    return {"model": name}


def loras_text(request: GenerationRequest, model: str) -> str:
    """The value of the field "loras": with the model's name, since that decides which there are to choose from."""
    found = [one.model_dump(mode="json", exclude_defaults=True) for one in request.loras]
    return json.dumps({"model": model, "loras": found}, ensure_ascii=False)


def holds_loras(text: str) -> bool:
    """Whether there is anything in a value of the field "loras"."""
    try:
        return bool(_loras(text))
    except UsageError:
        return True


def _loras(text: Any) -> dict[str, Any]:
    try:
        data = parse_json(text.encode()) if text else {}
        found = data.get("loras") or []
    except (ValueError, AttributeError):
        raise UsageError("loras: what the page keeps of them can't be read any more; add them again.") from None
    return {"loras": found} if found else {}


def _whole(value: Any) -> Any:
    """A browser's 8.0 is 8; what else a number can be is for the request to say."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _seed(text: Any) -> dict[str, Any]:
    """Seeds travel as text: a browser's numbers would round large ones."""
    digits = str(text or "").strip()
    if not digits:
        raise UsageError(f"seed: write a whole number from 0 to {MAX_SEED:,}, or choose Random.")
    return {"seed": int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 40 else digits}


def carried_of(text: Any) -> dict[str, Any]:
    """What a value of the field "carried" holds. Raises UsageError."""
    if not text:
        return {}
    try:
        data = parse_json(str(text).encode())
    except ValueError:
        data = None
    if not isinstance(data, dict) or not data.keys() <= set(CARRIED):
        raise UsageError("The settings taken over from a preset can't be read any more; import it again.")
    return data
