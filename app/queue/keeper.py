"""Keep one worker: start it when it is needed, pass on what it says, ask it questions, end it.

A worker has a number; what is said about an earlier one is of no interest once it was replaced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from app.errors import CannotRunError, KinetileError, error_named
from app.machine_memory import free_memory
from app.paths import Home
from app.queue.service import WorkerState, WorkerStatus
from app.video.outputs import size_text
from app.worker.supervisor import Death, Launcher, Link, created_at
from app.worker.wire import Message

ANSWER_SECONDS = 300.0
"""How long a question may take: the first plan for a model imports torch, on a busy machine slowly."""


class Question:
    """Something asked of the worker; `take` gives the answer once `is_here`."""

    def __init__(self) -> None:
        self.answer: Message | None = None

    def is_here(self) -> bool:
        """Whether the answer has come."""
        return self.answer is not None

    def take(self) -> Any:
        """The answer. Raises the KinetileError that it was."""
        assert self.answer is not None
        if "message" in self.answer:
            raise error_from(self.answer)
        return self.answer["data"]


class WorkerGoneError(CannotRunError):
    """The worker ended before it answered."""


class Keeper:
    """The worker of one owner. `changed` is notified on every message and end; `on_message` gets what is said about
    jobs, `on_measuring` how far a measurement is, `on_status` that the worker came or went.
    """

    def __init__(self, home: Home, launch: Launcher, warm: bool = False) -> None:
        self.changed = threading.Condition()
        self.on_message: Callable[[Message, bytes], None] = lambda message, blob: None
        self.on_measuring: Callable[[Message], None] = lambda message: None
        self.on_status: Callable[[], None] = lambda: None
        self.on_started: Callable[[int, float], None] = lambda pid, created: None
        self._home, self._launch, self._warm = home, launch, warm
        self._link: Link | None = None
        self._number = 0
        self._ready = False
        self._deaths: dict[int, Death] = {}
        self._questions: dict[int, Question] = {}
        self._asked = 0
        self._closed = False
        self.memory = 0
        self.loaded = ""
        """What is in its memory: model and plan, empty when unknown."""
        self.imported = False
        """Whether it has imported what models are made of, which takes seconds."""
        self.note = ""
        self.last_sign = self.last_news = time.monotonic()

    # -- its life --

    def start(self) -> int:
        """Start a worker if there is none; returns its number. Raises CannotRunError."""
        with self.changed:
            if self._closed:
                raise CannotRunError("Kinetile is stopping.")
            if self._link is not None:
                return self._number
            try:
                worker = self._launch(self._home)
            except OSError as error:
                raise CannotRunError(f"The worker's process can't be started ({error}).") from error
            self._number += 1
            number = self._number
            self._ready, self.loaded, self.memory, self.imported = False, "", 0, False
            self.last_sign = self.last_news = time.monotonic()
            self._link = Link(
                worker, lambda message, blob: self._hear(number, message, blob), lambda: self._ended(number)
            )
        self.on_started(worker.pid, created_at(worker.pid))
        if self._warm:
            self.send({"do": "warm"})
        self.on_status()
        return number

    def is_ready(self) -> bool:
        """Whether it has said hello."""
        return self._ready

    def is_gone(self, number: int) -> bool:
        """Whether the worker of that number has ended."""
        return self._link is None or self._number != number

    def death(self, number: int) -> Death | None:
        """How that worker ended; None when it was told to."""
        return self._deaths.pop(number, None)

    def end(self, patience: float) -> None:
        """Have it end by itself, which gives back all memory."""
        link = self._part("")
        if link is not None:
            link.end(patience)

    def kill(self, note: str) -> None:
        """End it at once."""
        link = self._part(note)
        if link is not None:
            link.kill()

    def close(self, now: bool, patience: float) -> None:
        """End it, and start none any more."""
        with self.changed:
            self._closed = True
        if now:
            self.kill("")
        else:
            self.end(patience)

    def cpu_seconds(self) -> float:
        """See `Worker.cpu_seconds`; 0 without a worker."""
        link = self._link
        return 0.0 if link is None else link.worker.cpu_seconds()

    def status(self, busy: bool) -> WorkerStatus:
        """How it is."""
        with self.changed:
            if self._link is None:
                return WorkerStatus("absent", note=self.note)
            state: WorkerState = "busy" if busy else "idle" if self._ready else "starting"
            return WorkerStatus(state, self._link.worker.pid, self.memory, self.loaded.partition(" ")[0], self.note)

    def memory_clause(self) -> str:
        """What it held and what is free, to stand in a sentence about its death."""
        return f" (it held {size_text(self.memory)}, {size_text(free_memory()[0])} are free now)" if self.memory else ""

    # -- what is said --

    def send(self, message: Message) -> bool:
        """Tell it something; whether it could be told."""
        link = self._link
        return link is not None and link.send(message)

    def put(self, message: Message) -> Question:
        """Ask something of the worker that was started; a worker that ends meanwhile answers with WorkerGoneError."""
        question = Question()
        with self.changed:
            self._asked += 1
            number = self._asked
            self._questions[number] = question
        if not self.send({**message, "id": number}):
            self._settle(number, {"kind": "WorkerGoneError", "message": "The worker ended before it could answer."})
        return question

    def ask(self, message: Message) -> Any:
        """Ask, wait and return the answer; starts a worker if there is none, and another one if that one ends."""
        for attempt in (1, 2):
            self.start()
            question = self.put(message)
            with self.changed:
                if not self.changed.wait_for(question.is_here, ANSWER_SECONDS):
                    raise CannotRunError(f"The worker did not answer within {ANSWER_SECONDS:.0f} s: try again later.")
            try:
                return question.take()
            except WorkerGoneError:
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    # -- inside --

    def _part(self, note: str) -> Link | None:
        """Forget the worker, which is about to be ended."""
        with self.changed:
            link, self._link = self._link, None
            self._ready, self.loaded, self.memory, self.imported = False, "", 0, False
            if link is not None:
                self.note = note
            self._abandon()
            self.changed.notify_all()
        self.on_status()
        return link

    def _abandon(self) -> None:
        for number in list(self._questions):
            self._settle(number, {"kind": "WorkerGoneError", "message": "The worker ended before it could answer."})

    def _settle(self, number: int, answer: Message) -> None:
        with self.changed:
            question = self._questions.pop(number, None)
            if question is not None:
                question.answer = answer
            self.changed.notify_all()

    def _hear(self, number: int, message: Message, blob: bytes) -> None:
        if number != self._number:
            return
        self.last_sign = time.monotonic()
        self.imported = self.imported or bool(message.get("imported"))
        match message["say"]:
            case "alive":
                self.memory = int(message["memory"])
                return
            case "hello":
                with self.changed:
                    self._ready = True
                    self.changed.notify_all()
                self.on_status()
            case "answer":
                self._settle(int(message["id"]), message)
            case "measuring":
                self.on_measuring(message)
            case _:
                self.last_news = self.last_sign
                self.on_message(message, blob)

    def _ended(self, number: int) -> None:
        """The worker ended although nobody told it to."""
        with self.changed:
            link = self._link
            if number != self._number or link is None:
                return
        death = link.worker.death()
        with self.changed:
            if self._link is not link:
                return
            self._link, self._ready, self.loaded, self.imported = None, False, "", False
            self._deaths[number] = death
            self.note = f"The worker before ended by itself ({death.signal or f'exit code {death.code}'})."
            self._abandon()
            self.changed.notify_all()
        self.on_status()


def error_from(message: Message) -> KinetileError:
    """The error that a message describes."""
    if message.get("kind") == "WorkerGoneError":
        return WorkerGoneError(str(message["message"]))
    return error_named(str(message.get("kind")), str(message["message"]), str(message.get("detail", "")))
