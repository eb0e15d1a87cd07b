"""Rows and numbers that no queue wrote: passed over or refused, while all others are made."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.errors import DatabaseError, UsageError
from app.estimate import Measured
from app.queue.jobs import JobQueue
from tests.app.queue.filled import ids, queued
from tests.app.services import spec


def test_a_row_that_can_not_be_read_holds_up_nobody(queue: JobQueue, caplog: pytest.LogCaptureFixture) -> None:
    first, second = queued(queue, 2)
    with queue._writing() as base:
        base.execute('UPDATE jobs SET spec = \'{"from": "the future"}\' WHERE id = ?', (first,))
    taken = queue.take()
    assert taken is not None
    assert taken.id == second
    assert "passed over" in caplog.text


def test_the_database_refuses_an_unknown_state(queue: JobQueue) -> None:
    queued(queue)
    with pytest.raises(DatabaseError), queue._writing() as base:
        base.execute("UPDATE jobs SET state = 'nonsense'")
    assert len(queue.waiting()) == 1


ROWS = st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5) | st.just("[" * 100_000)


@settings(deadline=None)
@given(
    st.sampled_from(["uid", "spec", "held", "place", "submitted", "started", "ended", "result", "error", "batch"]), ROWS
)
@example("spec", b"\xff")
@example("started", "yesterday")
def test_whatever_stands_in_a_row_the_others_are_made(column: str, value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(JobQueue(Path(folder) / "q.sqlite3")) as queue:
        odd, fine = ids(queue.submit([spec(Path("/x"), "odd", seed=1), spec(Path("/x"), "fine", seed=2)]))
        with contextlib.suppress(sqlite3.Error, UnicodeEncodeError, OverflowError):  # what SQLite itself refuses
            cast = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
            queue._base.execute(f"UPDATE jobs SET {column} = {cast} WHERE id = ?", (value, odd))
        found = queue.waiting()
        assert fine in ids(found)
        assert all(isinstance(job.submitted, float) for job in found)
        assert queue.history().jobs == ()
        queue.remove([fine])


def test_notes_that_can_not_be_read_are_none(queue: JobQueue) -> None:
    queue.set_fact("preferences", {"vae": "stock"})
    queue._base.execute("UPDATE facts SET value = '{'")
    assert queue.fact("preferences") is None
    queue.measure(Measured("starter", "e", 64, 64, 5, 2, 4, {"total": 1.0}))
    queue.measure(Measured("starter", "e", 64, 64, 5, 3, 6, {"total": 2.0}))
    queue._base.execute("UPDATE measured SET timings = '{', memory = 'x' WHERE steps = 2")
    assert [one.steps for one in queue.measured("starter")] == [3]
    queue._base.execute("UPDATE measured SET width = 'x', timings = '{}' WHERE steps = 3")
    assert queue.measured("starter") == ()


@pytest.mark.parametrize("number", [2**63, -(2**70), 10**400])
def test_a_number_that_no_job_can_have_is_refused(queue: JobQueue, number: int) -> None:
    queue.submit([spec(Path("/x"), "a", seed=1)])
    for ask in (
        lambda: queue.get([number]),
        lambda: queue.move(1, number),
        lambda: queue.history(offset=number),
        lambda: queue.hold([number]),
    ):
        with contextlib.suppress(UsageError):
            ask()
    assert len(queue.waiting()) == 1
    with pytest.raises(UsageError, match="larger than any in the queue"):
        queue.get([number])
