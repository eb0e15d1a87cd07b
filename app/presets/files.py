"""Presets on disk: the ones we ship, and the person's own.

    {"kinetile": 1, "title": "…", "notes": "…", "request": {"prompt": "…", "steps": 12}}

A preset is data: a title, notes and part of a request. It can't name an output file or folder. A broken file never
stops anything: it is listed with its reason.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from app.errors import CannotRunError, KinetileError, NameTakenError, UsageError, refuse_all
from app.paths import Home, inside, read_bytes, relative_name, slug
from app.request import Data, GenerationRequest, Text, canonical, request_from
from app.strict_json import MAX_BYTES, Document, dumps, parse
from app.validation import VERSION, check, version_of
from app.video.outputs import place

SHIPPED = Path(__file__).resolve().parents[2] / "presets"
FIRST = "starter-rocket"
"""The shipped preset that comes first, and that runs when nothing is named."""
MAX_LISTED = 2000
"""Most files of one folder that are read for a list."""

_RECORD = {"adjustments", "asked", "plan", "report", "timings", "versions"}
"""What stands beside "request" in the record of a finished clip, which reads as a preset too."""
_SETTINGS = GenerationRequest.model_fields.keys() - {"kinetile"}
"""What belongs into "request" and not beside it."""


class _Envelope(Data):
    """The outer object of a preset file; the request inside is checked by itself."""

    kinetile: Literal[1] = 1
    title: Text = Field(default="", max_length=200)
    notes: Text = Field(default="", max_length=20_000)
    request: dict[str, Any]


@dataclass(frozen=True)
class Preset:
    """A title, notes and a partial request, as the file says them (``extra``: keys of a newer version, kept)."""

    title: str = ""
    notes: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, request: GenerationRequest, title: str = "", notes: str = "") -> Preset:
        """A preset that asks for what ``request`` asks for, leaving the model's defaults open."""
        data = canonical(request)
        del data["kinetile"]
        return cls(title, notes, data)

    def data(self) -> dict[str, Any]:
        """The preset as it stands in a file."""
        parts = {"title": self.title, "notes": self.notes}
        said = {name: text for name, text in parts.items() if text}
        return {"kinetile": self.version, **said, **self.extra, "request": dict(self.request)}


@dataclass(frozen=True)
class PresetEntry:
    """A preset file in a list: either ``preset`` and ``request`` are there, or ``problem`` says why not."""

    name: str
    path: Path
    preset: Preset | None = None
    request: GenerationRequest | None = None
    problem: str | None = None
    warnings: tuple[str, ...] = ()


def load_preset(path: Path | str) -> Preset:
    """The preset in a file, its request checked.

    Raises UsageError naming the file, line and key for whatever is wrong.
    """
    return read_preset(Path(path))[0]


def read_preset(path: Path) -> tuple[Preset, GenerationRequest, tuple[str, ...]]:
    """The preset in a file, the request it asks for, and warnings. Raises UsageError as load_preset does."""
    preset, request, warnings = preset_from(parse(read_bytes(path, MAX_BYTES), str(path)))
    check_pictures(path.parent, request, f"{path}, request.")
    return preset, request, warnings


def check_pictures(folder: Path, request: GenerationRequest, where: str) -> None:
    """Raise UsageError for each picture of the request that does not lie in `folder`. where: before the field."""
    wrong: list[UsageError] = []
    for name in ("image", "last_image"):
        try:
            if getattr(request, name) is not None:
                picture(folder, getattr(request, name), f"{where}{name}")
        except UsageError as error:
            wrong.append(error)
    refuse_all(wrong)


def picture(folder: Path, name: str, where: str) -> Path:
    """The picture ``name`` of a preset in ``folder``. Raises UsageError, naming ``where``, unless it lies inside."""
    try:
        return inside(folder, name)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def preset_from(document: Document) -> tuple[Preset, GenerationRequest, tuple[str, ...]]:
    """As read_preset, from a parsed document."""
    version = version_of(document, (), ("request",))
    value, wrong = _envelope_in(document, version)
    try:
        envelope, outer = check(_Envelope, replace(document, value=value), newer=version > VERSION)
    except UsageError as error:
        wrong.append(error)
    if not isinstance(value, Mapping) or not isinstance(value.get("request"), Mapping):
        refuse_all(wrong)  # there is no request to look into
    try:
        request, inner = request_from(document, ("request",))
    except UsageError as error:
        wrong.append(error)
    refuse_all(wrong)
    extra = {key: item for key, item in value.items() if key not in _Envelope.model_fields}
    preset = Preset(envelope.title, envelope.notes, envelope.request, version, extra)
    return preset, request, outer + inner


def _envelope_in(document: Document, version: int) -> tuple[Any, list[UsageError]]:
    """The outer object as this version takes it, without settings that belong into its request: those are wrong."""
    value = document.value
    if not isinstance(value, dict):
        return value, []
    if "request" in value and _RECORD & value.keys():
        value = {key: value[key] for key in ("kinetile", "request") if key in value}
    if version > VERSION:
        value = {**value, "kinetile": VERSION}
    stray = [key for key in value if key in _SETTINGS]
    if stray:
        value = {"request": {}, **{key: item for key, item in value.items() if key not in stray}}
    return value, [
        UsageError(
            f'{document.place((key,), key=True)}, {key}: this belongs inside "request"; '
            f'write {{"request": {{"{key}": ...}}}}.'
        )
        for key in stray
    ]


