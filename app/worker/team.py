"""The ranks of one clip on several GPUs: started, given a clip, watched, and ended together.

A rank that ends, fails in the middle of an exchange or hangs leaves the others waiting inside a library, where nothing
reaches them; so all are ended then, the clip with one sentence, and the next one begins with new ones. Ranks that were
stopped or failed at a place where they meet keep the model, and make the next clip.
"""

from __future__ import annotations

import base64
import os
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from accel.parallel.launching import BROKEN, together
from app.engine import Clip
from app.engine.acceleration import Decision
from app.engine.run import OnProgress, ShouldStop
from app.errors import Cancelled, CannotRunError, JobFailedError, KinetileError, error_named
from app.machine_memory import resident
from app.paths import Home
from app.plain import from_data, to_data
from app.progress import Progress
from app.request import Adjustment, GenerationRequest
from app.worker.supervisor import Death, Link, ProcessWorker
from app.worker.wire import Message

COMMAND = (sys.executable, "-m", "app.worker.rank")
PATIENCE = 600.0
"""Seconds in which no rank does anything before they are taken to hang: a large model's file may take long to read."""
CANCEL_SECONDS = 12.0
"""Within these they have stopped, or are ended; the queue's own patience with the worker is longer."""
GRACE = 5.0
"""Seconds for the others to hear of one that failed."""
AGAIN = "run the clip again, with fewer GPUs if it ends so again"


class Team:
    """The ranks for clips on these devices, started by the first clip. Not for several threads."""

    def __init__(
        self, home: Home, devices: Sequence[str], patience: float = PATIENCE, command: Sequence[str] = COMMAND
    ) -> None:
        self.devices = tuple(devices)
        self._home, self.patience, self._command = home, patience, tuple(command)
        self._links: list[Link] = []
        self._heard: queue.Queue[tuple[int, Message, bytes]] = queue.Queue()
        self._jobs = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        """Where they meet, and the first of them leaves its frames."""

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that are there, the first rank's first."""
        return tuple(link.worker.pid for link in self._links)

    def held(self) -> int:
        """Bytes that they hold."""
        return sum(resident(pid) for pid in self.pids)

    def close(self) -> None:
        """End the ranks, which frees the model. The next clip starts new ones."""
        links, self._links = self._links, []
        for link in links:
            link.kill()
        self._heard = queue.Queue()
        if self._folder is not None:
            self._folder.cleanup()

    def generate(
        self,
        request: GenerationRequest,
        decision: Decision,
        on_progress: OnProgress,
        should_stop: ShouldStop,
        previews: bool,
        expected: Mapping[str, float],
        keeps: bool = False,
    ) -> Clip:
        """Make one clip; `request` has its seed; `keeps` as for Engine. Raises Cancelled or JobFailedError; ranks that
        could not be asked any more are gone then.
        """
        begun = time.monotonic()
        clip = _Job(self, on_progress, should_stop)
        if any(link.worker.wait(0) for link in self._links):  # while nothing was made
            self.close()
        if not self._links:
            self._start()
            clip.wait(lambda said: len(said) == len(self), "hello")
        waited = time.monotonic() - begun
        self._jobs += 1
        clip.number = self._jobs
        assert self._folder is not None
        frames = Path(self._folder.name) / "frames.npy"
        for rank, link in enumerate(self._links):
            assert decision.shared is not None
            plan = decision.shared.on(decision.plan, rank).to_dict()
            message = {"do": "generate", "job": clip.number, "request": to_data(request), "plan": plan}
            message |= {"ran_on": decision.ran_on, "previews": previews, "expected": dict(expected), "keeps": keeps}
            link.send({**message, "frames": str(frames)})
        said = clip.wait(lambda said: len(said) == len(self), "done", "failed", "cancelled")
        clip.refuse(said)
        peak = sum(int(one.get("memory") or 0) for one in said.values())
        made = _clip(said[0]["clip"], np.load(frames), decision, peak)
        frames.unlink()
        longer = {name: made.timings.get(name, 0.0) + waited for name in ("load", "total")}
        return replace(made, timings={**made.timings, **longer})

    # -- for its job --

    def send(self, message: Message) -> None:
        """To every rank."""
        for link in self._links:
            link.send(message)

    def heard(self, seconds: float) -> tuple[int, Message, bytes] | None:
        """The next thing that a rank said, or that it ended; None when nothing came within that time."""
        try:
            return self._heard.get(timeout=seconds)
        except queue.Empty:
            return None

    def fallen(self, place: str, first: int) -> KinetileError:
        """The error for ranks of which `first` ended; the others are ended with it."""
        # an ended rank takes others along, which NCCL aborts; the one that was killed or crashed is the cause
        dead = {number: link.worker.death() for number, link in enumerate(self._links) if link.worker.wait(0.2)}
        own = {number: death.signal not in ("", "SIGABRT") for number, death in dead.items()}
        rank = min(dead, key=lambda number: (not own[number], number != first), default=first)
        death = dead.get(rank, Death("", None))
        self.close()
        last = death.printed.splitlines()[-1][:300] if death.printed and not death.signal else ""
        how = death.signal or f"exit code {death.code}" + (f": {last}" if last else "")
        on = "" if self.devices[rank] == "cpu" else f" on {self.devices[rank]}"
        error = JobFailedError(f"Process {rank + 1} of {len(self)}{on} ended while {place} ({how}); {AGAIN}.")
        error.detail = death.printed  # type: ignore[attr-defined]
        return error

    def _start(self) -> None:
        self._heard, self._folder = queue.Queue(), tempfile.TemporaryDirectory(prefix="kinetile-ranks-")
        shared = together(len(self), Path(self._folder.name))
        for rank, device in enumerate(self.devices):
            place = device.partition(":")[2] or str(rank)  # of the GPU, see `joined`
            options = ("--parent", str(os.getpid()), "--patience", str(self.patience))
            who = {**shared, "RANK": str(rank), "LOCAL_RANK": place}
            try:
                worker = ProcessWorker(self._home, (*self._command, *options), who)
            except OSError as error:
                self.close()
                raise CannotRunError(f"A process for the clip can't be started ({error}).") from error
            hear, heard = partial(self._hear, self._heard, rank), self._heard
            self._links.append(Link(worker, hear, partial(self._hear, heard, rank, {"say": "ended"}, b"")))

    @staticmethod
    def _hear(where: queue.Queue[tuple[int, Message, bytes]], rank: int, message: Message, blob: bytes) -> None:
        where.put((rank, message, blob))


