"""What is wrong in the Create form: all of it at once, each sentence under its field, and the field marked.

The request's model and the family's rules say what is wrong; here it only gets its place. The browser draws it
(`assets/mistakes.js`): a field is marked with aria-invalid and a red border and tied to its sentence.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

import gradio as gr

from app import catalogue
from app.errors import KinetileError, UsageError, mistakes_of, on_page
from app.models import family_for, sources
from app.models.base import Normalised
from app.pictures import fitted
from app.ui.context import Context
from app.ui.form import NAMES
from app.ui.rows import script

TITLES: Mapping[str, str] = {
    "model": "Model",
    "prompt": "Prompt",
    "negative_prompt": "Negative prompt",
    "image": "First picture",
    "last_image": "Last picture",
    "width": "Width",
    "height": "Height",
    "frames": "Frames",
    "fps": "FPS",
    "steps": "Steps",
    "guidance": "Guidance",
    "guidance_2": "Guidance, later steps",
    "seed": "Seed number",
    "count": "Clips",
    "scheduler": "Scheduler",
    "shift": "Shift",
    "gpus": "GPUs together",
    "loras": "LoRAs",
    "carried": "Accelerators taken over",
}
"""The fields as the form calls them."""

_times = itertools.count(1)


def place_for(*names: str) -> Any:
    """Where the sentences about these fields stand: right under them, nothing while there are none."""
    return gr.HTML(
        f'<div class="kt-why" data-for="{" ".join(names)}"></div>',
        apply_default_css=False,
        elem_classes=["kt-why-place"],
    )


def mistakes_field() -> Any:
    """The component whose value (`as_value`) is drawn at the fields; nothing of its own is seen."""
    return gr.HTML(
        as_value({}),
        html_template="",
        js_on_load=script("mistakes.js"),
        apply_default_css=False,
        elem_id="kt-mistakes",
    )


def as_value(wrong: Mapping[str, str], asked: bool = False) -> str:
    """The component's value. asked: somebody pressed Generate, so the first of the fields gets the focus."""
    told = {name: f"{TITLES[name]}: {on_page(wrong[name])}" for name in TITLES if name in wrong}
    return json.dumps({"fields": told, "asked": next(_times) if asked and told else 0}, ensure_ascii=False)


def sentence(wrong: Mapping[str, str]) -> str:
    """What stands beside the button: which fields to look at, and what no field can be blamed for."""
    told = [on_page(text) for name, text in wrong.items() if name not in TITLES]
    named = f"Nothing was queued; look at {in_words(wrong)}." if len(told) < len(wrong) else ""
    return " ".join(filter(None, [named, *told]))


def in_words(names: Container[str]) -> str:
    """Fields as the form calls them: "Frames, Steps and Clips"."""
    titles = [TITLES[name] for name in TITLES if name in names]
    return " and ".join(filter(None, [", ".join(titles[:-1]), *titles[-1:]]))


def look(context: Context, values: Sequence[Any]) -> tuple[Normalised | None, dict[str, str]]:
    """What the model makes of the form (None where that can't be said), and a sentence for each field that is wrong;
    what is about none of them has the name "".
    """
    try:
        request, wrong = context.form.look(*values)
    except UsageError as error:
        return None, {"": str(error)}
    if "model" in wrong:
        return None, wrong
    if request.seed is not None:
        try:
            request.expand()
        except UsageError as error:
            wrong["seed"] = str(error)
    try:
        return fitted(family_for(request.model).normalise(request), context.home), wrong
    except UsageError as error:
        return None, {**dict(_placed(str(mistake)) for mistake in mistakes_of(error)), **wrong}
    except KinetileError as error:
        return None, {"": str(error), **wrong}


def _placed(mistake: str) -> tuple[str, str]:
    """The field that a mistake of the family's rules is about, and its sentence."""
    name, _, rest = mistake.partition(": ")
    return (name, rest) if name in TITLES else ("", mistake)


def before_queueing(context: Context, values: Sequence[Any]) -> dict[str, str]:
    """All that stands against making clips of the form, by field: a model that is not here as well."""
    _, wrong = look(context, values)
    if "model" not in wrong and (why := _why_not_here(str(values[NAMES.index("model")]))):
        wrong = {"model": why, **wrong}
    return wrong


def _why_not_here(model: str) -> str:
    with contextlib.suppress(UsageError):
        family = family_for(model)
        why = sources.why_not_here(family)
        if why and catalogue.offered(model) is not None:
            return "press Fetch, or choose another model."  # that it is not here stands beside that button
        return why
    return ""


__all__ = ["as_value", "before_queueing", "in_words", "look", "mistakes_field", "place_for", "sentence"]
