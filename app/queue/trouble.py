"""What SQLite could not do, as one sentence with what to do about it: a full disk is only one of its troubles."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from app.errors import DatabaseError

ELSEWHERE = " (on the command line: --home DIR names another data folder)"
APART = "move it away to start with an empty queue and history; the clips that were made stay where they are"

ADVICE: dict[str, tuple[int, ...]] = {
    "free some space on the disk that holds it, and try again; what it holds is kept": (sqlite3.SQLITE_FULL,),
    f"let this user write that file and its folder{ELSEWHERE}": (
        *(sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH),
    ),
    "another program holds it: close that, and try again; what it holds is kept": (
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
    ),
    f"see that its disk is connected and sound, and try again{ELSEWHERE}": (sqlite3.SQLITE_IOERR,),
    f"the file is damaged or none of Kinetile's: put a copy of it back, or {APART}": (
        *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB),
    ),
    f"its tables are not those of this Kinetile: start the one that wrote it, or {APART}": (
        *(sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH),
    ),
}
"""By SQLite's result codes: what a person can do."""
OTHERWISE = f"start Kinetile again; if that does not help, {APART}"


def explained(error: sqlite3.Error, path: Path) -> DatabaseError:
    """The error with the file, SQLite's reason, and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says more of the same
    advice = next((text for text, codes in ADVICE.items() if code in codes), OTHERWISE)
    return DatabaseError(f"The queue's database {path} can't be used ({error}): {advice}.")
