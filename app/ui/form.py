"""The Create form: its fields by name, a request from their values, and their values from a request.

What has no control of its own (the backends asked for) travels in `carried` as JSON, so that a preset comes back
exactly as it was imported; `app.ui.carried` tells it in words.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

import gradio as gr

from accel.reading import parse_json
from app.errors import UsageError
from app.models import family_for
from app.request import MAX_SEED, GenerationRequest, parse_request
from app.strict_json import short
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
RANDOM, FIXED, REUSE = "Random", "Fixed", "Reuse"


@dataclass
class FormFields:
    """The components by name; empty until Create is built."""

    by_name: dict[str, Any] = field(default_factory=dict)

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
        """The request that the form asks for. Raises UsageError naming the field."""
        try:
            return request_of(dict(zip(NAMES, values, strict=True)))
        except UsageError as error:
            raise UsageError(str(error).removeprefix("Create, ").replace(OR_NOTHING, "")) from error


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
    """The request that these values ask for. Raises UsageError naming the field."""
    data: dict[str, Any] = {"model": values["model"], "prompt": values["prompt"] or ""}
    # An emptied field says something where the model would put its own words into it.
    if values["negative_prompt"] or family_for(values["model"]).defaults.negative_prompt:
        data["negative_prompt"] = values["negative_prompt"] or ""
    if values["scheduler"]:
        data["scheduler"] = values["scheduler"]
    for name in WHOLE:
        if values[name] is not None:
            data[name] = _whole(name, values[name])
    for name in BROKEN:
        if values[name] is not None:
            data[name] = values[name]
    if values["seed_mode"] != RANDOM:
        data["seed"] = _seed(values["seed"])
    data |= {name: values[name] for name in PICTURES if values[name]}
    data |= _loras(values["loras"])
    data |= carried_of(values["carried"])
    if values["gpus"] is not None:
        data["accel"] = {**data.get("accel", {}), "gpus": _whole("gpus", values["gpus"])}
    return parse_request(data, "Create")


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


def _whole(name: str, value: Any) -> int:
    if not (isinstance(value, (int, float)) and abs(value) <= MAX_SEED and value == int(value)):
        raise UsageError(f"{name}: {short(value)} is not a whole number; write one without a fraction.")
    return int(value)


def _seed(text: Any) -> int:
    """Seeds travel as text: a browser's numbers would round large ones."""
    digits = str(text or "").strip()
    if not digits:
        raise UsageError(f"seed: write a whole number from 0 to {MAX_SEED:,}, or choose Random.")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 16 or int(digits) > MAX_SEED:
        raise UsageError(f"seed: {digits[:40]!r} is not possible; write a whole number from 0 to {MAX_SEED:,}.")
    return int(digits)


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
