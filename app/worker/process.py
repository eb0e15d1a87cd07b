"""The worker: the engine, probe and plan in a process of their own (`python -m app.worker.process --home DIR`).

It is started by `supervisor` and speaks `wire` over its standard input and output; whatever a library prints
goes to the error stream instead. One thread makes clips, one answers questions meanwhile, one reads, one gives signs of
life. When the process that started it is gone, it stops within a step and ends.

    in    generate (job, spec, previews, expected), cancel, warm, quit; measure (id, number, ask);
          plan, doctor, accelerators, readouts (id, ...)
    out   hello, alive, progress, done, failed, cancelled, measuring, answer
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from app.engine import Engine, loading
from app.errors import Cancelled, JobFailedError, KinetileError
from app.job_types import JobResult, JobSpec
from app.machine_memory import peak_memory, reset_peak, resident, trim
from app.measuring import MeasureAsk, measuring_mark
from app.paths import Home
from app.plain import from_data, to_data
from app.progress import Progress
from app.video import plain
from app.worker import questions
from app.worker.engines import WorkerEngine
from app.worker.render import Rendered, render
from app.worker.supervisor import SAVING_SECONDS
from app.worker.wire import Channel, Closed, Message

ALIVE_SECONDS = 1.0
PROGRESS_SECONDS = 0.1
ORPHAN_SECONDS = 10.0
"""An orphan that does not stop ends itself after this long, while it saves a finished clip after SAVING_SECONDS."""


def main(argv: Sequence[str] | None = None, make_engine: Callable[[Home], Engine] = WorkerEngine) -> int:
    """Serve on standard input and output until told to quit or alone."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one to decide about
    parser = argparse.ArgumentParser(prog="python -m app.worker.process")
    parser.add_argument("--home", type=Path, required=True)
    options = parser.parse_args(argv)
    channel = claim_standard_streams()
    serving = Serving(channel, Home(options.home), make_engine, lambda: _end_when_alone(serving))
    serving.run()
    # Not by way of the interpreter's end: native threads of a library have been seen to hang there.
    sys.stderr.flush()
    os._exit(0)


def claim_standard_streams() -> Channel:
    """The channel on what were stdin and stdout; printing goes to stderr from now on."""
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return Channel(os.fdopen(reading, "rb"), os.fdopen(writing, "wb"))


