"""One rank of a clip that several GPUs make (`python -m app.worker.rank --home DIR`): an engine among its equals.

Started by `team`, which says by the environment who is who, and speaks `wire` over standard input and output. It ends
when the one that started it is gone.

    in    generate (job, request, plan, ran_on, previews, expected, keeps, frames), cancel (job), quit
    out   hello, alive (ticks), progress, trouble, done, failed, cancelled
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import faulthandler
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accel.errors import AccelError
from accel.parallel.leash import end_with
from accel.types import Plan
from app.engine import Clip, Engine
from app.engine.acceleration import Decision
from app.engine.alone import Alone
from app.errors import Cancelled, KinetileError
from app.machine_memory import peak_memory, reset_peak, trim
from app.paths import Home
from app.plain import from_data, to_data
from app.progress import Progress
from app.request import GenerationRequest
from app.video import plain
from app.worker.process import ALIVE_SECONDS, Telling, claim_standard_streams
from app.worker.wire import Channel, Closed, Message

MakeEngine = Callable[[Home, Alone], Engine]


def main(argv: Sequence[str] | None = None, make_engine: MakeEngine = Engine) -> int:
    """Serve on standard input and output until told to quit or alone."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="python -m app.worker.rank")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--patience", type=float, required=True)
    options = parser.parse_args(argv)
    end_with(options.parent)
    rank = Rank(claim_standard_streams())
    try:
        rank.serve(Home(options.home), options.patience, make_engine)
    except AccelError as error:
        print(f"{error}", file=sys.stderr, flush=True)
        os._exit(1)
    sys.stderr.flush()
    os._exit(0)  # without the end of the process group, which waits for ranks that may be gone


class Rank:
    """One conversation with the team."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._work: queue.Queue[Message | None] = queue.Queue()
        self._cancelled: set[int] = set()
        self._ticks = 0
        self._job = -1
        for target in (self._read, self._give_signs):
            threading.Thread(target=target, daemon=True).start()

    def serve(self, home: Home, patience: float, make_engine: MakeEngine) -> None:
        """Join the other ranks and make clips with them. Raises AccelError when they can't be joined."""
        from accel.parallel.ranks import joined  # imports torch
        from app.engine.together import Together

        # the team's patience ends first: it tells a person what was, where NCCL only ends this process
        with joined(2 * patience) as ranks:
            together = Together(ranks, self._trouble)
            with make_engine(home, together) as engine:
                self._say({"say": "hello"})
                while (message := self._work.get()) is not None:
                    together.decision = _decision(message)
                    self._generate(engine, message, together.first)

    def _read(self) -> None:
        try:
            while True:
                message, _ = self._channel.receive()
                match message["do"]:
                    case "cancel":
                        self._cancelled.add(int(message["job"]))
                    case "generate":
                        self._work.put(message)
                    case "quit":
                        self._work.put(None)
        except Closed:
            os._exit(1)  # nobody is left who could want anything

    def _give_signs(self) -> None:
        wait = threading.Event()
        while not wait.wait(ALIVE_SECONDS):
            self._say({"say": "alive", "ticks": self._ticks})

    def _say(self, message: Message) -> None:
        with contextlib.suppress(Closed):  # the reading thread sees it too
            self._channel.send(message)

    def _trouble(self, error: BaseException) -> None:
        self._say({"say": "trouble", "job": self._job, **_failure(error)})

    def _stops(self) -> bool:
        self._ticks += 1
        return self._job in self._cancelled

    def _generate(self, engine: Engine, message: Message, first: bool) -> None:
        self._job = int(message["job"])
        request: GenerationRequest = from_data(GenerationRequest, message["request"])
        telling = Telling(self._channel, self._job)

        def progress(news: Progress) -> None:
            self._ticks += 1
            if first:
                telling(news)

        reset_peak()
        said: Message
        try:
            previews = first and bool(message["previews"])
            options = {"expected": message["expected"], "keeps": bool(message["keeps"])}
            clip = engine.generate(request, progress, self._stops, previews=previews, **options)
            said = {"say": "done", "memory": peak_memory()}
            if first:
                np.save(message["frames"], clip.frames)
                said["clip"] = clip_to_data(clip)
        except Cancelled as error:
            said = {"say": "cancelled", "message": str(error)}
        except Exception as error:
            said = {"say": "failed", **_failure(error)}
        self._say({**said, "job": self._job})
        trim()


def _decision(message: Message) -> Decision:
    return Decision(Plan.from_dict(message["plan"]), ran_on=message["ran_on"])


def _failure(error: BaseException) -> Message:
    named = type(error).__name__
    return {
        "kind": named if isinstance(error, KinetileError) and named != "HeardError" else "JobFailedError",
        "message": str(error) if isinstance(error, KinetileError | AccelError) else f"{named}: {error}",
        "detail": getattr(error, "detail", "") or "".join(traceback.format_exception(error)),
        "out_of_memory": bool(getattr(error, "out_of_memory", False)),
        "heard": named == "HeardError" or "HeardError" in str(getattr(error, "detail", "")),
    }


def clip_to_data(clip: Clip) -> dict[str, Any]:
    """A clip without its frames and plan."""
    return {
        "fps": clip.fps,
        "request": to_data(clip.request),
        "adjustments": [to_data(one) for one in clip.adjustments],
        "report": plain(clip.report),
        "timings": clip.timings,
        "tokens": clip.tokens,
        "pictures": {name: base64.b64encode(data).decode() for name, data in clip.pictures.items()},
        "latents": "" if clip.latents is None else str(clip.latents),
    }


if __name__ == "__main__":
    sys.exit(main())
