"""Open the database and bring it to this version: numbered SQL files in `migrations/`, each applied once, in order.

Every migration runs in one transaction together with the note that it ran, after a copy of the file was put aside.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from app.errors import CannotRunError
from app.queue.trouble import explained

MIGRATIONS = Path(__file__).with_name("migrations")


def open_database(path: Path, migrations: Path = MIGRATIONS) -> sqlite3.Connection:
    """A connection to the database at `path`, made or migrated as needed; usable from several threads under a lock.

    Raises CannotRunError when the file is damaged, from a newer version or can't be used.
    """
    try:
        try:
            return _opened(path, migrations, "NORMAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                raise
            # On some network drives processes can share no memory, which the log needs unless one has all to itself.
            return _opened(path, migrations, "EXCLUSIVE")
    except sqlite3.Error as error:
        raise explained(error, path) from error


def _opened(path: Path, migrations: Path, locking: str) -> sqlite3.Connection:
    base = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    base.text_factory = lambda text: text.decode(errors="replace")  # one broken row must not hide the others
    try:
        base.execute(f"PRAGMA locking_mode = {locking}")
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA synchronous = FULL")  # a queued job also survives a power cut
        base.execute("PRAGMA foreign_keys = ON")
        _migrate(base, path, numbered(migrations))
    except BaseException:
        base.close()
        raise
    return base


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """The migrations in `folder`, (number, file), from 1 without a gap."""
    found = sorted((int(path.name[:3]), path) for path in folder.glob("*.sql") if re.match(r"\d{3}_", path.name))
    if [number for number, _ in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations in {folder} are not numbered from 1 without a gap")
    return found


def _migrate(base: sqlite3.Connection, path: Path, migrations: list[tuple[int, Path]]) -> None:
    version = base.execute("PRAGMA user_version").fetchone()[0]
    newest = len(migrations)
    if version > newest:
        raise CannotRunError(
            f"The queue's database {path} was written by a newer Kinetile (version {version}, this one knows "
            f"{newest}): update Kinetile, or choose another data folder with --home DIR."
        )
    if 0 < version < newest:
        _keep_copy(base, path.with_name(f"{path.name}.v{version}"))
    for number, file in migrations[version:]:
        # executescript commits first, so the transaction is part of the script; user_version is stored with it.
        base.executescript(
            f"BEGIN IMMEDIATE;\n{file.read_text(encoding='utf-8')}\nPRAGMA user_version = {number};\nCOMMIT;"
        )


def _keep_copy(base: sqlite3.Connection, copy: Path) -> None:
    copy.unlink(missing_ok=True)
    kept = sqlite3.connect(copy)
    try:
        base.backup(kept)
    finally:
        kept.close()
