"""Take jobs from the queue one after the other and have the worker make them, whatever becomes of the worker.

One thread dispatches. It starts the worker when it is needed, waits for each job's outcome, and replaces a worker that
died, hangs or does not obey a cancel; the next job then runs in a new one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from app.answers import PlanAnswer
from app.engine.kept import may_go_on
from app.errors import Cancelled, DatabaseError, JobFailedError, KinetileError
from app.estimate import Measured, loaded_key
from app.plain import from_data, to_data
from app.queue.dispatching import took
from app.queue.jobs import Job, JobError, JobQueue, JobResult, JobState
from app.queue.keeper import Keeper, WorkerGoneError, error_from
from app.queue.service import Event, JobProgress, Preview
from app.video import outputs
from app.worker.supervisor import PLAIN_PYTORCH, explain
from app.worker.wire import Message

_log = logging.getLogger("kinetile.dispatch")

TICK_SECONDS = 0.5
_WORDS = {"loading": "loading the model", "text": "reading the prompt", "saving": "saving the clip"}


@dataclass(frozen=True)
class Patience:
    """Seconds to wait for a worker. start: until it says hello. silence: without a sign of life, idle: without
    progress, both only while it uses no processor time. cancel: until it has stopped; beginning: the same while it
    has not begun to load. end: until it has ended when told to.
    """

    start: float = 180.0
    silence: float = 30.0
    idle: float = 300.0
    cancel: float = 20.0
    beginning: float = 3.0
    end: float = 10.0


class Dispatcher:
    """`tell` gets every event; `check` raises KinetileError for a job that must not be begun as things are;
    `expected` gives the seconds per stage to reckon with.
    """

    def __init__(
        self,
        queue: JobQueue,
        keeper: Keeper,
        tell: Callable[[Event], None],
        check: Callable[[Job, PlanAnswer], None],
        expected: Callable[[Job, PlanAnswer], dict[str, float]],
        *,
        batches: set[str] | None = None,
        previews: bool = True,
        patience: Patience | None = None,
    ) -> None:
        self._queue, self._keeper, self._tell = queue, keeper, tell
        self._check, self._expected = check, expected
        self.batches, self._previews = batches, previews
        self._patience = patience or Patience()
        self._changed = keeper.changed
        self._stopping = self._at_once = False
        self._draining = False
        self._worker = 0
        self._running: Job | None = None
        self._outcome: Message | None = None
        self._progress: JobProgress | None = None
        self._preview: Preview | None = None
        self._cancels: dict[int, bool] = {}
        self.housekeeping: Callable[[], None] = lambda: None
        self._turn = threading.Lock()
        self._guests = 0
        keeper.on_message = self._hear
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    def start(self) -> None:
        """Begin to take jobs."""
        self._thread.start()

    def stop(self, now: bool = False, finish: bool = False) -> None:
        """Take no more jobs; the running one is waited for (`finish`), or stopped (at once with `now`) and put back."""
        with self._changed:
            self._draining = True
            self._stopping, self._at_once = self._stopping or not finish or now, self._at_once or now
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self) -> None:
        """The queue has changed."""
        with self._changed:
            self._changed.notify_all()

    def cancel(self, identity: int, now: bool) -> None:
        """Stop that job if it is the running one, or is just about to be."""
        with self._changed:
            is_running = self._running is not None and self._running.id == identity
            if not is_running and self._queue.get([identity])[0].state != "running":
                return
            self._cancels[identity] = now or self._cancels.get(identity, False)
            progress = self._progress if is_running else None
            self._changed.notify_all()
        if progress is not None:
            self._publish(replace(progress, stopping=True))

    @contextlib.contextmanager
    def turn(self, wait: Callable[[], None]) -> Iterator[None]:
        """While entered, no job is begun: the worker is free for something else. Waits for the running job's end;
        `wait` is called meanwhile, again and again, and what it raises ends the waiting.
        """
        with self._changed:
            self._guests += 1
        try:
            while not self._turn.acquire(timeout=0.2):
                wait()
            try:
                yield
            finally:
                self._turn.release()
        finally:
            with self._changed:
                self._guests -= 1
                self._changed.notify_all()

    @property
    def running(self) -> Job | None:
        """The job that is being made."""
        return self._running

    @property
    def progress(self) -> JobProgress | None:
        """How far it is."""
        return self._progress

    @property
    def preview(self) -> Preview | None:
        """Its newest picture."""
        return self._preview

    # -- the thread --

    def _run(self) -> None:
        while True:
            try:
                if self._make_next():
                    continue
                if self._draining:
                    return
                self.housekeeping()
                with self._changed:
                    self._changed.wait(TICK_SECONDS)
            except Exception:  # a full disk under the database, say: the queue must outlive it
                _log.exception("the dispatcher met an error")
                time.sleep(1)
                if self._draining:
                    return

    def _make_next(self) -> bool:
        """Make the next job; False when there is none, or a guest has the worker."""
        with self._turn:
            job = None if self._draining or self._guests else self._take()
            if job is not None:
                self._make(job)
            return job is not None

    def _take(self) -> Job | None:
        return self._queue.take(self.batches)

    def _make(self, job: Job) -> None:
        with self._changed:
            self._running, self._outcome, self._progress, self._preview = job, None, None, None
        self._tell(Event("job", job))
        self._publish(JobProgress(job.id, "loading", 0, 1, 0.0))
        try:
            ended = self._record(self._outcome_of(job))
        finally:
            if self._keeper.is_gone(self._worker):  # a process that was ended could not tidy up
                outputs.remove_drafts(job.spec.folder, job.uid)
            with self._changed:
                self._running, self._progress, self._preview = None, None, None
                self._cancels.pop(job.id, None)
        self._tell(Event("job", ended))
        if ended.spec.fail_fast and ended.state == "failed":
            self._tell(Event("queue"))

    def _outcome_of(self, job: Job) -> Callable[[], Job]:
        """Make the clip; returns what writes down how it ended."""
        state: JobState = "failed"
        try:
            result, measured = self._attempt(job)
            return lambda: self._queue.finish(job.id, result, measured)
        except Cancelled as error:
            if self._stopping and job.id not in self._cancels:  # the program ends: nobody gave the clip up
                return lambda: self._queue.put_back(job.id)
            state, ended = "cancelled", JobError(str(error), "Cancelled")
        except KinetileError as error:
            ended = JobError(str(error), type(error).__name__, str(getattr(error, "detail", "")))
        except Exception as error:
            _log.exception("job %s met an error", job.id)
            ended = JobError(f"The clip failed for a reason nobody foresaw ({type(error).__name__}: {error}).")
        return lambda: self._queue.fail(job.id, state, ended)

    def _record(self, write: Callable[[], Job]) -> Job:
        """What became of a job must be written before the next one is begun, however long the disk stays full."""
        while True:
            try:
                return write()
            except DatabaseError as error:
                _log.error("%s", error)
                if self._stopping:  # the next start finds the job running, and its clip by the mark in its file
                    raise
                time.sleep(1)

    def _attempt(self, job: Job) -> tuple[JobResult, Measured]:
        """Have the worker make the clip; returns it with what it took. Raises KinetileError."""
        self._worker = self._keeper.start()
        self._wait(job, self._keeper.is_ready, self._patience.start)
        spec = job.spec
        asked = self._keeper.put({"do": "plan", "request": to_data(spec.request), "recorded": spec.recorded_plan})
        self._wait(job, asked.is_here, self._patience.start)
        try:
            plan: PlanAnswer = from_data(PlanAnswer, asked.take())
        except WorkerGoneError:
            raise self._died(job) from None
        self._check(job, plan)
        expected = self._expected(job, plan)
        self._keeper.send(
            {
                "do": "generate",
                "job": job.id,
                "uid": job.uid,
                "spec": to_data(spec),
                "previews": self._previews,
                "expected": expected,
            }
        )
        self._wait(job, lambda: self._outcome is not None, None, working=True)
        outcome = self._outcome
        assert outcome is not None
        if outcome["say"] == "done":
            result, key = from_data(JobResult, outcome["result"]), loaded_key(spec.request.model, plan.plan)
            kept, self._keeper.loaded = self._keeper.loaded == key, key
            return result, took(spec.request, result, outcome, kept)
        if outcome["say"] == "cancelled":
            raise Cancelled(outcome["message"])
        if outcome.get("out_of_memory"):
            self._keeper.end(self._patience.end)  # only a process that ends gives everything back
        raise error_from(outcome)

    def _wait(self, job: Job, ready: Callable[[], bool], limit: float | None, working: bool = False) -> None:
        """Until `ready`. Raises Cancelled or JobFailedError when the job is cancelled, the worker dies, hangs or takes
        longer than `limit` seconds; a worker that does not obey is replaced.
        """
        begun, told, looked = time.monotonic(), 0.0, _Look()
        while True:
            with self._changed:
                if ready():
                    return
                ended = self._keeper.is_gone(self._worker)
                cancel = self._told_to_stop(job.id)
                if not ended and cancel is None:
                    self._changed.wait(TICK_SECONDS)
                elif not ended and working and not cancel:
                    self._changed.wait(0.1)
            if ready():
                return
            moment = time.monotonic()
            if ended:
                raise self._died(job)
            if cancel is not None:
                if not working:
                    raise Cancelled("Stopped before it began.")
                if not told:
                    told = moment
                    self._keeper.send({"do": "cancel", "job": job.id})
                if cancel or moment - told > self._cancel_patience():
                    self._replace(f"It was ended, since it did not stop {'at once' if cancel else 'in time'}.")
                    raise Cancelled(f"Stopped while {self._place()}.")
            if limit is not None and moment - begun > limit:
                self._replace("It was ended, since it did not answer.")
                raise JobFailedError(f"The worker did not begin within {limit:.0f} s: try the clip again.")
            looked = self._look(looked, moment)

    def _told_to_stop(self, identity: int) -> bool | None:
        """Whether that job must stop at once, or (False) at its next step; None while it may go on."""
        cancel = self._cancels.get(identity, False if self._stopping else None)
        return None if cancel is None else cancel or self._at_once

    def _look(self, before: _Look, moment: float) -> _Look:
        """Whether the worker still does something; if not, it is replaced and JobFailedError raised."""
        silent, idle = moment - self._keeper.last_sign, moment - max(self._keeper.last_news, before.busy)
        if silent < min(5.0, self._patience.silence / 2) and idle < self._patience.idle / 2:
            return before
        spent = self._keeper.cpu_seconds()
        if before.cpu is None:
            return _Look(spent, moment, before.busy)
        if spent - before.cpu > 0.02 * max(1.0, moment - before.at):
            return _Look(spent, moment, moment)
        quiet = moment - max(self._keeper.last_sign, before.busy)
        if quiet > self._patience.silence or idle > self._patience.idle:
            place = self._place()
            self._replace("It was ended, since it hung.")
            raise JobFailedError(
                f"The worker hung while {place}: nothing came from it for {min(silent, idle):.0f} s and it used no "
                f"processor time, so it was replaced. Try the clip again; if it hangs again, with {PLAIN_PYTORCH}."
            )
        return before

    def _cancel_patience(self) -> float:
        progress = self._progress
        begun = progress is not None and (progress.stage != "loading" or progress.steps > 1)
        return self._patience.cancel if begun else self._patience.beginning

    def _replace(self, note: str) -> None:
        self._keeper.kill(f"{note} A new worker takes its place.")

    def _died(self, job: Job) -> KinetileError:
        death = self._keeper.death(self._worker)
        place = self._place()
        if death is None or self._stopping:
            return Cancelled(f"Stopped while {place}.")
        error = JobFailedError(explain(death, place, self._keeper.memory_clause()) + may_go_on(place))
        error.detail = death.printed  # type: ignore[attr-defined]
        return error

    def _place(self) -> str:
        """Where the running clip is, to complete "stopped while ..."."""
        progress = self._progress
        if progress is None:
            return "beginning"
        if progress.stage == "denoising":
            return f"denoising, step {progress.step} of {progress.steps}"
        return _WORDS.get(progress.stage, progress.stage)

    # -- from the worker --

    def _hear(self, message: Message, blob: bytes) -> None:
        """Called by the listening thread."""
        running = self._running
        if running is None or message.get("job") != running.id:
            return
        if message["say"] != "progress":
            with self._changed:
                self._outcome = message
                self._changed.notify_all()
            return
        number = self._preview.number if self._preview is not None else 0
        if blob:
            number += 1
            frames = np.frombuffer(blob, np.uint8).reshape(message["shape"])
            self._preview = Preview(running.id, number, frames)
        self._publish(
            JobProgress(
                job=running.id,
                stage=message["stage"],
                step=int(message["step"]),
                steps=int(message["steps"]),
                fraction=float(message["fraction"]),
                eta_seconds=message["eta_seconds"],
                preview=number,
                stopping=self._told_to_stop(running.id) is not None,
            )
        )

    def _publish(self, progress: JobProgress) -> None:
        self._progress = progress
        self._tell(Event("progress", progress=progress))


@dataclass(frozen=True)
class _Look:
    """What was seen of the worker: its CPU seconds at a moment (None: nothing yet, as nothing was suspicious), and when
    it was last seen busy.
    """

    cpu: float | None = None
    at: float = 0.0
    busy: float = 0.0
