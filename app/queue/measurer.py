"""Have the worker measure, one thing at a time and never beside a clip, and know how far it is.

A measurement waits for the running clip and goes before those that wait. It is stopped within a call or step; a worker
that does not obey is ended. Nothing of it outlives its owner but what the worker kept in the data folder.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from app.errors import Cancelled, CannotRunError, KinetileError, UsageError
from app.measuring import MeasureAsk, Measuring, measuring_mark
from app.plain import to_data
from app.queue.keeper import Keeper, Question, WorkerGoneError
from app.worker.supervisor import explain
from app.worker.wire import Message

TICK_SECONDS = 0.2


class Measurer:
    """turn: while entered, the worker makes no clip. patience: seconds that a stop may take, and to start a worker.

    `on_change` is called, by the measuring thread, when one begins and when it is over.
    """

    def __init__(
        self,
        keeper: Keeper,
        turn: Callable[[Callable[[], None]], AbstractContextManager[None]],
        stopping: float,
        starting: float,
    ) -> None:
        self._keeper, self._turn = keeper, turn
        self._stopping, self._starting = stopping, starting
        self._lock = threading.Lock()
        self._state = Measuring()
        self._begun = self._heard = 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.on_change: Callable[[], None] = lambda: None
        keeper.on_measuring = self._hear

    @property
    def state(self) -> Measuring:
        """How the newest measurement stands."""
        now = self._state
        return replace(now, waited=time.monotonic() - self._heard) if now.state == "running" else now

    def start(self, ask: MeasureAsk) -> int:
        """Begin; returns its number. Raises UsageError while another one is going on."""
        with self._lock:
            if not self._state.is_over:
                raise UsageError("This machine is being measured already: wait for it, or stop it first.")
            self._state = Measuring(self._state.number + 1, ask.kind, "waiting", text="waiting")
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, args=(ask,), name="measurer", daemon=True)
            self._thread.start()
            return self._state.number

    def stop(self, now: bool = False) -> None:
        """Stop the one that is going on (`now`: by ending the worker); returns at once."""
        if now:
            self._stopping = 0.0
        self._stop.set()

    def close(self) -> None:
        """Stop, and return when it has."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    # -- the thread --

    def _run(self, ask: MeasureAsk) -> None:
        self.on_change()
        try:
            with self._turn(self._wait_for_the_clip):
                self._refuse_stopped()
                self._begun = self._heard = time.monotonic()
                self._put(state="running", text="starting")
                result = self._measure(ask)
            self._put(state="done", fraction=1.0, text="done", result=result)
        except Cancelled as error:
            self._put(state="stopped", text=str(error), error="")
        except KinetileError as error:
            self._put(state="failed", error=str(error))
        except Exception as error:
            self._put(state="failed", error=f"It can't be measured for a reason nobody foresaw ({error}).")
        self.on_change()

    def _measure(self, ask: MeasureAsk) -> dict[str, object]:
        worker = self._keeper.start()
        self._until_ready(worker)
        message: Message = {"do": "measure", "number": self._state.number, "ask": to_data(ask)}
        question = self._keeper.put(message)
        self._until_answered(question)
        try:
            found: dict[str, object] = question.take()
        except WorkerGoneError:
            if self._stop.is_set():
                raise Cancelled("Stopped.") from None
            death = self._keeper.death(worker)
            doing = f"measuring ({self._state.text})"
            raise CannotRunError(
                "The worker ended." if death is None else explain(death, doing, self._keeper.memory_clause())
            ) from None
        finally:
            self._keeper.loaded = ""
        return found

    def _until_answered(self, question: Question) -> None:
        """Waits as long as it takes; a stop is passed on, and enforced when it is not obeyed."""
        told = 0.0
        while True:
            with self._keeper.changed:
                if self._keeper.changed.wait_for(question.is_here, TICK_SECONDS):
                    return
            if self._stop.is_set() and not told:
                told = time.monotonic()
                self._put(text="stopping")
                self._keeper.send({"do": "cancel", "job": measuring_mark(self._state.number)})
            if told and time.monotonic() - told > self._stopping:
                self._keeper.kill("It was ended, since it did not stop measuring in time.")

    def _until_ready(self, worker: int) -> None:
        end = time.monotonic() + self._starting
        while not self._keeper.is_ready():
            self._refuse_stopped()
            if self._keeper.is_gone(worker) or time.monotonic() > end:
                raise CannotRunError("The worker did not begin: try again.")
            with self._keeper.changed:
                self._keeper.changed.wait_for(self._keeper.is_ready, TICK_SECONDS)

    def _wait_for_the_clip(self) -> None:
        self._refuse_stopped()
        self._put(text="waiting for the running clip")

    def _refuse_stopped(self) -> None:
        if self._stop.is_set():
            raise Cancelled("Stopped before it began.")

    def _hear(self, message: Message) -> None:
        if not self._stop.is_set() and self._state.state == "running":
            self._heard = time.monotonic()
            elapsed, left = self._heard - self._begun, message["left"]
            self._put(fraction=float(message["fraction"]), text=str(message["text"]), elapsed=elapsed, left=left)

    def _put(self, **changes: object) -> None:
        with self._lock:
            self._state = replace(self._state, **changes)  # type: ignore[arg-type]
