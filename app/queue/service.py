"""Service: what page and batch see of the queue and of the process that makes the clips.

    with open_service(home) as service:
        (job,) = service.submit([spec])
        with service.subscribe() as news:
            for event in news: ...

`open_service` makes this process the owner of the queue in that data folder, or, when another process owns it, returns
a client that hands everything over to the owner: both are a `Service`. Neither imports torch or diffusers; what needs
them happens in the worker's process and comes back as data. Every method may be called from any thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from app.answers import Accelerator, PlanAnswer
from app.errors import CannotRunError
from app.estimate import Estimate
from app.fetching import Fetching
from app.measuring import MeasureAsk, Measuring
from app.paths import Home
from app.progress import Stage
from app.queue.jobs import ENDED, History, Job, JobSpec, JobState, Removal
from app.request import AccelPreferences, GenerationRequest

UNDO_SECONDS = 600.0
"""How long a removal can be undone; then the clip's files go."""

WorkerState = Literal["absent", "starting", "idle", "busy"]


class OwnerGoneError(CannotRunError):
    """The process that owned the queue ended or does not answer; open the service again to take over."""


@dataclass(frozen=True)
class JobProgress:
    """How far the running job is. Fields as in `app.progress.Progress`; `preview` counts the previews that were made
    so far, so that a new one is known by its number.
    """

    job: int
    stage: Stage
    step: int
    steps: int
    fraction: float
    eta_seconds: float | None = None
    preview: int = 0
    stopping: bool = False


@dataclass(frozen=True)
class Preview:
    """The newest picture of the running job: uint8 (latent frames, height, width, 3) RGB, a fraction of the clip's
    size.
    """

    job: int
    number: int
    frames: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class WorkerStatus:
    """The process that makes the clips. memory: its resident bytes. note: what became of the one before it, when that
    did not end on its own.
    """

    state: WorkerState
    pid: int | None = None
    memory: int = 0
    model: str = ""
    note: str = ""


@dataclass(frozen=True)
class Snapshot:
    """Everything that a page shows of the queue, at one moment. `version` grows with every change."""

    version: int
    running: Job | None
    progress: JobProgress | None
    waiting: tuple[Job, ...]
    worker: WorkerStatus


@dataclass(frozen=True)
class Event:
    """Something changed. `job`: that job is in another state, or new. `progress`: the running job went on. `queue`:
    order, holds or removals. `worker`: the worker came or went.
    """

    kind: Literal["job", "progress", "queue", "worker"]
    job: Job | None = None
    progress: JobProgress | None = None
    worker: WorkerStatus | None = None


