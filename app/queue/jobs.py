"""The queue: every clip that was asked for, in order, and what became of it; one SQLite file, safe against kill -9.

A job is `queued`, then `running`, then exactly one of `done`, `failed` (it could not be made, or the worker died of
it), `cancelled` (a person stopped it) and `crashed` (Kinetile itself was killed meanwhile). A held job stays queued and
is passed over until released. What a person removes can be brought back with `undo` until `purge`.

One process owns the queue (see `app.queue.service`); within it every method may be called from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.errors import CannotRunError, UsageError
from app.estimate import Measured
from app.job_types import ENDED, History, Job, JobError, JobResult, JobSpec, JobState, Removal
from app.plain import from_data, from_json, to_json
from app.queue.migrate import open_database
from app.queue.trouble import explained

_log = logging.getLogger("kinetile.jobs")

MEASURED_KEPT = 2000
_NEXT_TURN = "(SELECT COALESCE(MAX(turn), 0) + 1 FROM jobs)"


class JobQueue:
    """The jobs in the database at `path`. Raises CannotRunError when it can't be opened.

    Methods that take ids raise UsageError for one that does not exist or is not in a fitting state; nothing is changed
    then. After `close` every method raises CannotRunError.
    """

    def __init__(self, path: Path) -> None:
        self._lock, self._path = threading.RLock(), path
        self._base = open_database(path)
        self._closed = False

    def close(self) -> None:
        """Close the database; everything is on disk already."""
        with self._lock:
            self._closed = True
            self._base.close()

    # -- what a person does --

    def submit(self, specs: Sequence[JobSpec], *, held: bool = False) -> tuple[Job, ...]:
        """Put jobs at the end of the queue, all or none."""
        with self._writing() as base:
            last = base.execute("SELECT COALESCE(MAX(place), 0) FROM jobs").fetchone()[0]
            ids = [self._insert(base, spec, last + 1 + i, held) for i, spec in enumerate(specs)]
        return self.get(ids)

    def get(self, ids: Collection[int]) -> tuple[Job, ...]:
        """The jobs with these ids, in the order of `ids`, deleted ones too."""
        with self._lock:
            return tuple(self._one(identity) for identity in ids)

    def waiting(self) -> tuple[Job, ...]:
        """The queued jobs, the next one first, held ones in their places."""
        return self._select("state = 'queued' AND deleted IS NULL ORDER BY place, id")

    def running(self) -> tuple[Job, ...]:
        """The jobs that are being made."""
        return self._select("state = 'running' ORDER BY id")

    def move(self, identity: int, to: int) -> None:
        """Give a queued job the place `to` (0: next) among the queued ones."""
        with self._writing() as base:
            self._require(identity, ("queued",), "moved")
            order = [one for one, _ in self._queued() if one != identity]
            order.insert(max(0, to), identity)
            base.executemany("UPDATE jobs SET place = ? WHERE id = ?", [(i, one) for i, one in enumerate(order)])

    def hold(self, ids: Collection[int], held: bool = True) -> None:
        """Keep queued jobs from being begun, or release them."""
        with self._writing() as base:
            for identity in ids:
                self._require(identity, ("queued",), "held")
            base.executemany("UPDATE jobs SET held = ? WHERE id = ?", [(held, identity) for identity in ids])

    def remove(self, ids: Collection[int]) -> Removal:
        """Take queued jobs out of the queue, or ended ones out of the history; files stay until `purge`."""
        token = secrets.token_hex(8)
        with self._writing() as base:
            for identity in ids:
                self._require(identity, ("queued", *ENDED), "removed while it runs: cancel it first")
            now = time.time()
            base.executemany(
                "UPDATE jobs SET deleted = ?, removal = ? WHERE id = ?", [(now, token, identity) for identity in ids]
            )
        return Removal(token, tuple(ids))

    def undo(self, removal: Removal) -> tuple[Job, ...]:
        """Bring removed jobs back to where they were. Raises UsageError when it is too late."""
        with self._writing() as base:
            where = "removal = ? AND deleted IS NOT NULL"
            ids = [row[0] for row in base.execute(f"SELECT id FROM jobs WHERE {where}", (removal.token,))]
            if not ids:
                raise UsageError("It is too late to bring that back: it was removed for good.")
            base.execute(f"UPDATE jobs SET deleted = NULL, removal = NULL WHERE {where}", (removal.token,))
        return self.get(ids)

    def duplicate(self, identity: int, *, new_seed: bool = False) -> Job:
        """The same clip once more at the end of the queue; with `new_seed` a sibling of it."""
        spec = self.get([identity])[0].spec
        if new_seed:
            fresh = spec.request.model_copy(update={"seed": None}).expand()[0].seed
            spec = replace(
                spec,
                request=spec.request.model_copy(update={"seed": fresh}),
                asked=spec.asked.model_copy(update={"seed": fresh}),
            )
        return self.submit([replace(spec, key="", batch="")])[0]

    def retry(self, identity: int) -> Job:
        """A failed, cancelled or crashed job anew, at the end of the queue; the old one stays in the history."""
        with self._lock:
            self._require(identity, ("failed", "cancelled", "crashed"), "retried")
            return self.submit([self.get([identity])[0].spec])[0]

    def history(
        self, search: str = "", offset: int = 0, limit: int = 50, states: Collection[JobState] = ENDED
    ) -> History:
        """What has ended, newest first. `search`: every word of it stands in the prompt or name, in any case."""
        words = search.casefold().split()
        marks = ", ".join("?" for _ in states)
        where = f"ended IS NOT NULL AND deleted IS NULL AND state IN ({marks})" + " AND instr(words, ?)" * len(words)
        values = (*states, *words)
        with self._lock:
            counts = dict(self._rows(f"SELECT state, COUNT(*) FROM jobs WHERE {where} GROUP BY state", values))
            found = self._select(f"{where} ORDER BY turn DESC LIMIT ? OFFSET ?", (*values, limit, offset))
        return History(found, counts)

    def known(self, keys: Collection[str]) -> dict[str, Job]:
        """By key, the job that tells most about it: a done one, else a queued or running one, else the newest."""
        order = {"done": 0, "running": 1, "queued": 2}
        found: dict[str, Job] = {}
        for key in set(keys) - {""}:
            jobs = self._select("key = ? AND deleted IS NULL ORDER BY id DESC", (key,))
            if jobs:
                found[key] = min(jobs, key=lambda job: order.get(job.state, 3))
        return found

    # -- what its owner does --

    def take(self, batches: Collection[str] | None = None, without: Collection[int] = ()) -> Job | None:
        """The next job that is not held (of these batches, None: of all; none of those `without`), now running; None
        when there is none.
        """
        with self._writing() as base:
            for identity, batch in self._queued("AND NOT held"):
                if identity in without or not (batches is None or batch in batches):
                    continue
                if self._select("id = ?", (identity,)):  # one that can't be read is passed over
                    base.execute("UPDATE jobs SET state = 'running', started = ? WHERE id = ?", (time.time(), identity))
                    return self._one(identity)
        return None

    def finish(self, identity: int, result: JobResult, took: Measured | None = None) -> Job:
        """A running job is done; what it took is remembered with it."""
        with self._writing():
            if took is not None:
                self.measure(took)
            return self._end(identity, "done", result, None)

    def fail(self, identity: int, state: JobState, error: JobError) -> Job:
        """A running job ended as failed, cancelled or crashed."""
        return self._end(identity, state, None, error)

    def put_back(self, identity: int) -> Job:
        """A running job whose worker was lost, or whose program ends, waits again, before all others."""
        with self._writing() as base:
            self._require(identity, ("running",), "put back")
            first = "(SELECT MIN(place) - 1 FROM jobs WHERE state = 'queued' AND deleted IS NULL)"
            base.execute(
                f"UPDATE jobs SET state = 'queued', started = NULL, place = MIN(place, COALESCE({first}, place)) "
                "WHERE id = ?",
                (identity,),
            )
            return self._one(identity)

    def cancel_queued(self, ids: Collection[int], error: JobError) -> tuple[Job, ...]:
        """End those of these jobs that are still queued as cancelled; returns them."""
        with self._writing() as base:
            found = [identity for identity in ids if self._one(identity).state == "queued"]
            now = time.time()
            base.executemany(
                f"UPDATE jobs SET state = 'cancelled', error = ?, ended = ?, turn = {_NEXT_TURN} WHERE id = ?",
                [(to_json(error), now, identity) for identity in found],
            )
        return self.get(found)

    def purge(self, before: float, without: Collection[str] = ()) -> tuple[Job, ...]:
        """Forget for good what was removed before that time, but not the removals with these tokens; returns the jobs,
        whose files are now nobody's.
        """
        where = f"deleted < ? AND removal NOT IN ({', '.join('?' for _ in without)})"
        with self._writing() as base:
            gone = self._select(where, (before, *without))
            base.execute(f"DELETE FROM jobs WHERE {where}", (before, *without))
        return gone

    def measure(self, one: Measured) -> None:
        """Remember what a clip took."""
        with self._writing() as base:
            base.execute(
                "INSERT INTO measured (model, engaged, width, height, frames, steps, forwards, timings, memory) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    one.model,
                    one.engaged,
                    one.width,
                    one.height,
                    one.frames,
                    one.steps,
                    one.forwards,
                    to_json(one.timings),
                    one.memory,
                ),
            )
            base.execute("DELETE FROM measured WHERE id <= (SELECT MAX(id) FROM measured) - ?", (MEASURED_KEPT,))

    def measured(self, model: str, limit: int = 300) -> tuple[Measured, ...]:
        """What clips of this model took, newest first."""
        names = "model, engaged, width, height, frames, steps, forwards, timings, memory"
        rows = self._rows(f"SELECT {names} FROM measured WHERE model = ? ORDER BY id DESC LIMIT ?", (model, limit))
        return tuple(one for row in rows if (one := _measured(*row)) is not None)

    def fact(self, name: str) -> Any:
        """A stored fact, None without one."""
        rows = self._rows("SELECT value FROM facts WHERE name = ?", (name,))
        with contextlib.suppress(ValueError):  # one that can't be read is none
            return from_json(Any, rows[0][0]) if rows else None
        return None

    def set_fact(self, name: str, value: Any) -> None:
        """Store a fact as JSON."""
        with self._writing() as base:
            base.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, to_json(value)))

    # -- inside --

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which a nested one joins."""
        with self._lock, _told(self._path):
            self._refuse_closed()
            if self._base.in_transaction:
                yield self._base
                return
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
            except BaseException:
                self._base.rollback()
                raise
            self._base.commit()

    def _queued(self, also: str = "") -> list[tuple[int, str]]:
        """(id, batch) of the queued jobs in order; cheap for thousands."""
        where = f"state = 'queued' AND deleted IS NULL {also} ORDER BY place, id"
        return [(identity, batch) for identity, batch in self._rows(f"SELECT id, batch FROM jobs WHERE {where}")]

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, _told(self._path):
            self._refuse_closed()
            return self._base.execute(sql, tuple(values)).fetchall()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise CannotRunError("The queue is closed: Kinetile is stopping.")

    def _insert(self, base: sqlite3.Connection, spec: JobSpec, place: float, held: bool) -> int:
        words = f"{spec.request.prompt}\n{spec.name}".casefold()
        row = (secrets.token_hex(16), held, place, spec.batch, spec.key, words, to_json(spec), time.time())
        done = base.execute(
            "INSERT INTO jobs (uid, state, held, place, batch, key, words, spec, submitted) "
            "VALUES (?, 'queued', ?, ?, ?, ?, ?, ?, ?)",
            row,
        )
        return int(done.lastrowid or 0)

    def _end(self, identity: int, state: JobState, result: JobResult | None, error: JobError | None) -> Job:
        with self._writing() as base:
            self._require(identity, ("running",), "ended")
            base.execute(
                f"UPDATE jobs SET state = ?, result = ?, error = ?, ended = ?, turn = {_NEXT_TURN} WHERE id = ?",
                (state, result and to_json(result), error and to_json(error), time.time(), identity),
            )
            job = self._one(identity)
            if job.spec.fail_fast and state in ("failed", "crashed"):
                base.execute("UPDATE jobs SET held = 1 WHERE state = 'queued' AND batch = ?", (job.spec.batch,))
        return job

    def _require(self, identity: int, states: Collection[str], what: str) -> None:
        job = self._one(identity)
        if job.state not in states:
            raise UsageError(f"Job {identity} is {job.state} and can't be {what}.")

    def _one(self, identity: int) -> Job:
        found = self._select("id = ?", (identity,))
        if not found:
            raise UsageError(f"There is no job {identity}.")
        return found[0]

    def _select(self, where: str, values: Sequence[Any] = ()) -> tuple[Job, ...]:
        names = "id, uid, spec, state, submitted, held, deleted, started, ended, result, error"
        rows = self._rows(f"SELECT {names} FROM jobs WHERE {where}", values)
        return tuple(job for row in rows if (job := _job(*row)) is not None)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the database can't do becomes a sentence."""
    try:
        yield
    except OverflowError:
        raise UsageError("That number is larger than any in the queue; name a job that is there.") from None
    except sqlite3.Error as error:
        raise explained(error, path) from error


