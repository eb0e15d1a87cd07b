"""The worker's engine: clips on one device here, those on several by a team of ranks; never both models in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.engine import Clip, Engine, acceleration
from app.engine.run import OnProgress, ShouldStop
from app.models import family_for
from app.paths import Home
from app.request import GenerationRequest
from app.worker.team import Team

MakeTeam = Callable[[Home, Sequence[str]], Team]


class WorkerEngine(Engine):
    """As Engine; a request for several GPUs frees the model here, and one for a single GPU ends the ranks."""

    def __init__(self, home: Home, make_team: MakeTeam = Team) -> None:
        super().__init__(home)
        self._place, self._make_team = home, make_team
        self.team: Team | None = None

    def close(self) -> None:
        super().close()
        team, self.team = self.team, None
        if team is not None:
            team.close()

    def held(self) -> int:
        return 0 if self.team is None else self.team.held()

    def generate(
        self,
        request: GenerationRequest,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
        *,
        previews: bool = False,
        recorded_plan: Mapping[str, Any] | None = None,
        expected: Mapping[str, float] | None = None,
        keeps: bool = False,
    ) -> Clip:
        if request.accel.gpus == 1:
            if self.team is not None:
                self.close()
            return super().generate(
                request,
                on_progress,
                should_stop,
                previews=previews,
                recorded_plan=recorded_plan,
                expected=expected,
                keeps=keeps,
            )
        seeded = request.expand()[0]  # a random seed must be the same one for all ranks
        family = family_for(request.model)
        decision = acceleration.decide(family, family.normalise(seeded).request, recorded_plan, self._cache)
        assert decision.shared is not None, "more than one GPU was asked for"
        if self.team is None or self.team.devices != decision.shared.devices:
            self.close()
            self.team = self._make_team(self._place, decision.shared.devices)
        told, asked = on_progress or (lambda progress: None), should_stop or (lambda: False)
        return self.team.generate(seeded, decision, told, asked, previews, expected or {}, keeps)
