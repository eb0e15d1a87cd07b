"""An engine that makes noise in a moment, without torch, and misbehaves as a prompt asks: `fault:WHAT:STAGE`.

Run as a module it is a worker (`python -m tests.app.standin --home DIR`): the real conversation, plans and files. The
faults live here, so no request can reach them in the product.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from app.engine import Clip, Engine, acceleration
from app.errors import Cancelled, JobFailedError
from app.models import family_for
from app.progress import Progress, Stage
from app.request import GenerationRequest
from app.worker.process import main

STEP_SECONDS = 0.02
COMMAND = (sys.executable, "-m", "tests.app.standin")


class StandIn(Engine):
    """Walks through the stages: loading (3 components), text, the request's steps, decoding (4 latent frames)."""

    def generate(
        self,
        request: GenerationRequest,
        on_progress: Any = None,
        should_stop: Any = None,
        *,
        previews: bool = False,
        recorded_plan: Any = None,
        expected: Mapping[str, float] | None = None,
        keeps: bool = False,
    ) -> Clip:
        family = family_for(request.model)
        request = family.normalise(request).request
        plan = acceleration.decide(family, request, recorded_plan, self._cache).data
        fault = re.search(r"fault:(\w+):(\w+)", request.prompt)
        what, where = fault.groups() if fault else ("", "")
        stages: list[tuple[Stage, int]] = [
            ("loading", 3),
            ("text", 1),
            ("denoising", int(request.steps or 1)),
            ("decoding", 4),
        ]
        timings = {}
        for stage, steps in stages:
            begun = time.perf_counter()
            for step in range(steps + 1):
                picture = np.full((2, 8, 8, 3), step, np.uint8) if previews and stage == "denoising" else None
                on_progress(Progress(stage, step, steps, 0.0, picture, sum(expected.values()) if expected else None))
                if stage == where and step == 1:
                    misbehave(what)
                if should_stop() and what != "deaf":
                    raise Cancelled(f"Stopped while {stage}, step {step} of {steps}.")
                time.sleep(STEP_SECONDS)
            timings[{"loading": "load", "text": "text", "denoising": "denoise", "decoding": "decode"}[stage]] = (
                time.perf_counter() - begun
            )
        size = (int(request.frames or 1), int(request.height or 1), int(request.width or 1), 3)
        frames = np.random.default_rng(request.seed or 0).integers(0, 256, size, np.uint8)
        return Clip(frames, float(request.fps or 8), request, (), plan, {}, timings)


def misbehave(what: str) -> None:
    """Do something that a worker should survive, or that Kinetile should survive."""
    match what:
        case "abort":
            os.abort()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            print("goodbye from a library", file=sys.stderr, flush=True)
            os._exit(7)
        case "freeze":  # no sign of life at all
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang" | "deaf":  # signs of life, but nothing else
            time.sleep(600)
        case "memory":
            raise MemoryError("of the test")
        case "value":
            raise ValueError("an unforeseen thing")
        case "fail":
            raise JobFailedError("It broke.")


if __name__ == "__main__":
    sys.exit(main(make_engine=StandIn))