def _measured(*row: Any) -> Measured | None:
    """What a clip took; None for a row that can't be read."""
    *facts, timings, memory = row
    names = ("model", "engaged", "width", "height", "frames", "steps", "forwards")
    data = {**dict(zip(names, facts, strict=True)), "memory": memory or 0}
    try:
        found: Measured = from_data(Measured, {**data, "timings": from_json(dict[str, float], timings)})
        return found
    except (ValueError, TypeError) as error:
        _log.warning("what a clip took can't be read and is passed over: %s", error)
        return None


def _job(identity: int, uid: str, spec: str, state: Any, submitted: float, held: int, *rest: Any) -> Job | None:
    """The job of one row; None for one that can't be read, which must not keep the others from being made."""
    deleted, started, ended, result, error = rest
    try:
        return Job(
            id=identity,
            uid=uid,
            spec=from_json(JobSpec, spec),
            state=state,
            submitted=float(submitted),
            held=bool(held),
            removed=deleted is not None,
            started=None if started is None else float(started),
            ended=None if ended is None else float(ended),
            result=None if result is None else from_json(JobResult, result),
            error=None if error is None else from_json(JobError, error),
        )
    except (ValueError, TypeError) as error_:
        _log.warning("job %s can't be read and is passed over: %s", identity, error_)
        return None


__all__ = [
    "ENDED",
    "History",
    "Job",
    "JobError",
    "JobQueue",
    "JobResult",
    "JobSpec",
    "JobState",
    "Removal",
]
