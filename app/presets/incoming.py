"""What a person hands to the page, an uploaded file or pasted text, as one request.

A batch reads its sources with `app.presets.read_source`, which opens whatever path it is given. Here pasted text is
never taken for a path, and errors name an upload as the person knows it, never by its place on this machine.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from app.errors import KinetileError, UsageError
from app.presets import NamedRequest, read_source
from app.presets.files import preset_from
from app.presets.share_code import MAX_CODE, decode_code, looks_like_code
from app.request import request_from
from app.strict_json import Document, parse, short

MAX_UPLOAD_BYTES = 512 * 1024 * 1024
"""Largest upload that is read: a clip of minutes; a preset is far smaller and has its own limit."""
_PICTURES = ("image", "last_image")
_BATCH = (".jsonl", ".ndjson")


def from_text(text: str) -> NamedRequest:
    """The request in a pasted share code or preset (JSON). Raises UsageError."""
    if not text.strip():
        raise UsageError("Nothing was pasted; paste a share code (KT1-…) or the text of a preset.")
    if len(text) > MAX_CODE:
        raise UsageError(f"The pasted text has {len(text):,} characters, at most {MAX_CODE:,} are read.")
    if looks_like_code(text):
        request, warnings = request_from(Document("The share code", decode_code(text)))
        found = NamedRequest("shared", request, "a share code", warnings=warnings)
    elif text.lstrip("\ufeff \t\r\n").startswith("{"):
        preset, request, warnings = preset_from(_with_envelope(parse(text, "The pasted preset")))
        found = NamedRequest("pasted", request, "a pasted preset", preset.title, warnings=warnings)
    else:
        raise UsageError(
            "The pasted text is neither a share code (KT1-…) nor a preset ({…}); paste one of them, whole."
        )
    return _without_pictures(found, "Pasted text")


def from_upload(path: Path, name: str = "") -> NamedRequest:
    """The request in an uploaded preset, clip, code or batch of one. `path` must be one that the server itself gave.

    Raises UsageError, naming the file by `name` (else its own name).
    """
    known = name or path.name
    try:
        if path.stat().st_size > MAX_UPLOAD_BYTES:
            limit = MAX_UPLOAD_BYTES // (1024 * 1024)
            raise UsageError(f"{known} is larger than {limit:,} MiB; no preset or clip of Kinetile is.")
        if path.suffix.lower() in _BATCH and (count := _lines_in(path)) > 1:
            raise _batch(known, count)  # whatever its lines are
        found = read_source(str(path))
    except OSError as error:
        raise UsageError(f"{known} can't be read ({error.strerror or error}); upload it again.") from error
    except KinetileError as error:
        raise type(error)(str(error).replace(str(path), known).replace(str(path.parent), "its folder")) from error
    if len(found) > 1:
        raise _batch(known, len(found))
    (one,) = found
    return _without_pictures(replace(one, name=Path(known).stem, origin=known, folder=None), known)


def _batch(known: str, count: int) -> UsageError:
    return UsageError(
        f"The page takes one preset at a time, and {known} is a batch of {count:,} requests; bring one of its lines as "
        "a file of its own (on the command line: python launch.py --headless FILE)."
    )


def _lines_in(path: Path) -> int:
    """How many lines of a file ask for something."""
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def _with_envelope(document: Document) -> Document:
    """A bare request is taken as well: it is what a line of a batch looks like."""
    value = document.value
    if isinstance(value, dict) and "request" not in value and "prompt" in value:
        return Document(document.source, {"kinetile": value.get("kinetile", 1), "request": value})
    return document


def _without_pictures(found: NamedRequest, what: str) -> NamedRequest:
    """`found` itself. Raises UsageError for a picture that did not come along: only a clip carries its own."""
    for name in _PICTURES:
        held = getattr(found.request, name)
        if held is not None and name not in found.pictures:
            raise UsageError(
                f"{what}, {name}: a picture lies beside its preset and can't come along; take {short(held)} out of the "
                "preset, and choose the picture on Create."
            )
    return found


__all__ = ["MAX_UPLOAD_BYTES", "from_text", "from_upload"]
