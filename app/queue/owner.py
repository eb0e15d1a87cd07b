"""The owner of the queue: database, dispatcher, worker and the door for other processes, as one `Service`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app import estimate as reckoning
from app.answers import Accelerator, PlanAnswer
from app.engine.acceleration_rows import with_last_clip
from app.estimate import Estimate
from app.fetching import Fetching
from app.machine_memory import free_memory
from app.measuring import MeasureAsk, Measuring
from app.models import family_for
from app.paths import Home
from app.plain import from_data, to_data, to_json
from app.queue.dispatch import Dispatcher, Patience
from app.queue.dispatching import Dispatching
from app.queue.fetcher import Fetcher
from app.queue.jobs import ENDED, History, Job, JobError, JobQueue, JobSpec, JobState, Removal
from app.queue.keeper import Keeper
from app.queue.measurer import Measurer
from app.queue.news import LocalSubscription, News
from app.queue.recovery import recover
from app.queue.service import UNDO_SECONDS, Event, Preview, Service, Snapshot
from app.request import AccelPreferences, GenerationRequest
from app.worker.supervisor import Launcher, ProcessWorker

PLANS_KEPT = 200


class LocalService(Service):
    """The service of the process that holds the queue's lock; made by `open_service`.

    batches: None to make every queued job, else only those of batches that are submitted or wanted here. previews:
    have the worker send pictures. warm: start the worker now and import what it needs. `release` gives the lock free.
    """

    owner = True

    def __init__(
        self,
        home: Home,
        release: Callable[[], None] = lambda: None,
        *,
        all_batches: bool = True,
        previews: bool = True,
        warm: bool = False,
        launch: Launcher = ProcessWorker,
        patience: Patience | None = None,
    ) -> None:
        self.home, self._release = home, release
        self.close_door: Callable[[], None] = lambda: None
        self._patience = patience or Patience()
        self._queue = JobQueue(home.database)
        self._news = News()
        self._stopped = threading.Lock()
        self._plans: dict[str, PlanAnswer] = {}
        self._waiting: tuple[int, tuple[Job, ...]] = (-1, ())
        self._purged = float("-inf")
        self._removed: dict[str, float] = {}
        recover(self._queue)
        self._keeper, self._keeps_worker = Keeper(home, launch, warm), warm
        self._keeper.on_started = self._note_worker
        self._dispatcher = self._dispatching(None if all_batches else set(), previews)
        self._dispatcher.housekeeping = self._purge
        patient = self._patience
        self._measurer = Measurer(self._keeper, self._dispatcher.turn, patient.cancel, patient.start)
        self._measurer.on_change = self._plan_anew
        self._fetcher = Fetcher(self._plan_anew)
        self._keeper.on_status = self._tell_status
        if warm:
            self._keeper.start()
        self._dispatcher.start()

    def stop(self, now: bool = False, finish: bool = False) -> None:
        self._measurer.stop(now)
        self._dispatcher.stop(now, finish)  # may be called again meanwhile, with less patience
        if not self._stopped.acquire(blocking=False):
            return
        self.close_door()  # who comes while the last clip is finished still gets an answer
        try:
            self._fetcher.close()
            self._measurer.close()
            self._keeper.close(now, self._patience.end)
            self._queue.set_fact("worker", None)
        finally:
            self._news.end()
            self._queue.close()
            self._release()

    # -- the queue --

    def submit(self, specs: Sequence[JobSpec], held: bool = False) -> tuple[Job, ...]:
        jobs = self._queue.submit(specs, held=held)
        for batch in {spec.batch for spec in specs}:
            self._admit(batch)
        return self._announce(jobs)

    def want(self, batch: str) -> None:
        self._admit(batch)
        self._dispatcher.wake()

    def get(self, ids: Sequence[int]) -> tuple[Job, ...]:
        return self._queue.get(ids)

    def snapshot(self) -> Snapshot:
        version, changes = self._news.version, self._news.changes
        known, waiting = self._waiting
        if known != changes:
            waiting = self._queue.waiting()
            self._waiting = (changes, waiting)
        running = self._dispatcher.running
        status = self._keeper.status(self._is_busy())
        return Snapshot(version, running, self._dispatcher.progress, waiting, status)

    def move(self, identity: int, to: int) -> None:
        self._queue.move(identity, to)
        self._news.tell(Event("queue"))

    def hold(self, ids: Sequence[int], held: bool = True) -> None:
        self._queue.hold(ids, held)
        self._announce(self._queue.get(ids))

    def remove(self, ids: Sequence[int]) -> Removal:
        removal = self._queue.remove(ids)
        self._removed[removal.token] = time.monotonic()
        self._news.tell(Event("queue"))
        return removal

    def undo(self, removal: Removal) -> tuple[Job, ...]:
        return self._announce(self._queue.undo(removal))

    def duplicate(self, identity: int, new_seed: bool = False) -> Job:
        return self._announce([self._queue.duplicate(identity, new_seed=new_seed)])[0]

    def retry(self, identity: int) -> Job:
        job = self._queue.retry(identity)
        self._admit(job.spec.batch)
        return self._announce([job])[0]

    def cancel(self, ids: Sequence[int], now: bool = False) -> None:
        ended = self._queue.cancel_queued(ids, JobError("Cancelled before it began.", "Cancelled"))
        self._announce(ended)
        for identity in set(ids) - {job.id for job in ended}:
            self._dispatcher.cancel(identity, now)

    def history(
        self, search: str = "", offset: int = 0, limit: int = 50, states: Sequence[JobState] = ENDED
    ) -> History:
        return self._queue.history(search, offset, limit, states)

    def known(self, keys: Sequence[str]) -> dict[str, Job]:
        return self._queue.known(keys)

    # -- news --

    def subscribe(self) -> LocalSubscription:
        return self._news.subscribe()

    def preview(self, job: int) -> Preview | None:
        found = self._dispatcher.preview
        return found if found is not None and found.job == job else None

    # -- answers from the worker --

    def plan(self, request: GenerationRequest, recorded: Any = None) -> PlanAnswer:
        prompt = "any" if request.accel.gpus > 1 and request.prompt.strip() else ""  # guidance's branches are dealt out
        same = request.model_copy(update={"prompt": prompt, "negative_prompt": None, "seed": None, "steps": None})
        key = to_json([to_data(same), recorded])
        plans = self._plans  # another dict once readouts have changed, so that no older answer gets into it
        if (known := plans.get(key)) is not None:
            return known
        question = {"do": "plan", "request": to_data(request), "recorded": recorded}
        answer: PlanAnswer = from_data(PlanAnswer, self._keeper.ask(question))
        if len(plans) >= PLANS_KEPT:
            plans.clear()
        plans[key] = answer
        return answer

    def estimate(self, request: GenerationRequest, folder: Path | None = None) -> Estimate:
        plan = self.plan(request)  # a worker that is not kept may have imported by now, but makes no clip after this
        imported = self._keeper.imported and self._keeps_worker
        return self._estimate(request, folder or self.home.outputs, plan, imported)

    def doctor(self) -> dict[str, Any]:
        found: dict[str, Any] = self._keeper.ask({"do": "doctor"})
        return found

    def accelerators(self, request: GenerationRequest) -> tuple[Accelerator, ...]:
        rows = self._keeper.ask({"do": "accelerators", "request": to_data(request)})
        done: tuple[JobState, ...] = ("done",)
        last = self._queue.history(limit=1, states=done).jobs
        return with_last_clip(tuple(from_data(Accelerator, row) for row in rows), last[0].result if last else None)

    def readouts(self) -> dict[str, Any]:
        found: dict[str, Any] = self._keeper.ask({"do": "readouts"})
        return found

    def measure(self, ask: MeasureAsk) -> int:
        return self._measurer.start(ask)

    def measuring(self) -> Measuring:
        return self._measurer.state

    def stop_measuring(self) -> None:
        self._measurer.stop()

    def fetch(self, model: str) -> int:
        return self._fetcher.start(model)

    def fetching(self) -> Fetching:
        return self._fetcher.state

    def stop_fetching(self) -> None:
        self._fetcher.stop()

    def forget_fetch(self) -> None:
        self._fetcher.forget()

    def preferences(self) -> AccelPreferences:
        stored = self._queue.fact("accelerators")
        known = {name: value for name, value in (stored or {}).items() if name in AccelPreferences.model_fields}
        return AccelPreferences(**known)  # another version may have stored others

    def set_preferences(self, preferences: AccelPreferences) -> None:
        asked = GenerationRequest(accel=preferences)
        self.plan(family_for(asked.model).normalise(asked).request)
        self._queue.set_fact("accelerators", preferences.model_dump())
        self._news.tell(Event("queue"))

    # -- inside --

    def _dispatching(self, batches: set[str] | None, previews: bool) -> Dispatching:
        """What takes the jobs; not started yet."""
        return Dispatcher(
            self._queue,
            self._keeper,
            self._news.tell,
            self._check,
            self._expected,
            batches=batches,
            previews=previews,
            patience=self._patience,
        )

    def _announce(self, jobs: Sequence[Job]) -> tuple[Job, ...]:
        for job in jobs:
            self._news.tell(Event("job", job))
        self._dispatcher.wake()
        return tuple(jobs)

    def _admit(self, batch: str) -> None:
        if self._dispatcher.batches is not None:
            self._dispatcher.batches = {*self._dispatcher.batches, batch}

    def _plan_anew(self) -> None:
        """A plan may be another one now: something was measured, or a model came."""
        self._plans = {}
        self._news.tell(Event("queue"))

    def _is_busy(self) -> bool:
        return self._dispatcher.running is not None or self._measurer.state.state == "running"

    def _tell_status(self) -> None:
        self._news.tell(Event("worker", worker=self._keeper.status(self._is_busy())))

    def _note_worker(self, pid: int, created: float) -> None:
        self._queue.set_fact("worker", {"pid": pid, "created": created})

    def _estimate(self, request: GenerationRequest, folder: Path, plan: PlanAnswer, imported: bool) -> Estimate:
        reckoned = self._times(request, plan, imported)
        free, whose = free_memory()
        loaded = self._keeper.loaded == reckoning.loaded_key(request.model, plan.plan)
        available = (free + self._keeper.memory, whose)
        return reckoning.estimate(request, folder, plan.memory, reckoned, available, loaded=loaded)

    def _check(self, job: Job, plan: PlanAnswer) -> None:
        reckoning.refuse_blocked(self._estimate(job.spec.request, job.spec.folder, plan, self._keeper.imported))

    def _expected(self, job: Job, plan: PlanAnswer) -> dict[str, float]:
        return self._times(job.spec.request, plan, self._keeper.imported).stages

    def _times(self, request: GenerationRequest, plan: PlanAnswer, imported: bool) -> reckoning.Times:
        engaged, step = reckoning.engaged_key(plan.plan), family_for(request.model).rules.frames.step
        earlier = self._queue.measured(request.model)
        return reckoning.times(earlier, request, engaged, frame_step=step, imported=imported)

    def _purge(self) -> None:
        """Forget removals that nobody undid, and their files. A clock that is set ahead takes no time from anybody."""
        now = time.monotonic()
        if now - self._purged < 30:
            return
        self._purged = now
        self._removed = {token: at for token, at in self._removed.items() if now - at < UNDO_SECONDS}
        for job in self._queue.purge(time.time() - UNDO_SECONDS, self._removed):
            if job.result is not None:
                for path in (job.result.output, job.result.poster, job.result.output.with_suffix(".json")):
                    with contextlib.suppress(OSError):
                        path.unlink()
