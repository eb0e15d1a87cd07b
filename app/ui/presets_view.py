"""Presets as markup: the list, and one preset with what it asks for and what of that differs on this machine."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import UsageError, on_page
from app.models import family_for
from app.paths import slug
from app.presets.files import Preset, PresetEntry
from app.presets.portability import Here
from app.request import GenerationRequest, canonical
from app.strict_json import dumps
from app.ui.carried import in_words
from app.ui.context import escaped, sentences_html
from app.ui.rows import button, shortened


@dataclass(frozen=True)
class Chosen:
    """The preset that is looked at. kind: "own", "shipped", or "import" for one that lies nowhere yet. recorded: the
    plan that its clip was made with. here: what differs on this machine, None until it is known. problem: why it is
    no preset; then it has no request.
    """

    kind: str
    name: str
    title: str
    request: GenerationRequest | None
    notes: str = ""
    origin: str = ""
    warnings: tuple[str, ...] = ()
    recorded: Mapping[str, Any] | None = None
    here: Here | None = None
    problem: str = ""

    @classmethod
    def entry(cls, entry: PresetEntry, kind: str) -> Chosen:
        """A preset of the list."""
        title = entry.preset.title if entry.preset else ""
        return cls(
            kind,
            entry.name,
            title or entry.name,
            entry.request,
            entry.preset.notes if entry.preset else "",
            warnings=entry.warnings,
            problem=problem_of(entry),
        )


def problem_of(entry: PresetEntry) -> str:
    """Why a file is no preset, naming it as the list does: the folder's place says nothing to a browser."""
    return on_page(entry.problem or "").replace(str(entry.path), entry.path.name)


def list_html(own: Sequence[PresetEntry], shipped: Sequence[PresetEntry], chosen: Chosen | None) -> str:
    """Both lists; broken files stand in it with their reason."""
    marked = (chosen.kind, chosen.name) if chosen else ("", "")
    mine = "".join(_row(entry, "own", marked) for entry in own)
    if not mine:
        mine = '<li class="kt-empty">None of your own yet. Save what Create asks for, or import one.</li>'
    theirs = "".join(_row(entry, "shipped", marked) for entry in shipped)
    return (
        f'<h3 class="kt-subheading">Yours</h3><ul class="kt-presets" aria-label="Your presets">{mine}</ul>'
        f'<h3 class="kt-subheading">Shipped</h3><ul class="kt-presets" aria-label="Shipped presets">{theirs}</ul>'
    )


def _row(entry: PresetEntry, kind: str, marked: tuple[str, str]) -> str:
    title = entry.preset.title if entry.preset and entry.preset.title else entry.name
    if entry.request is None:
        second = f'<span class="kt-bad-text">invalid: {escaped(shortened(problem_of(entry), 300))}</span>'
    else:
        second = f'<span class="kt-facts">{escaped(shortened(entry.request.prompt or "no prompt", 110))}</span>'
    pressed = "true" if (kind, entry.name) == marked else "false"
    return (
        f'<li><button type="button" class="kt-preset{"" if entry.request else " kt-broken"}" data-do="open" '
        f'data-event="select" data-kind="{kind}" data-name="{escaped(entry.name)}" aria-pressed="{pressed}">'
        f'<span class="kt-name">{escaped(shortened(title, 90))}</span>{second}</button></li>'
    )


NOTHING_CHOSEN = (
    '<p class="kt-empty kt-nothing">Choose a preset to see what it asks for and what differs on this machine. '
    "Nothing runs before you press Generate on Create.</p>"
)


