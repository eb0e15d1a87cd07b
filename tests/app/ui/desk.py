"""A service without a worker: the real queue in a folder of its own, accelerators as planned for a recorded machine.

What needs a model's run (estimates, previews) is not here; tests of those use the real service.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import accel
from accel import doctor
from accel.backends import backends
from accel.types import Machine, Preferences
from app.answers import Accelerator, PlanAnswer
from app.engine.acceleration import summary
from app.errors import CannotRunError, PlanRefusedError, UsageError
from app.estimate import Estimate, MemoryNeed
from app.fetching import Fetching
from app.measuring import MeasureAsk, Measuring
from app.models import family_for
from app.paths import Home
from app.queue.jobs import ENDED, History, Job, JobQueue, JobSpec, JobState, Removal
from app.queue.service import JobProgress, Preview, Service, Snapshot, Subscription, WorkerStatus
from app.request import AccelPreferences, GenerationRequest
from tests.accel.recorded import machine, model

FIELDS = {field.name for field in dataclasses.fields(Preferences)}
SETTINGS: tuple[tuple[str, Any, Any], ...] = (
    ("attention", "transformer", "attention"),
    ("linear", "transformer", "linear"),
    ("text_encoder_linear", "text_encoder", "linear"),
    ("vae", "vae", "vae"),
)


class Desk(Service):
    """`queue` is the real one: a test plays the worker through it. `progress` is what the running job says."""

    owner = True

    def __init__(self, home: Home, machine_name: str = "sapphire-rapids") -> None:
        self.home, self.machine_name = home, machine_name
        self.queue = JobQueue(home.database)
        self.progress: JobProgress | None = None
        self.served: dict[tuple[str, str], tuple[int, int]] = {}
        self.cancelled: list[int] = []
        self.asked: list[MeasureAsk] = []
        self.state = Measuring()
        self.fetched = Fetching()
        self.results: dict[str, Any] | None = None
        self.version = 1
        self._machine: Machine | None = None
        self._preferences = AccelPreferences()

    @property
    def machine(self) -> Machine:
        if self._machine is None:
            self._machine = machine(self.machine_name, self.home.cache)
        return self._machine

    def stop(self, now: bool = False, finish: bool = False) -> None:
        self.queue.close()

    def submit(self, specs: Sequence[JobSpec], held: bool = False) -> tuple[Job, ...]:
        self.version += 1
        return self.queue.submit(specs, held=held)

    def get(self, ids: Sequence[int]) -> tuple[Job, ...]:
        return self.queue.get(ids)

    def snapshot(self) -> Snapshot:
        running = next(iter(self.queue.running()), None)
        worker = WorkerStatus("busy" if running else "idle", 1, 0, "starter")
        return Snapshot(self.version, running, self.progress if running else None, self.queue.waiting(), worker)

    def move(self, identity: int, to: int) -> None:
        self.version += 1
        self.queue.move(identity, to)

    def want(self, batch: str) -> None:
        pass

    def hold(self, ids: Sequence[int], held: bool = True) -> None:
        self.version += 1
        self.queue.hold(ids, held)

    def remove(self, ids: Sequence[int]) -> Removal:
        self.version += 1
        return self.queue.remove(ids)

    def undo(self, removal: Removal) -> tuple[Job, ...]:
        self.version += 1
        return self.queue.undo(removal)

    def duplicate(self, identity: int, new_seed: bool = False) -> Job:
        self.version += 1
        return self.queue.duplicate(identity, new_seed=new_seed)

    def retry(self, identity: int) -> Job:
        self.version += 1
        return self.queue.retry(identity)

    def cancel(self, ids: Sequence[int], now: bool = False) -> None:
        self.version += 1
        self.cancelled += ids

    def history(
        self, search: str = "", offset: int = 0, limit: int = 50, states: Sequence[JobState] = ENDED
    ) -> History:
        return self.queue.history(search, offset, limit, states)

    def known(self, keys: Sequence[str]) -> dict[str, Job]:
        return self.queue.known(keys)

    def subscribe(self) -> Subscription:
        raise CannotRunError("The desk tells no news.")

    def preview(self, job: int) -> Preview | None:
        return None

    def plan(self, request: GenerationRequest, recorded: dict[str, Any] | None = None) -> PlanAnswer:
        plan = self._plan(request.accel)
        return PlanAnswer(plan.to_dict(), summary(plan.to_dict()), MemoryNeed(0, 0))

    def _plan(self, wishes: AccelPreferences) -> accel.Plan:
        asked = {name: value for name, value in wishes.model_dump().items() if name in FIELDS}
        try:
            return accel.make_plan(self.machine, model(), Preferences(**asked))
        except accel.PlanError as error:
            raise PlanRefusedError(f"{'; '.join(error.reasons)}.") from error

    def estimate(self, request: GenerationRequest, folder: Path | None = None) -> Estimate:
        raise CannotRunError("The desk makes no clips.")

    def doctor(self) -> dict[str, Any]:
        return doctor.as_data(self.machine, accel.make_plan(self.machine, model()))

    def accelerators(self, request: GenerationRequest) -> tuple[Accelerator, ...]:
        plan, rows = self._plan(self._preferences), []
        for setting, stage, kind in SETTINGS:
            engaged = plan.stage(stage)
            assert engaged is not None
            choice = getattr(engaged, kind)
            for item in backends(kind):
                on = choice.engaged == item.name or (item.reference and choice.engaged == "stock")
                refusals = () if on else self._refusals(setting, item.name)
                state: Any = "on" if on else "unavailable" if refusals else "off"
                reasons = choice.reasons if on else refusals or (_off(item.exact, choice.engaged),)
                forced = on and choice.requested != "auto"
                calls, served = self.served.get((setting, item.name), (0, 0))
                row = Accelerator(setting, stage, item.name, item.title, state, reasons, forced, item.exact, False)
                rows.append(dataclasses.replace(row, reference=item.reference, calls=calls, served=served))
        return tuple(rows)

    def _refusals(self, setting: str, name: str) -> tuple[str, ...]:
        try:
            self._plan(self._preferences.model_copy(update={setting: name}))
        except CannotRunError as error:
            return (str(error),)
        return ()

    def readouts(self) -> dict[str, Any]:
        return {"results": self.results, "stale": [], "problems": []}

    def measure(self, ask: MeasureAsk) -> int:
        self.asked.append(ask)
        self.state = Measuring(len(self.asked), ask.kind, "running", 0.25, "the machine's peak")
        return self.state.number

    def measuring(self) -> Measuring:
        return self.state

    def stop_measuring(self) -> None:
        self.state = dataclasses.replace(self.state, state="stopped", text="Stopped.")

    def fetch(self, model: str) -> int:
        self.version += 1
        self.fetched = Fetching(self.fetched.number + 1, model, model, "running")
        return self.fetched.number

    def fetching(self) -> Fetching:
        return self.fetched

    def stop_fetching(self) -> None:
        self.version += 1
        self.fetched = dataclasses.replace(self.fetched, state="stopped", error="Stopped.")

    def forget_fetch(self) -> None:
        if self.fetched.is_over:
            self.version += 1
            self.fetched = Fetching(self.fetched.number)

    def preferences(self) -> AccelPreferences:
        return self._preferences

    def set_preferences(self, preferences: AccelPreferences) -> None:
        self._plan(preferences)
        self.version += 1
        self._preferences = preferences


def _off(exact: bool, engaged: str) -> str:
    return f"{engaged} was taken instead" if exact else "approximate, so it is only used when chosen"


def spec(prompt: str, folder: Path, seed: int = 1, **changes: Any) -> JobSpec:
    """A job for the starter."""
    asked = GenerationRequest(prompt=prompt, seed=seed, **changes)
    normalised = family_for(asked.model).normalise(asked)
    if normalised.request.seed != seed:
        raise UsageError("The seed was changed.")
    return JobSpec(" ".join(prompt.split())[:60], asked, normalised.request, folder, normalised.adjustments)
