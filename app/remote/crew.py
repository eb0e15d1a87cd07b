"""One dispatcher per place of a cluster, all of which take from the one queue: whoever is free takes the next job.

A job whose worker or machine was lost goes back into the queue, once; another place takes it if there is one. A job
that one machine can't make (memory, a forced accelerator, a model it has not got) goes to those that have not said so.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from app import estimate as reckoning
from app.answers import PlanAnswer
from app.errors import Cancelled, CannotRunError, JobFailedError, KinetileError
from app.estimate import Measured
from app.job_types import Job, JobResult
from app.paths import Home
from app.plain import from_data
from app.queue.dispatch import Dispatcher, Patience
from app.queue.jobs import JobQueue
from app.queue.keeper import Keeper
from app.queue.service import Event, JobProgress, Preview
from app.remote.cluster import LostError, Place
from app.remote.travel import bring, land, parcels_for
from app.remote.worker import FarWorker
from app.video.outputs import size_text
from app.worker.wire import Message

MAX_STARTS = 3
"""How often in a row a worker may end before it is ready; then its place is given up."""


class FarKeeper(Keeper):
    """Of a worker whose machine's memory is not this one's."""

    def memory_clause(self) -> str:
        return f" (it held {size_text(self.memory)})" if self.memory else ""

    def why_lost(self, number: int) -> str:
        """A sentence where that worker went with its machine or actor, rather than died there; empty else."""
        death = self._deaths.get(number)
        return death.printed if death is not None and death.code is None else ""


class FarDispatcher(Dispatcher):
    """Makes jobs at one place."""

    def __init__(
        self,
        crew: Crew,
        place: Place,
        home: Home,
        queue: JobQueue,
        tell: Callable[[Event], None],
        batches: set[str] | None,
        patience: Patience,
    ) -> None:
        self._crew, self._home, self.place = crew, home, place
        self.keeper = FarKeeper(home, lambda _: FarWorker(place, self._must_hurry))
        super().__init__(
            queue, self.keeper, tell, self._check_there, _nothing, batches=batches, previews=False, patience=patience
        )
        self.retired = ""
        """Why it takes no more jobs, a sentence."""
        self._starts, self._since = 0, 0.0
        self._again = False
        self._made: list[JobResult] = []

    def _must_hurry(self) -> bool:
        """Whether what is waited for has lost its purpose."""
        running = self._running
        return self._stopping or (running is not None and bool(self._cancels.get(running.id)))

    # -- taking --

    def _take(self) -> Job | None:
        if self.retired or not self._is_ready():
            return None
        return self._queue.take(self.batches, self._crew.not_for(self))

    def _is_ready(self) -> bool:
        """Whether its worker listens; one that does not come is given up."""
        number = self._worker
        try:
            self.place.open(self._must_hurry)
            self._worker = self.keeper.start()
        except CannotRunError as error:
            return self._retire(str(error))
        except Cancelled:  # it is stopping
            return False
        if self._worker != number:
            self._starts, self._since = self._starts + 1, time.monotonic()
        if self.keeper.is_ready():
            self._starts = 0
            return True
        if self._starts > MAX_STARTS:
            death = self.keeper.death(number)
            last = death.printed.splitlines()[-1][:300] if death is not None and death.printed else "it said nothing"
            return self._retire(f"The worker on {self.place.name} ended {MAX_STARTS} times before it began: {last}.")
        if time.monotonic() - self._since > self._patience.start:
            return self._retire(f"The worker on {self.place.name} did not begin within {self._patience.start:.0f} s.")
        return False

    def _retire(self, why: str) -> bool:
        if not self._draining:
            self.retired = why
            self._crew.tell_retired()
        return False

    # -- making --

    def _outcome_of(self, job: Job) -> Callable[[], Job]:
        self._again = False
        self._made.clear()
        write = super()._outcome_of(job)
        if self._again:
            return partial(self._queue.put_back, job.id)
        if self._made:  # what it took says nothing about this machine, so it is not remembered
            return partial(self._queue.finish, job.id, self._made[0])
        return write

    def _attempt(self, job: Job) -> tuple[JobResult, Measured]:
        parcels = parcels_for(job.spec.request, self._home)
        try:
            bring(parcels, self.place, self._must_hurry)
            there = replace(job, spec=replace(job.spec, folder=self._folder()))
            made, took = super()._attempt(there)
        except (CannotRunError, JobFailedError) as error:
            self._again = self._crew.may_be_made_again(job, self, self._is_lost(error))
            raise
        try:
            self._made.append(land(job, made, self.place, self._must_hurry))
        except LostError:
            self._again = self._crew.may_be_made_again(job, self, lost=True)
            raise
        return self._made[0], took

    def _folder(self) -> Any:
        return type(self._home.root)(self.place.folder)

    def _is_lost(self, error: KinetileError) -> bool:
        """Whether the worker ended or went, rather than said that the job can't be made."""
        return isinstance(error, LostError) or self._keeper.is_gone(self._worker)

    def _died(self, job: Job) -> KinetileError:
        why = self.keeper.why_lost(self._worker)
        if why and not self._stopping:
            return JobFailedError(f"The worker on {self.place.name} was lost while {self._place()}: {why}")
        return super()._died(job)

    def _check_there(self, job: Job, plan: PlanAnswer) -> None:
        """Refuse what would not fit there."""
        free, whose, disk = self.place.call("free", should_stop=self._must_hurry)
        request, folder = job.spec.request, self._home.outputs if self._running is None else self._running.spec.folder
        loaded = self._keeper.loaded == reckoning.loaded_key(request.model, plan.plan)
        available = (free + self._keeper.memory, whose)
        found = reckoning.estimate(request, folder, plan.memory, reckoning.Times(), available, loaded=loaded)
        reckoning.refuse_blocked(found)
        if disk < found.disk:
            raise CannotRunError(
                f"The disk of {self.place.name} has {size_text(disk)} free, but this clip may need "
                f"{size_text(found.disk)}: free some space there."
            )