def _end_when_alone(serving: Serving) -> None:
    def end() -> None:
        time.sleep(ORPHAN_SECONDS)
        if serving.is_saving:
            time.sleep(SAVING_SECONDS - ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


class Serving:
    """One conversation: takes commands from `channel` until it ends. `alone` is called when the other side is gone."""

    def __init__(
        self,
        channel: Channel,
        home: Home,
        make_engine: Callable[[Home], Engine] = WorkerEngine,
        alone: Callable[[], None] = lambda: None,
    ) -> None:
        self._channel, self._home, self._alone = channel, home, alone
        self._make_engine = make_engine
        self._work: queue.Queue[Message | None] = queue.Queue()
        self._asked: queue.Queue[Message | None] = queue.Queue()
        self._cancelled: set[int | str] = set()
        self._over = threading.Event()
        self._held: Callable[[], int] = lambda: 0
        self.is_saving = False
        """Whether a finished clip is being written."""

    def run(self) -> None:
        """Serve until told to quit or alone; the model is freed then."""
        with contextlib.suppress(Closed):
            self._channel.send({"say": "hello", "pid": os.getpid()})
        for target in (self._read, self._give_signs, self._answer_all):
            threading.Thread(target=target, name=f"worker-{target.__name__}", daemon=True).start()
        with self._make_engine(self._home) as engine:
            self._held = engine.held
            while (message := self._work.get()) is not None:
                with contextlib.suppress(Closed):
                    self._do(engine, message)
        self._over.set()

    def _read(self) -> None:
        try:
            while not self._over.is_set():
                message, _ = self._channel.receive()
                match message["do"]:
                    case "quit":
                        break
                    case "cancel":
                        self._cancelled.add(message["job"])
                    case "generate" | "measure" | "warm":
                        self._work.put(message)
                    case _:
                        self._asked.put(message)
        except Closed:
            self._alone()
        self._over.set()
        self._work.put(None)
        self._asked.put(None)

    def _give_signs(self) -> None:
        with contextlib.suppress(Closed):
            while not self._over.wait(ALIVE_SECONDS):
                memory = resident() + self._held()
                self._channel.send({"say": "alive", "memory": memory, "imported": loading.imported_in()})

    # -- clips --

    def _do(self, engine: Engine, message: Message) -> None:
        match message["do"]:
            case "generate":
                self._generate(engine, message)
            case "measure":
                self._measure(engine, message)
            case "warm":
                questions.warm()

    def _generate(self, engine: Engine, message: Message) -> None:
        job, spec = int(message["job"]), from_data(JobSpec, message["spec"])
        telling = Telling(self._channel, job)

        def progress(news: Progress) -> None:
            self.is_saving = news.stage == "saving" and news.step == 0
            telling(news)

        reset_peak()
        imported = loading.imported_in()
        try:
            made = render(
                engine,
                spec,
                progress,
                lambda: self._over.is_set() or job in self._cancelled,
                previews=bool(message.get("previews")),
                uid=str(message.get("uid", "")),
                expected=message.get("expected"),
            )
        except Cancelled as error:
            self._channel.send({"say": "cancelled", "job": job, "message": str(error)})
        except KinetileError as error:
            self._fail(engine, job, error)
        except MemoryError:  # outside the engine's own care: while saving
            self._fail(engine, job, _out_of_memory(telling.place()))
        except Exception as error:
            self._fail(engine, job, _unforeseen(error, telling.place()))
        else:
            done = {"say": "done", "job": job, "result": _result(made), "memory": _peak(made)}
            now = loading.imported_in()
            self._channel.send({**done, "imported": now, "importing": now - imported})
        finally:
            self.is_saving = False
            self._cancelled.discard(job)
            trim()

    def _fail(self, engine: Engine, job: int, error: KinetileError) -> None:
        out_of_memory = bool(getattr(error, "out_of_memory", False))
        if out_of_memory:
            engine.close()
        self._channel.send(
            {
                "say": "failed",
                "job": job,
                "kind": type(error).__name__,
                "message": str(error),
                "detail": getattr(error, "detail", "") or "".join(traceback.format_exception(error)),
                "out_of_memory": out_of_memory,
            }
        )

    def _measure(self, engine: Engine, message: Message) -> None:
        """A benchmark or a comparison: it has the engine to itself, as a clip has."""
        from app.worker import measuring

        mark, told = measuring_mark(message["number"]), 0.0

        def tell(fraction: float, text: str, left: float | None = None) -> None:
            nonlocal told
            if time.monotonic() - told >= PROGRESS_SECONDS:
                told = time.monotonic()
                self._channel.send({"say": "measuring", "fraction": fraction, "text": text, "left": left})

        def stop() -> bool:
            return self._over.is_set() or mark in self._cancelled

        ask = from_data(MeasureAsk, message["ask"])
        self._channel.send(_answered(message, lambda: measuring.measure(ask, engine, self._home, tell, stop)))
        self._cancelled.discard(mark)
        trim()

    # -- questions --

    def _answer_all(self) -> None:
        while (message := self._asked.get()) is not None:
            try:
                self._channel.send(_answered(message, partial(questions.answer, message, self._home)))
            except Closed:
                return


def _answered(message: Message, find: Callable[[], Any]) -> Message:
    """What `find` returns or raises, as the answer to a message that asked for it."""
    answer: Message = {"say": "answer", "id": message.get("id")}
    try:
        answer["data"] = find()
        answer["imported"] = loading.imported_in()
    except KinetileError as error:
        answer |= {"kind": type(error).__name__, "message": str(error)}
    except Exception as error:
        text = f"{message['do']} could not be answered ({type(error).__name__}: {error})."
        answer |= {"kind": "KinetileError", "message": text}
    return answer


def _result(made: Rendered) -> Message:
    """A JobResult as data."""
    plan, report = plain(made.clip.plan), plain(made.clip.report)
    warnings = (*made.warnings, *filter(None, [report.get("retried"), report.get("resumed")]))
    found: Message = to_data(JobResult(made.path, made.poster, plan, report, made.timings, warnings))
    return found


def _peak(made: Rendered) -> int:
    """Most bytes that the clip took, here and in the processes that made it."""
    return peak_memory() + made.clip.memory


class Telling:
    """Sends progress: every stage and preview, steps as often as eyes follow."""

    def __init__(self, channel: Channel, job: int) -> None:
        self._channel, self._job = channel, job
        self._last: Progress | None = None
        self._told = 0.0

    def __call__(self, progress: Progress) -> None:
        moment, last = time.monotonic(), self._last
        self._last = progress
        news = last is None or progress.stage != last.stage or progress.preview is not None
        if not (news or progress.step >= progress.steps or moment - self._told >= PROGRESS_SECONDS):
            return
        self._told = moment
        message: Message = {"say": "progress", "job": self._job, **progress.without_preview()}
        blob = b""
        if progress.preview is not None:
            message["shape"] = list(progress.preview.shape)
            blob = progress.preview.tobytes()
        with contextlib.suppress(Closed):  # nobody listens: the reading thread sees it and stops the clip
            self._channel.send(message, blob)

    def place(self) -> str:
        """Where the clip is, to complete "failed while ..."."""
        return "beginning" if self._last is None else self._last.stage


def _out_of_memory(place: str) -> KinetileError:
    error = JobFailedError(f"Out of memory while {place}: try a smaller size or fewer frames, or close other programs.")
    error.out_of_memory = True  # type: ignore[attr-defined]
    return error


def _unforeseen(error: Exception, place: str) -> KinetileError:
    failure = JobFailedError(f"The clip failed while {place}: {error or type(error).__name__}.")
    failure.detail = "".join(traceback.format_exception(error))  # type: ignore[attr-defined]
    return failure


if __name__ == "__main__":
    sys.exit(main())