def chosen_html(chosen: Chosen | None, code: str = "") -> str:
    """One preset: title, notes, what it asks for, what differs here, and what can be done with it."""
    if chosen is None:
        return NOTHING_CHOSEN
    parts = [f'<h3 class="kt-title">{escaped(shortened(chosen.title, 200))}</h3>']
    if chosen.kind == "import":
        parts.append(f'<p class="kt-quiet">From {escaped(chosen.origin)}; it is not kept yet.</p>')
    if chosen.notes:
        parts.append(f'<p class="kt-notes">{escaped(shortened(chosen.notes, 2000))}</p>')
    if chosen.request is None:
        parts.append(sentences_html([f"This file is no valid preset: {chosen.problem}"], "bad"))
        parts.append(f'<div class="kt-buttons">{_delete(chosen)}</div>')
        return _article(chosen, parts)
    parts.append(f'<p class="kt-prompt">{escaped(chosen.request.prompt or "No prompt: anything may come.")}</p>')
    parts.append(_settings(chosen.request))
    parts.append(_differences(chosen))
    parts.append(f'<div class="kt-buttons">{"".join(_buttons(chosen))}</div>')
    if code:
        parts.append(
            '<label class="kt-code-label">Share code <textarea class="kt-code" readonly rows="3" '
            f'onfocus="this.select()">{escaped(code)}</textarea></label>'
        )
    return _article(chosen, parts)


def _article(chosen: Chosen, parts: list[str]) -> str:
    known = (
        f'data-key="{escaped(chosen.kind)} {escaped(chosen.name)}" aria-label="{escaped(shortened(chosen.title, 100))}"'
    )
    return f'<article class="kt-chosen" {known}>{"".join(parts)}</article>'


def _settings(request: GenerationRequest) -> str:
    """What the preset says itself; the rest is the model's default."""
    said = {
        key: value for key, value in canonical(request).items() if key not in ("kinetile", "prompt", "loras", "accel")
    }
    said["model"] = _model(request.model)
    rows = [(name.replace("_", " "), str(value)) for name, value in said.items()]
    rows += [("LoRA", f"{lora.name} × {lora.weight:g}") for lora in request.loras]
    rows += in_words(request.accel)
    items = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(shortened(text, 300))}</dd>" for name, text in rows)
    return f'<dl class="kt-table">{items}</dl>'


def _model(name: str) -> str:
    try:
        return family_for(name).title
    except UsageError:
        return name


def _differences(chosen: Chosen) -> str:
    here = chosen.here
    if here is None:
        return '<p class="kt-here kt-quiet" role="status">Looking at what this machine makes of it …</p>'
    said = [*chosen.warnings, *here.differences]
    engaged = f" Accelerators: {escaped(here.engaged)}." if here.engaged else ""
    if not said:
        return f'<p class="kt-here" role="status">Nothing differs on this machine.{engaged}</p>'
    heading = "On this machine" if here.runs else "On this machine no clip can be made of it yet"
    return (
        f'<div class="kt-here" role="status"><h4 class="kt-subheading">{heading}</h4>'
        f"{sentences_html(said, 'note' if here.runs else 'bad')}"
        + (f'<p class="kt-quiet">{engaged.strip()}</p>' if engaged else "")
        + "</div>"
    )


def _buttons(chosen: Chosen) -> list[str]:
    known: dict[str, Any] = {"kind": chosen.kind, "name": chosen.name}
    waits = chosen.here is None
    label = "Use these settings" + (", as said above" if chosen.here and chosen.here.differences else "")
    buttons = [button(label, "apply", "", "strong", waits, event="apply", **known)]
    if chosen.kind == "import":
        buttons.append(button("Keep as a preset", "keep", "", **known))
    buttons.append(button("Share code", "share", "Show it as a share code", **known))
    if chosen.request is not None:
        buttons.append(_export(Preset.of(chosen.request, chosen.title, chosen.notes)))
    if chosen.kind == "own":
        buttons.append(_delete(chosen))
    return buttons


def _export(preset: Preset) -> str:
    """A link that holds the whole file: nothing is written on the server for it."""
    data = base64.b64encode((dumps(preset.data(), indent=2) + "\n").encode()).decode()
    name = f"{slug(preset.title)}.json"
    return (
        f'<a class="kt-do" download="{escaped(name)}" href="data:application/json;base64,{data}">Export as a file</a>'
    )


def _delete(chosen: Chosen) -> str:
    if chosen.kind != "own":
        return ""
    return button("Delete", "delete", f"Delete the preset {chosen.title}", name=chosen.name)