def save_preset(preset: Preset, path: Path | str, overwrite: bool = False) -> Path:
    """Write a preset to a file, whole or not at all; returns the path.

    Raises UsageError if the preset is not valid, too long, or the file exists and ``overwrite`` is not set;
    CannotRunError if the disk refuses.
    """
    path = Path(path)
    try:
        text = dumps(preset.data(), indent=2) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"The preset {preset.title[:80]!r} holds something that JSON can't ({error}).") from error
    preset_from(parse(text, str(path)))
    taken = UsageError(f"{path} exists already; choose another name, or ask to overwrite it.")
    if not overwrite and path.exists():
        raise taken
    try:
        _write(path, text.encode("utf-8"), overwrite)
    except FileExistsError:
        raise taken from None
    except (OSError, ValueError) as error:
        raise CannotRunError(f"{path} can't be written ({error}); choose another folder or free some space.") from error
    return path


def shipped_presets() -> tuple[PresetEntry, ...]:
    """The presets that come with Kinetile, FIRST first, the others by name."""
    return tuple(sorted(_entries(SHIPPED), key=lambda entry: (entry.name != FIRST, entry.name)))


def own_presets(home: Home) -> tuple[PresetEntry, ...]:
    """The person's own presets by title; broken files come last, with their problem. Raises CannotRunError only."""
    entries = _entries(home.root / "presets")  # looking makes no folder
    return tuple(
        sorted(entries, key=lambda e: (e.preset is None, e.preset.title.casefold() if e.preset else "", e.name))
    )


def save_own(home: Home, preset: Preset, name: str = "", overwrite: bool = False) -> Path:
    """Keep a preset under ``name`` (else its title), with its pictures, which are those kept in ``home``. Raises as
    save_preset does, NameTakenError for a name that another has.
    """
    path = home.presets / f"{slug(name or preset.title)}.json"
    if not overwrite:
        _refuse_taken(path)
    preset = replace(preset, request={**preset.request, **_brought(home, preset.request)})
    return save_preset(preset, path, overwrite)


def _refuse_taken(path: Path) -> None:
    if path.exists():
        raise NameTakenError(
            f"A preset of yours is called {path.stem!r} already; choose another title or overwrite it."
        )


def _brought(home: Home, request: Mapping[str, Any]) -> dict[str, str]:
    """The names of the request's pictures beside the own presets, where they are copied to."""
    found: dict[str, str] = {}
    for name in ("image", "last_image"):
        if not isinstance(kept := request.get(name), str):
            continue
        source = picture(home.root / "pictures", kept, name)
        folder = home.presets / "pictures"
        try:
            folder.mkdir(exist_ok=True)
            if not (folder / source.name).exists():
                _write(folder / source.name, source.read_bytes(), overwrite=True)
        except OSError as error:
            raise CannotRunError(f"{folder} can't be written ({error.strerror}); free some space.") from error
        found[name] = f"pictures/{source.name}"
    return found


def rename_own(home: Home, name: str, title: str) -> Path:
    """Give an own preset another title and file name.

    Raises UsageError if it is missing or broken, NameTakenError for a name that another has, CannotRunError if the disk
    refuses.
    """
    old = own_path(home, name)
    preset = replace(load_preset(old), title=title)
    new = home.presets / f"{slug(title)}.json"
    same = new.exists() and new.samefile(old)  # also where the system takes Ball and ball for one name
    if not same:
        _refuse_taken(new)
    save_preset(preset, new, overwrite=same)
    if not same:
        old.unlink(missing_ok=True)
    return new


def own_path(home: Home, name: str) -> Path:
    """The file of the own preset ``name``. Raises UsageError if there is none."""
    try:
        relative = relative_name(name.removesuffix(".json") + ".json")
        path = home.root / "presets" / relative
        if "/" in relative or not (path.is_file() or path.is_symlink()):
            raise ValueError("is not there")
    except ValueError as error:
        raise UsageError(f"No preset of yours is named {name[:80]!r}: it {error}.") from error
    return path


def _entries(folder: Path) -> list[PresetEntry]:
    try:
        files = sorted(p for p in folder.glob("*.json") if not p.name.startswith("."))[:MAX_LISTED]
    except OSError as error:
        raise CannotRunError(f"{folder} can't be listed ({error.strerror}).") from error
    return [_entry(path) for path in files]


def _entry(path: Path) -> PresetEntry:
    try:
        preset, request, warnings = read_preset(path)
    except KinetileError as error:
        return PresetEntry(path.stem, path, problem=str(error))
    return PresetEntry(path.stem, path, preset, request, warnings=warnings)


def _write(path: Path, data: bytes, overwrite: bool) -> None:
    handle, name = tempfile.mkstemp(prefix=".", suffix=".partial", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(temporary, path)
        else:
            place(temporary, path)  # of two writers at the same moment one is refused
    finally:
        temporary.unlink(missing_ok=True)
