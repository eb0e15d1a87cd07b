"""What a clip is begun with, beside words: its first and last picture, and LoRAs with their strengths.

Each is one field of the Create form whose value is text: the name under which a picture is kept, or the LoRAs as JSON.
The field draws itself from its value in the browser, and asks the server for what a name alone does not tell.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import gradio as gr

from app import loras, pictures
from app.errors import KinetileError, UsageError, on_page
from app.models import family_for
from app.models.base import Family
from app.paths import read_bytes
from app.pictures import FIELDS, TITLES, Field
from app.plain import to_data
from app.ui.context import Context, bytes_text, escaped
from app.ui.endpoints import add_endpoints
from app.ui.form import holds_loras
from app.ui.mistakes import place_for
from app.ui.rows import script

THUMB = (240, 96)
"""Largest sides of the small picture, in pixels: shown at half of that."""
_ACCEPT = ".png,.jpg,.jpeg,.webp,.bmp,.gif"
_PICTURE = """<div class="kt-brought" role="group" aria-label="{title}"><span class="kt-label">{title}</span>
<div class="kp-row"><img class="kp-thumb" alt="" hidden><span class="kp-about" aria-live="polite"></span>
<button type="button" class="kt-do kp-choose" data-do="choose" aria-label="Choose the {lower}">Choose</button>
<button type="button" class="kt-do kp-remove" data-do="remove" aria-label="Remove the {lower}" hidden>Remove</button>
<input type="file" accept="{accept}" hidden tabindex="-1" aria-hidden="true"></div>
<p class="kt-problem kp-problem" role="alert"></p></div>"""
_LORAS = """<div class="kt-brought" role="group" aria-label="LoRAs"><span class="kt-label">LoRAs</span>
<ul class="kl-rows"></ul><select class="kl-add" aria-label="Add a LoRA" hidden></select>
<p class="kt-hint kl-nothing"></p></div>"""


def picture_fields(context: Context, values: dict[str, Any]) -> dict[str, Any]:
    """The fields of both pictures by name, holding `values`, for the form that is being built."""
    family = family_for(values["model"])
    made: dict[str, Any] = {}
    for name in FIELDS:
        made[name] = _picture_field(context, name, values[name], family)
        place_for(name)
    return made


def loras_field(context: Context, values: dict[str, Any]) -> Any:
    """The field of the LoRAs, holding `values`."""

    def listed(what: dict[str, Any]) -> dict[str, Any]:
        return choices(context, str(what.get("model", "")) if isinstance(what, dict) else "")

    return gr.HTML(
        values["loras"],
        html_template=_LORAS,
        js_on_load=script("loras.js"),
        server_functions=[listed],
        apply_default_css=False,
        visible="lora" in family_for(values["model"]).takes,
        elem_id="kt-loras",
    )


def possible(family: Family, image: str = "", last_image: str = "", text: str = "") -> list[Any]:
    """Updates of the three: those that the model can't use are not shown, unless they hold something all the same (a
    preset's, say), which can then be taken away.
    """
    held = {"image": bool(image), "last_image": bool(last_image), "lora": holds_loras(text)}
    return [gr.update(visible=name in family.takes or is_held) for name, is_held in held.items()]


def _picture_field(context: Context, name: Field, value: str, family: Family) -> Any:
    def keep(what: dict[str, Any]) -> dict[str, Any]:
        return kept(context, name, what if isinstance(what, dict) else {})

    def look(what: dict[str, Any]) -> dict[str, Any]:
        return seen(context, name, str(what.get("name", ""))[:1000] if isinstance(what, dict) else "")

    title = TITLES[name].capitalize()
    return gr.HTML(
        value,
        html_template=_PICTURE.format(title=escaped(title), lower=escaped(TITLES[name]), accept=_ACCEPT),
        js_on_load=script("picture.js"),
        server_functions=[keep, look],
        apply_default_css=False,
        visible=name in family.takes,
        elem_id=f"kt-{name.replace('_', '-')}",
    )


def add_endpoints_for(context: Context) -> None:
    """The same for programs."""

    def picture_keep(path: str, name: str = "") -> dict[str, Any]:
        """Keep an uploaded picture (upload it to /gradio_api/upload first). Returns the name that a request's "image"
        and "last_image" take.
        """
        data = read_bytes(context.open_path(path), pictures.MAX_BYTES)
        title = Path(name or path).name[:200]
        return {"name": pictures.keep(context.home, data, title, title)}

    def lora_list(model: str = "starter") -> list[dict[str, Any]]:
        """The LoRAs that a request's "loras" can name for a model, with what stands against one."""
        return [to_data(one) for one in loras.listed(family_for(model), context.home)]

    add_endpoints(picture_keep, lora_list)


def kept(context: Context, field: Field, what: dict[str, Any]) -> dict[str, Any]:
    """Keep an upload, {"path", "name"}: what `seen` gives, or {"error"}."""
    title = Path(str(what.get("name", ""))).name[:200] or "The file"
    try:
        if not what.get("path"):
            raise UsageError(f"{title} could not be uploaded; it may be too large.")
        data = read_bytes(context.open_path(str(what["path"])[:4000]), pictures.MAX_BYTES)
        return seen(context, field, pictures.keep(context.home, data, title, title, field))
    except KinetileError as error:
        return {"error": on_page(error)}


def seen(context: Context, field: Field, name: str) -> dict[str, Any]:
    """A kept picture, small: {"name", "picture" (an address with its data), "about"}, or {"error"}."""
    try:
        data = read_bytes(pictures.kept_path(context.home, name, field), pictures.MAX_BYTES)
        picture = pictures.read_picture(data, name, field)
    except KinetileError as error:
        return {"error": on_page(error)}
    small, stream = picture.image.copy(), io.BytesIO()
    small.thumbnail(THUMB)
    small.save(stream, format="PNG")
    address = "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
    return {"name": name, "picture": address, "about": f"{picture.image.width} × {picture.image.height}"}


def choices(context: Context, model: str) -> dict[str, Any]:
    """The LoRAs that can be added for a model, as `assets/loras.js` reads it."""
    try:
        family = family_for(model)
        found = loras.listed(family, context.home)
    except KinetileError as error:
        return {"choices": [], "two": False, "nothing": on_page(error), "missing": ""}
    folder = context.home.root / "loras"
    return {
        "choices": [{"name": one.name, "about": _about(one), "problem": one.problem} for one in found],
        "two": family.defaults.guidance_2 is not None,
        "nothing": f"Put LoRA files ({loras.SUFFIX}) into {folder} to choose them here.",
        "missing": f"is not in {folder}; put the file there or remove it.",
    }


def _about(one: loras.Listed) -> str:
    where = "comes with the model" if one.comes_with_model else bytes_text(one.size)
    return f"{one.name} · {where}" + (" · can't be used" if one.problem else "")


__all__ = ["add_endpoints_for", "choices", "kept", "loras_field", "picture_fields", "possible", "seen"]