def _nothing(job: Job, plan: PlanAnswer) -> dict[str, float]:
    """No seconds to reckon with: those that are remembered are of this machine."""
    return {}


class Crew:
    """`Dispatching` over the places of a cluster. `on_stranded` is called when the last one is given up."""

    def __init__(
        self,
        places: Sequence[Place],
        home: Home,
        queue: JobQueue,
        tell: Callable[[Event], None],
        batches: set[str] | None,
        patience: Patience,
    ) -> None:
        self._tell, self._patience = tell, patience
        self._lock = threading.Lock()
        self._refused: dict[int, set[FarDispatcher]] = {}
        self._lost: dict[int, int] = {}
        self.on_retired: Callable[[str], None] = lambda why: None
        self.members = [FarDispatcher(self, place, home, queue, tell, batches, patience) for place in places]

    # -- as a dispatcher --

    @property
    def batches(self) -> set[str] | None:
        return self.members[0].batches

    @batches.setter
    def batches(self, batches: set[str] | None) -> None:
        for member in self.members:
            member.batches = batches

    @property
    def housekeeping(self) -> Callable[[], None]:
        return self.members[0].housekeeping

    @housekeeping.setter
    def housekeeping(self, act: Callable[[], None]) -> None:
        self.members[0].housekeeping = act

    def start(self) -> None:
        for member in self.members:
            member.start()

    def stop(self, now: bool = False, finish: bool = False) -> None:
        def end(member: FarDispatcher) -> None:
            member.stop(now, finish)
            member.keeper.close(now, self._patience.end)
            member.place.close()

        threads = [threading.Thread(target=end, args=(member,), daemon=True) for member in self.members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def wake(self) -> None:
        for member in self.members:
            member.wake()

    def cancel(self, identity: int, now: bool) -> None:
        for member in self.members:
            running = member.running
            if running is not None and running.id == identity:
                member.cancel(identity, now)

    @contextlib.contextmanager
    def turn(self, wait: Callable[[], None]) -> Iterator[None]:
        yield  # this machine's worker makes no clips anyway

    @property
    def running(self) -> Job | None:
        return next((member.running for member in self.members if member.running is not None), None)

    @property
    def progress(self) -> JobProgress | None:
        return next((member.progress for member in self.members if member.running is not None), None)

    @property
    def preview(self) -> Preview | None:
        return None

    # -- among its members --

    @property
    def alive(self) -> list[FarDispatcher]:
        """Those that take jobs."""
        return [member for member in self.members if not member.retired]

    def not_for(self, member: FarDispatcher) -> list[int]:
        """The jobs that this one has failed and another one may still try."""
        with self._lock:
            return [job for job, tried in self._refused.items() if member in tried and set(self.alive) - tried]

    def may_be_made_again(self, job: Job, member: FarDispatcher, lost: bool) -> bool:
        """Note that the job did not come out of this one; whether it goes back into the queue. lost: its worker went,
        which is forgiven once; otherwise it can't be made there, which every other one may still try.
        """
        with self._lock:
            tried = self._refused.setdefault(job.id, set())
            tried.add(member)
            if not lost:
                return bool(set(self.alive) - tried)
            self._lost[job.id] = self._lost.get(job.id, 0) + 1
            return self._lost[job.id] == 1

    def tell_retired(self) -> None:
        """One was given up."""
        if not self.alive:
            self.on_retired(" ".join(dict.fromkeys(member.retired for member in self.members)))
        self._tell(Event("queue"))

    def plans(self, question: Message) -> list[tuple[str, PlanAnswer | KinetileError]]:
        """The plan of each place, by its name, or why it has none; asked all at once."""

        def ask(member: FarDispatcher) -> PlanAnswer | KinetileError:
            try:
                found: PlanAnswer = from_data(PlanAnswer, member.keeper.ask(question))
            except KinetileError as error:
                return error
            return found

        alive = self.alive
        with ThreadPoolExecutor(max(1, len(alive))) as pool:
            return [(one.place.name, answer) for one, answer in zip(alive, pool.map(ask, alive), strict=True)]