class _Job:
    """One clip on its way through the ranks."""

    def __init__(self, team: Team, on_progress: OnProgress, should_stop: ShouldStop) -> None:
        self._team, self._on_progress, self._should_stop = team, on_progress, should_stop
        self.number = 0
        self._last: Progress | None = None
        self._stopped: float | None = None
        self._trouble: tuple[float, Message] | None = None
        self._ticks: dict[int, int] = {}
        self._moved = time.monotonic()
        on_progress(Progress("loading", 0, 1, 0.0))

    def wait(self, enough: Callable[[dict[int, Message]], bool], *wanted: str) -> dict[int, Message]:
        """What the ranks said, by rank, once it is enough. Raises KinetileError, the ranks gone."""
        found: dict[int, Message] = {}
        while not enough(found):
            news = self._team.heard(0.1)
            if news is not None:
                rank, message, blob = news
                if message["say"] == "ended":
                    raise self._ended(rank)
                if message.get("job", self.number) == self.number:
                    self._take(rank, message, blob)
                    if message["say"] in wanted:
                        found[rank] = message
            self._look(found)
        return found

    def refuse(self, said: Mapping[int, Message]) -> None:
        """Raise what kept the ranks from making the clip, if anything did."""
        failed = [one for one in said.values() if one["say"] == "failed"]
        if any(BROKEN in one["message"] for one in failed):
            self._team.close()  # what is broken between them stays so
        if failed:
            # what another rank said of it, or of the connection, only tells that there was something
            raise self._failure(min(failed, key=lambda one: (BROKEN in one["message"], bool(one.get("heard")))))
        for one in said.values():
            if one["say"] == "cancelled":
                raise Cancelled(str(one["message"]))

    def _take(self, rank: int, message: Message, blob: bytes) -> None:
        match message["say"]:
            case "alive":
                if self._ticks.get(rank) != message["ticks"]:
                    self._ticks[rank], self._moved = int(message["ticks"]), time.monotonic()
                return
            case "trouble" | "failed" if not message["heard"]:
                if self._trouble is None or BROKEN in self._trouble[1]["message"]:
                    self._trouble = (time.monotonic() if self._trouble is None else self._trouble[0], message)
            case "progress":
                preview = np.frombuffer(blob, np.uint8).reshape(message["shape"]) if blob else None
                told = (message["stage"], int(message["step"]), int(message["steps"]), float(message["fraction"]))
                self._last = Progress(*told, preview, message["eta_seconds"])
                self._on_progress(self._last)
        self._moved = time.monotonic()

    def _look(self, found: Mapping[int, Message]) -> None:
        """End the ranks when one failed and the others don't hear of it, or they don't stop, or they hang."""
        moment = time.monotonic()
        if self._stopped is None and self._should_stop():
            self._stopped = moment
            self._team.send({"do": "cancel", "job": self.number})
        if self._trouble is not None and moment - self._trouble[0] > GRACE:
            self._team.close()
            raise self._failure(self._trouble[1])
        if self._stopped is not None and (moment - self._stopped > CANCEL_SECONDS or not self.number):
            self._team.close()
            raise Cancelled(f"Stopped while {self._place()}.")
        if moment - self._moved > self._team.patience:
            self._team.close()
            raise JobFailedError(
                f"The {len(self._team)} processes of the clip did nothing for {self._team.patience:.0f} s while "
                f"{self._place()}, so they were ended; {AGAIN}."
            )

    def _ended(self, rank: int) -> KinetileError:
        if self._trouble is not None and BROKEN not in self._trouble[1]["message"]:
            self._team.close()
            return self._failure(self._trouble[1])
        return self._team.fallen(self._place(), rank)

    def _failure(self, message: Message) -> KinetileError:
        error = error_named(str(message["kind"]), str(message["message"]), str(message["detail"]))
        error.out_of_memory = bool(message["out_of_memory"])  # type: ignore[attr-defined]
        return error

    def _place(self) -> str:
        if self._last is None:
            return "beginning"
        step = f", step {self._last.step} of {self._last.steps}" if self._last.stage == "denoising" else ""
        return f"{self._last.stage}{step}"


def _clip(data: Message, frames: Any, decision: Decision, memory: int) -> Clip:
    return Clip(
        frames,
        float(data["fps"]),
        from_data(GenerationRequest, data["request"]),
        tuple(from_data(Adjustment, one) for one in data["adjustments"]),
        decision.data,
        data["report"],
        data["timings"],
        data["tokens"],
        {name: base64.b64decode(text) for name, text in data["pictures"].items()},
        memory,
        Path(data["latents"]) if data["latents"] else None,
    )
