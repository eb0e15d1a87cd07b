"""What has ended: removed and brought back, searched, paged, found by its key, and what it took."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.errors import UsageError
from app.estimate import Measured
from app.queue.jobs import JobQueue, JobState
from tests.app.queue.filled import finished, ids, queued
from tests.app.services import spec


def test_a_removal_can_be_undone_until_it_is_purged(queue: JobQueue) -> None:
    (done,) = finished(queue)
    first, second = queued(queue, 2)
    removal = queue.remove([first, done])
    assert ids(queue.waiting()) == [second]
    assert queue.history().total == 0
    assert queue.get([first])[0].removed
    queue.undo(removal)
    assert ids(queue.waiting()) == [first, second]
    assert queue.history().total == 1
    with pytest.raises(UsageError, match="too late"):
        queue.undo(removal)
    removal = queue.remove([done])
    assert queue.purge(time.time() - 60) == ()
    assert ids(queue.purge(time.time() + 1)) == [done]
    with pytest.raises(UsageError, match="too late"):
        queue.undo(removal)


def test_history_is_searched_by_words_in_any_case_and_paged(queue: JobQueue) -> None:
    finished(queue, 3, "A Red BALL")
    finished(queue, 2, "Ein großes Haus 100%_")
    assert queue.history().total == 5
    assert queue.history("red ball").total == 3
    assert queue.history("ball  RED").total == 3
    assert queue.history("GROSSES").total == 2, "ß is ss where case does not count"
    assert queue.history("100%_").total == 2, "no wildcards"
    assert queue.history("red haus").total == 0
    newest = queue.history(limit=2)
    older = queue.history(offset=2, limit=2)
    assert ids(newest.jobs) == [5, 4]
    assert ids(older.jobs) == [3, 2]
    assert newest.total == 5
    failed: tuple[JobState, ...] = ("failed",)
    assert queue.history(states=failed).total == 0


def test_ten_thousand_clips_stay_quick_to_page(queue: JobQueue) -> None:
    (first,) = finished(queue)
    with queue._writing() as base:
        columns = "state, held, place, batch, key, words, spec, result, submitted, started, ended, turn"
        base.executemany(
            f"INSERT INTO jobs (uid, {columns}) SELECT ?, {columns} FROM jobs WHERE id = ?",
            [(f"uid{i}", first) for i in range(10_000)],
        )
    begun = time.process_time()
    assert queue.history("red", offset=9_000, limit=50).total == 10_001
    print(f"one page of 10,001 clips, searched: {time.process_time() - begun:.4f} s of CPU")
    plan = queue._base.execute(
        "EXPLAIN QUERY PLAN SELECT id FROM jobs WHERE ended IS NOT NULL AND deleted IS NULL ORDER BY turn DESC"
    ).fetchall()
    assert any("jobs_turn" in str(row) for row in plan), plan
    assert not any("TEMP B-TREE" in str(row) for row in plan), plan


def test_known_prefers_what_is_done(queue: JobQueue) -> None:
    finished(queue, 1, key="k:0/1")
    queue.submit([spec(Path("/x"), key="k:0/1"), spec(Path("/x"), key="k:1/2"), spec(Path("/x"))])
    found = queue.known(["k:0/1", "k:1/2", "", "k:9/9"])
    assert {key: job.state for key, job in found.items()} == {"k:0/1": "done", "k:1/2": "queued"}


def test_facts_and_measurements_are_kept(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert queue.fact("x") is None
    queue.set_fact("x", {"a": [1, None]})
    queue.set_fact("x", {"a": [2]})
    assert queue.fact("x") == {"a": [2]}
    one = Measured("starter", "e", 64, 64, 5, 2, 4, {"denoise": 1.5}, 1000)
    queue.measure(one)
    assert queue.measured("starter") == (one,)
    assert queue.measured("other") == ()
    monkeypatch.setattr("app.queue.jobs.MEASURED_KEPT", 6)
    for _ in range(9):
        queue.measure(one)
    assert len(queue.measured("starter")) == 6
