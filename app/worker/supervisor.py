"""Start the worker's process, listen to it, end it, and say what it died of.

Nothing here decides about jobs; see `app.queue.dispatch`. `Launcher` is the seam: tests put a worker in a thread there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import psutil

from app.environment.handover import child_environment
from app.paths import Home
from app.worker.wire import Channel, Closed, Message

PLAIN_PYTORCH = (
    "plain PyTorch, switched on under Accelerate (on the command line: "
    "--accel attention=sdpa,linear=stock,text_encoder_linear=stock,vae=stock)"
)
"""What to try when a native library may be to blame."""

ROOT = Path(__file__).resolve().parents[2]
SAVING_SECONDS = 60.0
"""A worker that is alone ends within a step, and within this long where it is saving a finished clip."""
_LINES_KEPT = 60
_SAME_SECONDS = 0.05
"""Starts of one process, read twice, differ by less."""

# Windows has no signals: the exit codes of what would be one elsewhere.
_WINDOWS_DEATHS = {
    0xC0000005: "SIGSEGV",
    0xC000001D: "SIGILL",
    0xC0000094: "SIGFPE",
    0xC0000409: "SIGABRT",
    3: "SIGABRT",
}


@dataclass(frozen=True)
class Death:
    """How a worker ended. signal: its name, empty without one. code: the exit code. printed: the last lines of its
    error stream. memory_killer: the kernel ended processes for want of memory meanwhile.
    """

    signal: str
    code: int | None
    printed: str = ""
    memory_killer: bool = False


class Worker(Protocol):
    """A started worker."""

    pid: int
    channel: Channel

    def wait(self, seconds: float) -> bool:
        """Whether it ended within that time."""

    def kill(self) -> None:
        """End it and its children at once."""

    def death(self) -> Death:
        """How it ended; only after it did."""

    def cpu_seconds(self) -> float:
        """CPU time and a measure of what was read by it and its children: grows while it works."""


Launcher = Callable[[Home], Worker]


class ProcessWorker:
    """A worker in a process of its own, in a process group of its own, so that Ctrl-C does not reach it."""

    def __init__(
        self,
        home: Home,
        command: Sequence[str] = (sys.executable, "-m", "app.worker.process"),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        apart: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        self._killer_before = _memory_killings()
        self._process = subprocess.Popen(
            [*command, "--home", str(home.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=child_environment(
                {
                    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
                    **(environ or {}),
                }
            ),
            **apart,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.channel = Channel(cast(BinaryIO, self._process.stdout), cast(BinaryIO, self._process.stdin))
        self._printed: deque[str] = deque(maxlen=_LINES_KEPT)
        self._printing = threading.Thread(target=self._keep_printed, daemon=True)
        self._printing.start()

    def wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        if sys.platform == "win32":
            with contextlib.suppress(psutil.Error):
                for child in psutil.Process(self.pid).children(recursive=True):
                    child.kill()
            self._process.kill()
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def death(self) -> Death:
        code = self._process.wait()
        self._printing.join(2)
        name = _WINDOWS_DEATHS.get(code & 0xFFFFFFFF, "") if sys.platform == "win32" else ""
        if code < 0:
            with contextlib.suppress(ValueError):
                name = signal.Signals(-code).name
        return Death(name, code, "".join(self._printed).strip(), _memory_killings() > self._killer_before)

    def cpu_seconds(self) -> float:
        total = 0.0
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = one.cpu_times()
                    total += times.user + times.system
                    if hasattr(one, "io_counters"):
                        total += one.io_counters().read_bytes / 50e6  # reading 50 MB counts as a second of work
        return total

    def _keep_printed(self) -> None:
        assert self._process.stderr is not None
        aloud = os.environ.get("KINETILE_DEBUG") == "1"
        for line in self._process.stderr:
            text = line.decode("utf-8", "replace")
            self._printed.append(text[:500])
            if aloud:
                sys.stderr.write(text)


class Link:
    """A worker and the thread that listens to it. `on_message` and `on_end` are called in that thread."""

    def __init__(
        self, worker: Worker, on_message: Callable[[Message, bytes], None], on_end: Callable[[], None]
    ) -> None:
        self.worker = worker
        self._on_message, self._on_end = on_message, on_end
        self.ended = threading.Event()
        self._listening = threading.Thread(target=self._listen, name="worker-listener", daemon=True)
        self._listening.start()

    def send(self, message: Message) -> bool:
        """Whether the worker could be told; if not, it is gone and `on_end` comes."""
        try:
            self.worker.channel.send(message)
        except Closed:
            return False
        return True

    def end(self, patience: float) -> None:
        """Ask the worker to end, and end it after `patience` seconds; returns when it is gone."""
        self.send({"do": "quit"})
        if not self.worker.wait(patience):
            self.worker.kill()
        self.worker.channel.close()
        self.ended.wait(5)

    def kill(self) -> None:
        """End the worker at once; returns when it is gone."""
        self.worker.kill()
        self.worker.channel.close()
        self.ended.wait(5)

    def _listen(self) -> None:
        try:
            while True:
                self._on_message(*self.worker.channel.receive())
        except Closed:
            pass
        finally:
            self.ended.set()
            self._on_end()


def explain(death: Death, doing: str, memory: str) -> str:
    """The sentences for a worker that died by itself while `doing` ("denoising, step 3 of 20"): what it died of, the
    likely cause and what to try. `memory` is a clause on what the clip needs and the machine has.
    """
    if death.signal == "SIGKILL":
        sure = "The system ended" if death.memory_killer else "Something ended"
        likely = "because memory ran out" if death.memory_killer else "most likely the system, because memory ran out"
        return (
            f"{sure} the worker (SIGKILL) while {doing}, {likely}{memory}: try a smaller size or fewer frames, or "
            "close other programs."
        )
    if death.signal in ("SIGTERM", "SIGHUP", "SIGINT"):
        return f"Something outside Kinetile ended the worker ({death.signal}) while {doing}: try the clip again."
    if death.signal == "SIGILL":
        cause = "a library used an instruction that this processor does not have"
    elif death.signal == "SIGABRT" and "bad_alloc" in death.printed:
        return (
            f"The worker died (SIGABRT) while {doing}, because memory ran out{memory}: try a smaller size or fewer "
            "frames, or close other programs."
        )
    elif death.signal == "SIGABRT":
        cause = "a native library gave up"
    elif death.signal:
        cause = "a native library crashed"
    else:
        last = death.printed.splitlines()[-1][:200] if death.printed else "it printed nothing"
        return f"The worker ended (exit code {death.code}) while {doing}: {last}. Try the clip again."
    return f"The worker died ({death.signal}) while {doing}; likely {cause}: try it again with {PLAIN_PYTORCH}."


def end_leftover(pid: int, created: float, patience: float) -> None:
    """A worker whose owner was killed ends by itself: wait for it, and end it after `patience` seconds.

    Does nothing when `pid` is another process by now.
    """
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if abs(created_at(pid) - created) > _SAME_SECONDS:
            return
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(patience)
            return
        for one in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs([process], timeout=5)


def created_at(pid: int) -> float:
    """When a process was started; with its number it names one process for good. In seconds since 1970, or since the
    boot on Linux, which knows only that, and would give another answer once the clock was set.
    """
    try:
        created = float(psutil.Process(pid).create_time())
        return created - psutil.boot_time() if sys.platform == "linux" else created
    except psutil.Error:
        return 0.0


def _memory_killings() -> int:
    """How many processes the kernel ended for want of memory since it started; 0 where that is not told."""
    try:
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
