"""The database of every version opens, is migrated once, and is refused when it can't be understood."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from app.errors import CannotRunError
from app.queue.migrate import MIGRATIONS, numbered, open_database


def folder_with(tmp_path: Path, *texts: str) -> Path:
    folder = tmp_path / "migrations"
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts, start=1):
        (folder / f"{number:03d}_step.sql").write_text(text, encoding="utf-8")
    return folder


def version(base: sqlite3.Connection) -> int:
    return int(base.execute("PRAGMA user_version").fetchone()[0])


def test_ours_are_numbered_and_make_a_sound_database(tmp_path: Path) -> None:
    base = open_database(tmp_path / "a.sqlite3")
    assert version(base) == len(numbered(MIGRATIONS)) >= 1
    assert base.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    base.close()


def test_a_drive_on_which_processes_share_no_memory_will_do(tmp_path: Path) -> None:
    """A link to nowhere in the place of the file through which they would; untested on network drives themselves."""
    path = tmp_path / "a.sqlite3"
    (tmp_path / "a.sqlite3-shm").symlink_to(tmp_path / "nowhere" / "shm")
    for count in (1, 2):
        base = open_database(path)
        assert base.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        base.execute("INSERT INTO facts VALUES (?, '1')", (str(count),))
        assert base.execute("SELECT COUNT(*) FROM facts").fetchone() == (count,)
        base.close()


def test_each_migration_runs_once_in_order_and_the_former_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite3"
    first = folder_with(tmp_path, "CREATE TABLE t (a INTEGER);")
    base = open_database(path, first)
    base.execute("INSERT INTO t VALUES (7)")
    base.close()
    second = folder_with(tmp_path, "CREATE TABLE t (a INTEGER);", "ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 5;")
    for _ in range(2):
        base = open_database(path, second)
        assert base.execute("SELECT a, b FROM t").fetchall() == [(7, 5)]
        assert version(base) == 2
        base.close()
    kept = sqlite3.connect(tmp_path / "a.sqlite3.v1")
    assert kept.execute("SELECT * FROM t").fetchall() == [(7,)]
    kept.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite3"
    open_database(path, folder_with(tmp_path, "CREATE TABLE t (a INTEGER);")).close()
    broken = folder_with(tmp_path, "CREATE TABLE t (a INTEGER);", "CREATE TABLE u (b INTEGER);\nnonsense;")
    with pytest.raises(CannotRunError, match="can't be used"):
        open_database(path, broken)
    base = sqlite3.connect(path)
    assert version(base) == 1
    assert base.execute("SELECT name FROM sqlite_master WHERE name = 'u'").fetchall() == []
    base.close()


def test_a_newer_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite3"
    base = open_database(path)
    base.execute("PRAGMA user_version = 99")
    base.close()
    with pytest.raises(CannotRunError, match="newer Kinetile"):
        open_database(path)
    base = sqlite3.connect(path)
    assert version(base) == 99
    base.close()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 500])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.sqlite3"
    path.write_bytes(content)
    with pytest.raises(CannotRunError, match="move it away") as refused:
        open_database(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content


def test_a_gap_in_the_numbers_is_found(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "SELECT 1;")
    (folder / "003_gap.sql").write_text("SELECT 1;", encoding="utf-8")
    with pytest.raises(ValueError, match="without a gap"):
        numbered(folder)
