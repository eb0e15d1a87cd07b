"""Own presets that were deleted a moment ago: put aside, so that they can come back, and cleared away later.

A deleted preset stays in its folder under a hidden name, which no list shows; a page that is closed meanwhile loses
nothing.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from dataclasses import dataclass

from app.errors import CannotRunError, UsageError
from app.paths import Home
from app.presets.files import own_path

KEPT_SECONDS = 3600
"""How long a deleted preset can be brought back at least; the page offers it for ten seconds, an endpoint may later."""
_TOKEN = re.compile(r"[0-9a-f]{16}")
"""It begins with the time of the deletion, since no time that a file system keeps tells that on every system."""
_PREFIX = ".deleted-"


@dataclass(frozen=True)
class Deleted:
    """A preset that was put aside: its name, and what brings it back."""

    name: str
    token: str


def put_aside(home: Home, name: str) -> Deleted:
    """Delete an own preset, broken ones too. Raises UsageError if there is none, CannotRunError if the disk refuses."""
    path = own_path(home, name)
    token = f"{int(time.time()):08x}{secrets.token_hex(4)}"
    try:
        path.rename(path.with_name(f"{_PREFIX}{token}-{path.name}"))
    except OSError as error:
        raise CannotRunError(f"{path.name} can't be deleted ({error.strerror}).") from error
    clear(home, time.time() - KEPT_SECONDS)
    return Deleted(path.stem, token)


def bring_back(home: Home, token: str) -> str:
    """Undo `put_aside`; returns the preset's name. Raises UsageError when it is too late or its name is taken."""
    found = list(home.presets.glob(f"{_PREFIX}{token}-*.json")) if _TOKEN.fullmatch(token) else []
    if not found:
        raise UsageError("It is too late to bring that preset back: it was removed for good.")
    hidden = found[0]
    path = hidden.with_name(hidden.name.removeprefix(f"{_PREFIX}{token}-"))
    if path.exists():
        raise UsageError(f"Another preset is named {path.stem!r} by now; rename that one first.")
    try:
        hidden.rename(path)
    except OSError as error:
        raise CannotRunError(f"{path.name} can't be brought back ({error.strerror}).") from error
    return path.stem


def clear(home: Home, before: float) -> None:
    """Remove for good what was put aside before that time (seconds since 1970)."""
    for hidden in home.presets.glob(f"{_PREFIX}*.json"):
        with contextlib.suppress(OSError, ValueError):  # ValueError: a name that is not of our making stays
            if int(hidden.name.removeprefix(_PREFIX)[:8], 16) < before:
                hidden.unlink()


__all__ = ["KEPT_SECONDS", "Deleted", "bring_back", "clear", "put_aside"]
