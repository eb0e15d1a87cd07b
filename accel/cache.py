"""Remembers what the child runs said, in accel's own cache folder, so that only a machine's first start pays for them.

A record is keyed by everything that could change an answer: CPU and its claims, kernel, drivers, packages, overrides,
and the test code itself. A folder that can't be written, a broken record or one from another version is simply no
record: the runs happen again. `ACCEL_CACHE` names another folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from accel.reading import read_json

KEPT = 8
"""Records kept; the oldest go. One machine has one per environment it is used from."""


def folder() -> Path:
    """Where records lie: ACCEL_CACHE, else the user's cache folder for accel. Raises OSError when there is no such
    place."""
    chosen = os.environ.get("ACCEL_CACHE")
    if chosen:
        return Path(chosen)
    try:
        import platformdirs

        return Path(platformdirs.user_cache_dir("accel", appauthor=False)) / "proofs"
    except (ImportError, RuntimeError) as error:
        raise OSError(errno.ENOENT, f"no cache folder: {error}") from error


def key(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def load(name: str, where: Path | None = None) -> dict[str, dict[str, Any]]:
    """Remembered results by task, empty when there are none that can be trusted."""
    try:
        data = read_json((where or folder()) / f"{name}.json", finite=False)
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {task: result for task, result in data.items() if _sound(result)}


def _sound(result: Any) -> bool:
    if (
        not isinstance(result, dict)
        or not isinstance(result.get("ok"), bool)
        or not isinstance(result.get("reason"), str)
    ):
        return False
    figures = result.get("figures", {})
    numbers = isinstance(figures, dict) and all(isinstance(value, (int, float)) for value in figures.values())
    return numbers and isinstance(result.get("gpus", []), list)


def save(name: str, results: Mapping[str, Mapping[str, Any]], where: Path | None = None) -> str:
    """Writes the results that may be remembered, whole or not at all. Returns why it could not, as a sentence, else
    ""."""
    lasting = {task: result for task, result in results.items() if not result.get("again")}
    place = where
    try:
        place = place or folder()
        write(place, f"{name}.json", lasting)
    except OSError as error:
        why = f"{place or 'no cache folder'}: {error.strerror}"
        return f"the results of the hardware tests could not be kept, so each start repeats them ({why})"
    return ""


def write(place: Path, name: str, data: Any) -> None:
    """Puts `data` as JSON into `place`, whole or not at all; the oldest files beside it go. Raises OSError."""
    place.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place, suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file)
        os.replace(temporary, place / name)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    prune(place.glob("*.json"), KEPT - 1, place / name)


def prune(records: Iterable[Path], kept: int, new: Path) -> None:
    """Removes all but the `kept` newest files beside `new`, whatever the clock says of that one."""
    for old in sorted(set(records) - {new}, key=_changed, reverse=True)[kept:]:
        with suppress(OSError):
            old.unlink()


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # another process was quicker
        return 0.0
