"""An engine of one rank that misbehaves where a prompt asks for it: `fault:WHAT:RANK`, in the second step; several at
once where each asks for another rank.

Run as a module it is a rank (`python -m tests.app.ranked`), started by a team of `TEAM` with little patience.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from accel.finite import NonFiniteError
from app.engine import Clip, Engine, watcher
from app.engine.watcher import Watcher
from app.paths import Home
from app.progress import Progress
from app.request import GenerationRequest
from app.worker.engines import WorkerEngine
from app.worker.rank import main
from app.worker.team import Team

COMMAND = (sys.executable, "-m", "tests.app.ranked")
PATIENCE = 60.0


class Faulty(Engine):
    """The real engine; its fault happens in a block of the transformer, "nan" where latents are looked at."""

    def generate(self, request: GenerationRequest, *args: Any, **named: Any) -> Clip:
        faults = {rank: what for what, rank in re.findall(r"fault:(\w+):(\d+)", request.prompt)}
        fault = faults.get(os.environ["RANK"])
        if fault is None:
            return super().generate(request, *args, **named)
        if fault == "decode":
            return self._stopping_short(request, *args, **named)
        if fault == "nan":
            return self._without_numbers(request, *args, **named)
        inner, calls = Watcher._check_together, 0

        def check(self: Watcher, *given: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 14:
                misbehave(fault)
            inner(self, *given)

        Watcher._check_together = check  # type: ignore[method-assign]
        try:
            return super().generate(request, *args, **named)
        finally:
            Watcher._check_together = inner  # type: ignore[method-assign]

    def _stopping_short(self, request: GenerationRequest, told: Any, *args: Any, **named: Any) -> Clip:
        """It fails while it decodes where a file says so, which is gone then."""
        assert self._home is not None
        mark = self._home.root / "stop-short"

        def tell(progress: Progress) -> None:
            told(progress)
            if progress.stage == "decoding" and progress.step and mark.exists():
                mark.unlink()
                misbehave("value")

        return super().generate(request, tell, *args, **named)

    def _without_numbers(self, request: GenerationRequest, *args: Any, **named: Any) -> Clip:
        looking: Any = watcher
        inner, calls = looking.check_latents, 0

        def check(latents: Any, step: int, backends: str) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise NonFiniteError("latents are not finite", step, backends)
            inner(latents, step, backends)

        looking.check_latents = check
        try:
            return super().generate(request, *args, **named)
        finally:
            looking.check_latents = inner


def misbehave(what: str) -> None:
    match what:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            print("goodbye from a library", file=sys.stderr, flush=True)
            os._exit(7)
        case "hang":
            time.sleep(600)
        case "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "value":
            raise ValueError("an unforeseen thing")
        case "memory":
            raise MemoryError("of the test")


def team(home: Home, devices: Sequence[str], patience: float = PATIENCE) -> Team:
    """Ranks of this module."""
    return Team(home, devices, patience, COMMAND)


def engine(home: Home, patience: float = PATIENCE) -> WorkerEngine:
    """The worker's engine with ranks of this module."""
    return WorkerEngine(home, partial(team, patience=patience))


if __name__ == "__main__":
    sys.exit(main(make_engine=Faulty))
