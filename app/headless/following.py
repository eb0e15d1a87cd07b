"""Have the queue make the clips of a batch, and follow them to their ends, whoever owns the queue by then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from app.errors import KinetileError, UsageError
from app.headless.batch import Outcome
from app.headless.words import clips_text
from app.interrupt import Interrupts
from app.progress import Progress
from app.queue.jobs import Job
from app.queue.service import Event, JobProgress, OwnerGoneError, Service

LOOK_SECONDS = 0.1
OWNERS = 20
"""How many owners of the queue a batch outlives."""
ASKED_AT_ONCE = 100
"""How soon Ctrl-C is noticed."""


class Follower:
    """`reopen` opens the service again when its owner is gone: this process may then be the owner."""

    def __init__(self, service: Service, reopen: Callable[[], Service], interrupts: Interrupts) -> None:
        self._service, self._reopen, self._interrupts = service, reopen, interrupts
        self.on_begin: Callable[[Outcome], None] = lambda outcome: None
        self.on_progress: Callable[[Progress], None] = lambda progress: None
        self.on_end: Callable[[Outcome], None] = lambda outcome: None
        self.on_news: Callable[[str], None] = lambda text: None
        self._outcomes: dict[int, Outcome] = {}
        self._begun: set[int] = set()
        self._waits = False
        self._stopping = False
        self.finish_running = False
        """After Ctrl-C the clips that are being made are waited for, rather than stopped."""

    def make(self, outcomes: Sequence[Outcome], fail_fast: bool = False) -> None:
        """Submit what is not in the queue yet and follow all to their ends, or until Ctrl-C, (`fail_fast`) a failure or
        a stranded queue; what was not begun then stays queued, held back. Raises KinetileError.
        """
        self._submit(outcomes)
        for left in reversed(range(OWNERS)):
            try:
                self._follow(fail_fast)
                return
            except OwnerGoneError:
                if not left:
                    raise
                self.on_news("The process that made the clips has ended: going on here.")
                self._service = self._reopen()
                self._want()

    def leave(self) -> None:
        """Leave the queue. An owner first finishes a clip that another process handed over."""
        with contextlib.suppress(OwnerGoneError):
            running = self._service.snapshot().running
            if self._service.owner and running is not None and running.id not in self._outcomes:
                self.on_news("Finishing a clip that another process handed over.")
        self._service.stop(finish=True)

    def stop_now(self, outcomes: Sequence[Outcome]) -> None:
        """End the running clip at once and leave."""
        with contextlib.suppress(KinetileError):
            self._hold_back()
            self._service.cancel(self._running(), now=True)
        self._service.stop(now=True)
        for outcome in outcomes:
            if outcome.job is not None and outcome.state == "running":
                self._put(outcome, _stopped(outcome.job))

    # -- inside --

    def _submit(self, outcomes: Sequence[Outcome]) -> None:
        new = [outcome for outcome in outcomes if outcome.job is None]
        for outcome, job in zip(new, self._service.submit([one.spec for one in new]), strict=True):
            outcome.job = job
        self._outcomes = {one.job.id: one for one in outcomes if one.job is not None}
        old = [one.job.id for one in outcomes if one.job is not None and one.job.held]
        self._service.hold(old, held=False)
        self._want()
        if self._outcomes and not self._service.owner:
            self.on_news("Another Kinetile has this data folder's queue: the clips are handed over to it.")
            self._tell_place()

    def _tell_place(self) -> None:
        """How many clips of others come first, where it is not our turn at once."""
        now = self._service.snapshot()
        first = next((place for place, job in enumerate(now.waiting) if job.id in self._outcomes), len(now.waiting))
        running = now.running is not None and now.running.id not in self._outcomes
        before = running + sum(not job.held for job in now.waiting[:first])
        self._waits = bool(before) and not any(one.state == "running" for one in self._outcomes.values())
        if self._waits:
            self.on_news(f"Waiting behind {clips_text(before)}.")

    def _want(self) -> None:
        for batch in {outcome.spec.batch for outcome in self._outcomes.values()}:
            self._service.want(batch)

    def _follow(self, fail_fast: bool) -> None:
        with self._service.subscribe() as news:
            self._look_again()
            while any(not self._is_over(outcome) for outcome in self._outcomes.values()):
                failed = any(outcome.state in ("failed", "crashed") for outcome in self._outcomes.values())
                wanted = self._interrupts.asked or (fail_fast and failed) or bool(self._service.stranded)
                if wanted and not self._stopping:
                    self._stopping = True
                    self._hold_back()
                    if self._interrupts.asked and not self.finish_running:
                        self._service.cancel(self._running())
                    self._look_again()
                elif self._stopping and self._is_put_back():
                    self._hold_back()
                if self._stopping and not self._running():
                    return
                event = news.get(LOOK_SECONDS)
                if event is not None:
                    self._take(event)

    def _take(self, event: Event) -> None:
        if event.kind == "progress" and event.progress is not None and event.progress.job in self._outcomes:
            self._begin(event.progress.job)
            self.on_progress(_as_progress(event.progress))
        elif event.kind == "job" and event.job is not None and event.job.id in self._outcomes:
            self._put(self._outcomes[event.job.id], event.job)
        elif event.kind == "queue":
            self._look_again()  # somebody may have removed one of ours

    def _look_again(self) -> None:
        wanted = [identity for identity, outcome in self._outcomes.items() if not self._is_over(outcome)]
        for start in range(0, len(wanted), ASKED_AT_ONCE):
            for job in self._now(wanted[start : start + ASKED_AT_ONCE]):
                self._put(self._outcomes[job.id], job)

    def _now(self, ids: Sequence[int]) -> Sequence[Job]:
        """The jobs as they are; one that was removed and is forgotten by now counts as removed."""
        try:
            return self._service.get(ids)
        except UsageError:
            if len(ids) == 1:
                job = self._outcomes[ids[0]].job
                return [] if job is None else [replace(job, removed=True)]
            return [job for identity in ids for job in self._now([identity])]

    def _put(self, outcome: Outcome, job: Job) -> None:
        before, outcome.job = outcome.job, job
        if job.state == "running":
            self._begin(job.id)
        elif job.state == "queued":
            self._begun.discard(job.id)
        elif job.is_over and before is not None and not before.is_over:
            self._begun.discard(job.id)
            self.on_end(outcome)

    def _begin(self, identity: int) -> None:
        if identity not in self._begun:
            self._begun.add(identity)
            if self._waits:
                self._waits = False
                self.on_news("The wait is over: the first clip begins.")
            self.on_begin(self._outcomes[identity])

    def _is_over(self, outcome: Outcome) -> bool:
        return outcome.job is None or outcome.job.is_over or outcome.job.removed

    def _running(self) -> list[int]:
        return [identity for identity, outcome in self._outcomes.items() if outcome.state == "running"]

    def _is_put_back(self) -> bool:
        """Whether a job that ran waits again, so that it would be begun once more."""
        waiting = [outcome.job for outcome in self._outcomes.values() if outcome.state == "waiting"]
        return any(job is not None and not job.held for job in waiting)

    def _hold_back(self) -> None:
        """Keep what was not begun in the queue, for `--resume`."""
        for _ in range(5):
            waiting = [identity for identity, outcome in self._outcomes.items() if outcome.state == "waiting"]
            try:
                self._service.hold(waiting)
                return
            except UsageError:  # one was begun just now
                self._look_again()


def _as_progress(found: JobProgress) -> Progress:
    return Progress(found.stage, found.step, found.steps, found.fraction, None, found.eta_seconds)


def _stopped(job: Job) -> Job:
    return replace(job, state="cancelled")