class Subscription(ABC):
    """Events as they come. A listener that lags gets the newest progress, never a flood of old ones; changes of jobs
    are not dropped.
    """

    @abstractmethod
    def get(self, timeout: float | None = None) -> Event | None:
        """The next event, None when none came in time. Raises OwnerGoneError when no more can come."""

    @abstractmethod
    def close(self) -> None:
        """No more events are wanted."""

    def __iter__(self) -> Iterator[Event]:
        while True:
            event = self.get()
            if event is not None:
                yield event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Service(ABC):
    """The queue and the worker behind it."""

    owner: bool
    """Whether this process owns the queue (else it hands everything over to the one that does)."""

    stranded = ""
    """Why nothing is made any more although jobs wait, a sentence; empty while they are made."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def stop(self, now: bool = False, finish: bool = False) -> None:
        """Leave. The owner first stops the running job (`finish`: waits for its end; `now`: ends the worker at once),
        which is queued again, and gives the queue free; queued jobs stay queued. A client only hangs up.
        """

    # -- the queue --

    @abstractmethod
    def submit(self, specs: Sequence[JobSpec], held: bool = False) -> tuple[Job, ...]:
        """Put jobs at the end of the queue, all or none."""

    @abstractmethod
    def get(self, ids: Sequence[int]) -> tuple[Job, ...]:
        """The jobs with these ids, in the order of `ids`."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """How things stand now; cheap."""

    @abstractmethod
    def move(self, identity: int, to: int) -> None:
        """Give a queued job the place `to` (0: next)."""

    @abstractmethod
    def want(self, batch: str) -> None:
        """Have the jobs of this batch made also by an owner that makes only its own (a `--headless` run)."""

    @abstractmethod
    def hold(self, ids: Sequence[int], held: bool = True) -> None:
        """Keep queued jobs from being begun, or release them."""

    @abstractmethod
    def remove(self, ids: Sequence[int]) -> Removal:
        """Take queued jobs out of the queue, ended ones (with their files) out of the history. Can be undone for a
        while: `UNDO_SECONDS`.
        """

    @abstractmethod
    def undo(self, removal: Removal) -> tuple[Job, ...]:
        """Bring removed jobs back. Raises UsageError when it is too late."""

    @abstractmethod
    def duplicate(self, identity: int, new_seed: bool = False) -> Job:
        """The same clip once more at the end of the queue; with `new_seed` a sibling of it."""

    @abstractmethod
    def retry(self, identity: int) -> Job:
        """A failed, cancelled or crashed job anew, at the end of the queue."""

    @abstractmethod
    def cancel(self, ids: Sequence[int], now: bool = False) -> None:
        """Stop these jobs: a running one within a step (`now`: at once, by ending its process), a queued one by ending
        it as cancelled. Returns at once; the state changes when it has stopped. Ended jobs are left as they are.
        """

    @abstractmethod
    def history(
        self, search: str = "", offset: int = 0, limit: int = 50, states: Sequence[JobState] = ENDED
    ) -> History:
        """What has ended, newest first; `search`: every word of it stands in the prompt or name."""

    @abstractmethod
    def known(self, keys: Sequence[str]) -> dict[str, Job]:
        """By key, the job that tells most about it: a done one, else a queued or running one, else the newest."""

    # -- news --

    @abstractmethod
    def subscribe(self) -> Subscription:
        """News from now on."""

    @abstractmethod
    def preview(self, job: int) -> Preview | None:
        """The newest preview of the running job `job`, None when there is none."""

    # -- answers from the worker --

    @abstractmethod
    def plan(self, request: GenerationRequest, recorded: Any = None) -> PlanAnswer:
        """The accelerators for a request (as its family normalised it). Raises UsageError for a setting that does not
        exist, CannotRunError for a forced one that can't run here.
        """

    @abstractmethod
    def estimate(self, request: GenerationRequest, folder: Path | None = None) -> Estimate:
        """What a clip (a request as its family normalised it) will take, into `folder` (None: the home's outputs)."""

    @abstractmethod
    def doctor(self) -> dict[str, Any]:
        """The doctor's report: sentences under have, use, missing and could, and all facts under machine and plan."""

    @abstractmethod
    def accelerators(self, request: GenerationRequest) -> tuple[Accelerator, ...]:
        """Every backend for a request, with its state on this machine under the stored preferences."""

    # -- measuring --

    @abstractmethod
    def readouts(self) -> dict[str, Any]:
        """What was measured here: results (`accel.readouts.results.Results` as data, or None), stale ones with why."""

    @abstractmethod
    def measure(self, ask: MeasureAsk) -> int:
        """Begin to measure this machine once no clip is made; returns the measurement's number. Raises UsageError while
        another one is going on.
        """

    @abstractmethod
    def measuring(self) -> Measuring:
        """How the newest measurement stands; cheap."""

    @abstractmethod
    def stop_measuring(self) -> None:
        """Stop it soon; returns at once."""

    # -- models --

    @abstractmethod
    def fetch(self, model: str) -> int:
        """Begin to bring a model onto this machine (a name of the catalogue or "hf:owner/name"), the one thing that
        uses the network; returns the fetch's number. Raises UsageError for an unknown one, and while another one is
        fetched.
        """

    @abstractmethod
    def fetching(self) -> Fetching:
        """How the newest fetch stands; cheap."""

    @abstractmethod
    def stop_fetching(self) -> None:
        """Stop it soon; returns at once. What came is kept."""

    @abstractmethod
    def forget_fetch(self) -> None:
        """Tell no more how the last fetch ended; one that is going on is left alone."""

    # -- preferences --

    @abstractmethod
    def preferences(self) -> AccelPreferences:
        """The accelerators that a person switched, kept in the data folder."""

    @abstractmethod
    def set_preferences(self, preferences: AccelPreferences) -> None:
        """Keep these. They act where a request is made (`with_preferences`), so from the next job on. Raises
        UsageError or CannotRunError for what can't be, and keeps nothing then.
        """


def with_preferences(request: GenerationRequest, preferences: AccelPreferences) -> GenerationRequest:
    """`request` with the stored preferences wherever it says "auto" itself."""
    own = {name: value for name, value in request.accel.model_dump().items() if value != "auto"}
    return request.model_copy(update={"accel": preferences.model_copy(update=own)})


def open_service(home: Home, *, seconds: float = 10.0, **options: Any) -> Service:
    """The service of the queue in `home`: its owner from now on, or a client of the process that owns it.

    `options` are those of `app.queue.owner.LocalService` and count for an owner: `all_batches=False` makes only jobs
    that are submitted or wanted from now on, `previews=False` makes no pictures, `warm=True` starts the worker at once.
    Raises CannotRunError when the owner does not answer within `seconds`, or the folder or database can't be used.
    """
    from app.queue import opening

    return opening.open_service(home, seconds, options)
