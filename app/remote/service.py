"""The owner of the queue whose clips are made by the machines of a cluster; everything else as in `LocalService`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from app import estimate as reckoning
from app.answers import PlanAnswer
from app.errors import CannotRunError, KinetileError, UsageError
from app.estimate import Estimate
from app.paths import Home
from app.plain import to_data, to_json
from app.queue import opening
from app.queue.dispatching import Dispatching
from app.queue.owner import LocalService
from app.queue.service import Service
from app.remote.cluster import Cluster
from app.remote.crew import Crew
from app.request import GenerationRequest


class CrewService(LocalService):
    """Of the cluster's places, which are open. This machine's own worker answers questions about this machine only."""

    def __init__(
        self, home: Home, release: Callable[[], None] = lambda: None, *, cluster: Cluster, **options: Any
    ) -> None:
        self._cluster = cluster
        self._told: dict[str, PlanAnswer] = {}
        super().__init__(home, release, **options)

    def _dispatching(self, batches: set[str] | None, previews: bool) -> Dispatching:
        self._crew = Crew(self._cluster.places, self.home, self._queue, self._news.tell, batches, self._patience)
        self._crew.on_retired = self._strand
        return self._crew

    def _strand(self, why: str) -> None:
        self.stranded = f"No machine of the cluster is left to make clips. {why}"

    def plan(self, request: GenerationRequest, recorded: Any = None) -> PlanAnswer:
        """What the machines will use: the first one's answer, its summary naming each where they differ. Raises what
        all of them say when none can.
        """
        same = request.model_copy(update={"prompt": "", "negative_prompt": None, "seed": None, "steps": None})
        key = to_json([to_data(same), recorded])
        if key not in self._told:
            question = {"do": "plan", "request": to_data(request), "recorded": recorded}
            self._told[key] = _together(self._crew.plans(question))
        return self._told[key]

    def estimate(self, request: GenerationRequest, folder: Path | None = None) -> Estimate:
        """Memory of the machine that has most free. No seconds: what was measured is of this machine."""
        plan = self.plan(request)
        frees: list[tuple[int, str]] = []
        for member in self._crew.alive:
            free, _, _ = member.place.call("free")
            frees.append((free + member.keeper.memory, member.place.name))
        if not frees:
            raise CannotRunError(self.stranded)
        return reckoning.estimate(request, folder or self.home.outputs, plan.memory, reckoning.Times(), max(frees))


def open_crew(home: Home, cluster: Cluster, options: dict[str, Any]) -> Service:
    """The service whose clips the cluster makes. Raises CannotRunError where another process owns the queue."""
    service = opening.open_service(home, 10.0, options, partial(CrewService, cluster=cluster))
    if not service.owner:
        service.stop()
        raise CannotRunError(
            f"Another Kinetile makes the clips of the data folder {home.root}, so --ray can't: end that one, or choose "
            "another folder with --home DIR."
        )
    return service


def _together(answers: list[tuple[str, PlanAnswer | KinetileError]]) -> PlanAnswer:
    found = [(name, answer) for name, answer in answers if isinstance(answer, PlanAnswer)]
    errors = [answer for _, answer in answers if isinstance(answer, KinetileError)]
    wrong = next((error for error in errors if isinstance(error, UsageError)), None)
    if wrong is not None or not found:
        raise wrong or (errors[0] if errors else CannotRunError("No machine of the cluster is left to make clips."))
    first = found[0][1]
    if len({answer.summary for _, answer in found}) == 1:
        return first
    return replace(first, summary="; ".join(f"{name}: {answer.summary}" for name, answer in found))
