"""Each trouble of SQLite's has its own advice, made by the trouble itself where a test can make it."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.errors import DatabaseError
from app.queue.jobs import JobQueue
from app.queue.trouble import ADVICE, explained
from app.worker.supervisor import ROOT
from tests.app.services import spec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kinetile.sqlite3"


@pytest.fixture
def queue(path: Path) -> Iterator[JobQueue]:
    with contextlib.closing(JobQueue(path)) as made:
        yield made


def full(queue: JobQueue, folder: Path) -> None:
    queue._base.execute("PRAGMA max_page_count = 1")
    queue.submit([spec(folder, prompt="x" * 90_000) for _ in range(20)])


def another_schema(queue: JobQueue, folder: Path) -> None:
    queue._base.execute("ALTER TABLE jobs RENAME COLUMN batch TO party")
    queue.waiting()
    queue.submit([spec(folder)])


def read_only(queue: JobQueue, folder: Path) -> None:
    queue._base.execute("PRAGMA query_only = 1")
    queue.submit([spec(folder)])


def held_by_another(queue: JobQueue, folder: Path) -> None:
    queue._base.execute("PRAGMA busy_timeout = 1")
    with contextlib.closing(sqlite3.connect(folder / "kinetile.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        queue.submit([spec(folder)])


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (full, "free some space on the disk that holds it, and try again; what it holds is kept."),
        (another_schema, "its tables are not those of this Kinetile: start the one that wrote it, or move it away"),
        (read_only, "let this user write that file and its folder (on the command line: --home DIR names another data"),
        (held_by_another, "another program holds it: close that, and try again"),
    ],
)
def test_what_is_wrong_decides_what_to_do(
    queue: JobQueue, path: Path, make: Callable[[JobQueue, Path], None], advice: str
) -> None:
    with pytest.raises(DatabaseError) as told:
        make(queue, path.parent)
    assert str(path) in str(told.value)
    assert advice in str(told.value)
    assert ("free some space" in str(told.value)) == (make is full)


def test_a_file_that_is_none_of_ours_is_not_a_full_disk(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(DatabaseError, match=r"damaged or none of Kinetile's: .* the clips that were made stay where"):
        JobQueue(path)


def test_each_code_has_one_advice_and_what_is_rare_has_one_too() -> None:
    codes = [code for some in ADVICE.values() for code in some]
    assert len(codes) == len(set(codes))
    more = sqlite3.OperationalError("disk I/O error")
    more.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    assert "see that its disk is connected" in str(explained(more, Path("q")))
    assert "start Kinetile again" in str(explained(sqlite3.ProgrammingError("closed"), Path("q")))


def test_the_command_line_says_it_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "kinetile.sqlite3"
    JobQueue(path).close()
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("ALTER TABLE jobs RENAME COLUMN state TO status")
    command = [sys.executable, "-m", "app.cli", "--resume", "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 3
    (line,) = done.stderr.splitlines()
    assert f"{path} can't be used (no such column: state): its tables are not those of this Kinetile" in line
