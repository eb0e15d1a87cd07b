"""Whatever a person can hand in, as requests: a preset, a batch, a clip, a share code, or a shipped preset's name.

Presets on disk live in ``files``, codes in ``share_code``; both are reached through this package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel.advice import nearest
from app.errors import UsageError, mistakes_of, refuse_all
from app.paths import Home, read_bytes
from app.pictures import from_metadata
from app.presets.files import (
    FIRST,
    Preset,
    PresetEntry,
    check_pictures,
    load_preset,
    own_presets,
    preset_from,
    read_preset,
    rename_own,
    save_own,
    save_preset,
    shipped_presets,
)
from app.presets.share_code import MAX_CODE, decode_code, encode_code, looks_like_code
from app.request import GenerationRequest, request_from
from app.strict_json import MAX_BYTES, Document, parse, printable

MAX_BATCH_BYTES = 64 * 1024 * 1024
MAX_BATCH_LINES = 10_000
MAX_LINES = 10 * MAX_BATCH_LINES
"""Lines that a batch may have with its blank ones, each of which takes its time."""
_VIDEO = (".mp4", ".m4v", ".mov")
_BATCH = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class NamedRequest:
    """A request and where it came from.

    ``name`` is short and fit to become part of a file name, ``origin`` is how errors and summaries name it, ``folder``
    is where its pictures lie (None: it can have none), ``metadata`` is the whole record of the clip it was read from,
    ``pictures`` are the contents of those that the clip carries, by the request's field.
    """

    name: str
    request: GenerationRequest
    origin: str
    title: str = ""
    folder: Path | None = None
    warnings: tuple[str, ...] = ()
    metadata: Mapping[str, Any] | None = None
    pictures: Mapping[str, bytes] = field(default_factory=dict)


def read_source(text: str, home: Home | None = None) -> list[NamedRequest]:
    """The requests in a PRESET, JSONL or MP4 file, a share CODE, or a shipped (with ``home``: or own) preset's name.

    Raises UsageError naming file and line, or saying what is possible, for every mistake.
    """
    found = list(read_each(text, home))
    refuse_all([one for one in found if isinstance(one, UsageError)])
    return [one for one in found if isinstance(one, NamedRequest)]


def read_each(text: str, home: Home | None = None) -> Iterator[NamedRequest | UsageError]:
    """As read_source, with the mistakes of a batch's lines in the places of what can't be read; for all else it raises
    UsageError, too.
    """
    path = _existing(text)
    if path is not None:
        yield from _from_file(path)
        return
    if looks_like_code(text):
        yield _from_code(text, "share code")
        return
    name = text.strip().removesuffix(".json")
    entries = (*shipped_presets(), *(own_presets(home) if home else ()))
    named = next((entry for entry in entries if entry.name == name), None) or _titled(entries, name)
    if named is None:
        raise UsageError(_nothing(text, [entry.name for entry in entries]))
    yield from _from_file(named.path)


def _titled(entries: Sequence[PresetEntry], title: str) -> PresetEntry | None:
    """The one preset that the page shows under this title."""
    meant = title.casefold()
    found = [entry for entry in entries if entry.preset is not None and entry.preset.title.casefold() == meant]
    return found[0] if len(found) == 1 else None


def _existing(text: str) -> Path | None:
    try:
        path = Path(text).expanduser()
        return path if text.strip() and os.path.lexists(path) else None
    except (OSError, ValueError, RuntimeError):
        return None


def _from_file(path: Path) -> Iterator[NamedRequest | UsageError]:
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name the files in it, for example {path / '*.json'}.")
    kind = _kind(path)
    if kind == "clip":
        yield _from_clip(path)
    elif kind == "batch":
        yield from _from_batch(path)
    elif kind == "code":
        yield _from_code(read_bytes(path, MAX_CODE).decode("utf-8", "replace"), _text(path))
    else:
        preset, request, warnings = read_preset(path)
        yield NamedRequest(_text(path.stem), request, _text(path), preset.title, path.parent, warnings)


def _kind(path: Path) -> str:
    """ "clip", "batch", "code" or "preset", by content where it is plain and by suffix otherwise."""
    head = b""
    if path.is_file():
        try:
            with path.open("rb") as file:
                head = file.read(65_536)
        except OSError as error:
            raise UsageError(f"{path} can't be read ({error.strerror}).") from error
    suffix = path.suffix.lower()
    if head[4:8] == b"ftyp" or suffix in _VIDEO:
        return "clip"
    if suffix in _BATCH:
        return "batch"
    if suffix == ".json":
        return "preset"
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if looks_like_code(text):
        return "code"
    if not text.startswith("{"):
        raise UsageError(f"{path} is neither a preset (.json), a batch (.jsonl), a clip (.mp4) nor a share code.")
    first, _, rest = text.partition("\n")
    return "batch" if first.rstrip().endswith("}") and rest.strip() else "preset"


def _from_clip(path: Path) -> NamedRequest:
    from app.video import read_metadata

    metadata = read_metadata(path)
    record = {key: metadata[key] for key in ("kinetile", "request") if key in metadata}
    _, request, warnings = preset_from(Document(str(path), record))
    carried = from_metadata(metadata, _text(path))
    return NamedRequest(_text(path.stem), request, _text(path), "", path.parent, warnings, metadata, carried)


def _from_code(text: str, origin: str) -> NamedRequest:
    request, warnings = request_from(Document(origin, decode_code(text)))
    for name in ("image", "last_image"):
        if getattr(request, name) is not None:
            raise UsageError(f"{origin}, {name}: a share code can't bring a picture; use a preset with its folder.")
    return NamedRequest("shared", request, origin, warnings=warnings)


def _from_batch(path: Path) -> Iterator[NamedRequest | UsageError]:
    """One partial request per line, or what is wrong with it; blank lines count but ask for nothing."""
    found = 0
    for number, line in _lines(path):
        found += 1
        source = f"{_text(path)}:{number}"
        if found > MAX_BATCH_LINES:
            raise UsageError(f"{source}: a batch may ask for at most {MAX_BATCH_LINES:,} requests; split the file.")
        try:
            request, warnings = request_from(parse(line, source, limit=MAX_BYTES, one_line=True))
            check_pictures(path.parent, request, f"{source}, ")
        except UsageError as error:
            yield from mistakes_of(error)
            continue
        yield NamedRequest(f"{_text(path.stem)}-{number}", request, source, "", path.parent, warnings)
    if not found:
        raise UsageError(f"{path} holds no request; write one JSON object per line.")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that hold something, with their numbers from 1, never more than one long line in memory."""
    total = number = 0
    try:
        if not path.is_file():
            raise UsageError(f"{path} is not a file.")
        with path.open("rb") as file:
            while line := file.readline(MAX_BYTES + 1):
                number, total = number + 1, total + len(line)
                if number > MAX_LINES:
                    raise UsageError(
                        f"{path}: a batch has at most {MAX_LINES:,} lines, blank ones too; split the file."
                    )
                if total > MAX_BATCH_BYTES:
                    raise UsageError(f"{path}:{number}: a batch has at most {MAX_BATCH_BYTES:,} bytes; split the file.")
                if line.strip(b"\xef\xbb\xbf \t\r\n"):
                    yield number, line
                while len(line) > MAX_BYTES and not line.endswith(b"\n"):  # the rest of a line that was refused
                    line = file.readline(MAX_BYTES + 1)
                    total += len(line)
    except OSError as error:
        raise UsageError(f"{path} can't be read ({error.strerror}).") from error


def _text(path: Path | str) -> str:
    """A path as text that JSON and a database take, also where a file's name is not UTF-8."""
    return str(path).encode("utf-8", "replace").decode()


def _nothing(text: str, names: list[str]) -> str:
    shown = printable(text if len(text) <= 200 else f"…{text[-200:]}")  # a path's end tells most
    if re.search(r"[/\\]|\.\w{2,5}$", shown):
        return (
            f"There is no file {shown!r}: name a preset (.json), a batch (.jsonl), a clip made by Kinetile (.mp4), or "
            f"an example such as {FIRST}."
        )
    told = (
        f"{shown!r} is no file, share code or preset: {nearest(shown, names, 'the folder presets and the page hold')}"
    )
    if len(shown.split()) > 1:
        told += '; to make a clip of these words, give them as its prompt (on the command line: --set "prompt=…")'
    return f"{told}."


__all__ = [
    "FIRST",
    "NamedRequest",
    "Preset",
    "PresetEntry",
    "decode_code",
    "encode_code",
    "load_preset",
    "own_presets",
    "read_source",
    "rename_own",
    "save_own",
    "save_preset",
    "shipped_presets",
]
