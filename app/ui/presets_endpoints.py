"""Presets for programs: one named endpoint per action, plain data in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.errors import UsageError
from app.paths import Home
from app.pictures import adopt
from app.presets import NamedRequest, encode_code, own_presets, rename_own, save_own, shipped_presets
from app.presets.bin import bring_back, put_aside
from app.presets.files import Preset, PresetEntry
from app.presets.incoming import from_text, from_upload
from app.presets.portability import here
from app.request import GenerationRequest, canonical, parse_request
from app.ui.context import Context
from app.ui.endpoints import add_endpoints


def add(context: Context) -> None:
    """Register the endpoints on the page that is being built."""
    home = context.home

    def presets() -> dict[str, Any]:
        """Your own presets and the shipped ones; a broken file has its problem instead of a request."""
        return {
            "own": [_entry(entry, home) for entry in own_presets(home)],
            "shipped": [_entry(entry, home) for entry in shipped_presets()],
        }

    def preset_save(title: str, request: dict[str, Any], notes: str = "", overwrite: bool = False) -> dict[str, Any]:
        """Keep a request as a preset of your own."""
        path = save_own(home, Preset.of(parse_request(request, "request"), title, notes), overwrite=overwrite)
        return {"name": path.stem}

    def preset_rename(name: str, title: str) -> dict[str, Any]:
        """Give a preset of yours another title and file name."""
        return {"name": rename_own(home, name, title).stem}

    def preset_delete(name: str) -> dict[str, Any]:
        """Delete a preset of yours. Returns what `preset_undo` takes."""
        return {"token": put_aside(home, name).token}

    def preset_undo(token: str) -> dict[str, Any]:
        """Bring a deleted preset back; possible for an hour."""
        return {"name": bring_back(home, token)}

    def preset_import_text(text: str) -> dict[str, Any]:
        """The request in a share code or in a preset's text, and what of it differs on this machine. Runs nothing."""
        return imported(from_text(text))

    def preset_import_file(path: str) -> dict[str, Any]:
        """As preset_import_text, of an uploaded preset or clip (upload it to /gradio_api/upload first)."""
        return imported(from_upload(context.open_path(path)))

    def preset_code(request: dict[str, Any]) -> str:
        """A request as a share code."""
        return encode_code(parse_request(request, "request"))

    def preset_check(request: dict[str, Any]) -> dict[str, Any]:
        """What of a request differs on this machine, what is engaged there, and the request that can be applied."""
        return checked(parse_request(request, "request"), None)

    def imported(found: NamedRequest) -> dict[str, Any]:
        plan = (found.metadata or {}).get("plan")
        request = adopt(found.request, home, found.folder, found.pictures)
        return {
            "title": found.title,
            "request": canonical(request),
            "warnings": list(found.warnings),
            "here": checked(request, plan if isinstance(plan, Mapping) else None),
        }

    def checked(request: GenerationRequest, recorded: Mapping[str, Any] | None) -> dict[str, Any]:
        found = here(request, home, context.service, recorded)
        return {
            "request": canonical(found.request),
            "differences": list(found.differences),
            "engaged": found.engaged,
            "runs": found.runs,
        }

    add_endpoints(
        presets,
        preset_save,
        preset_rename,
        preset_delete,
        preset_undo,
        preset_import_text,
        preset_import_file,
        preset_code,
        preset_check,
    )


def _entry(entry: PresetEntry, home: Home) -> dict[str, Any]:
    if entry.preset is None or entry.request is None:
        return {"name": entry.name, "problem": entry.problem or ""}
    try:
        request = adopt(entry.request, home, entry.path.parent)
    except UsageError as error:
        return {"name": entry.name, "problem": str(error)}
    return {
        "name": entry.name,
        "title": entry.preset.title,
        "notes": entry.preset.notes,
        "request": canonical(request),
    }
