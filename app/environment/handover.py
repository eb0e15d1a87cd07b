"""Run a child to its end and give back its exit code, the same way on Linux, macOS and Windows.

Nothing is exec'ed or forked by hand: on Windows exec returns to the shell at once. The parent waits and passes on
what is sent to it alone. Ctrl-C in a terminal reaches parent and child together, so there the parent only goes on
waiting, and the child decides how to stop. Untested on macOS and Windows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any

INTERRUPTED = 130
_WINDOWS_CONTROL_C = {0xC000013A, 0xC000013A - (1 << 32)}  # STATUS_CONTROL_C_EXIT, read as unsigned and as signed
# Set for the interpreter that runs us, harmful to another one.
_NOT_FOR_A_CHILD = ("PYTHONHOME", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__")


def child_environment(extra: Mapping[str, str] | None = None, without: Sequence[str] = ()) -> dict[str, str]:
    """This process's environment less ``without`` and what ties Python to the running interpreter, plus ``extra``."""
    kept = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_A_CHILD and key not in without}
    return {**kept, **(extra or {})}


def end_with_parent(seconds: float = 0.5) -> None:
    """End this process at once, as if killed too, when the one that handed over to it is gone; not on Windows.

    A kill -9 of `launch.py` must not leave what it started running.
    """
    if sys.platform == "win32":
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(seconds)
        os._exit(128 + signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def exit_code(returncode: int) -> int:
    """A child's return code as a shell would state it: 128 + signal when a signal ended it, 130 for Ctrl-C."""
    if returncode in _WINDOWS_CONTROL_C or returncode == -signal.SIGINT:
        return INTERRUPTED
    return 128 - returncode if returncode < 0 else returncode


def in_foreground() -> bool:
    """Whether this process belongs to its terminal's foreground group, where Ctrl-C reaches the child by itself.

    On Windows it always does: every process of a console gets it.
    """
    if sys.platform == "win32":
        return True
    for stream in (0, 1, 2):
        try:
            return os.tcgetpgrp(stream) == os.getpgrp()
        except OSError:
            continue
    return False


def stop_signals(*others: str) -> list[int]:
    """What asks a program to end: Ctrl-C, a service manager's SIGTERM, SIGHUP of a terminal that was closed, Ctrl-Break
    and the closed console of Windows; and `others` by name. Only those that this system has, and that whoever started
    this program does not want ignored (nohup does).
    """
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK", *others)
    numbers = [int(getattr(signal, name)) for name in names if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def interrupt() -> None:
    """What Ctrl-C does where nobody decided otherwise. Raises KeyboardInterrupt."""
    raise KeyboardInterrupt


@contextmanager
def stopping(on_stop: Callable[[], None] = interrupt) -> Iterator[None]:
    """While entered, `on_stop` is called in the main thread for each of `stop_signals`, so that one way out serves all.

    The former handlers return afterwards. Does nothing in another thread, where Python allows no signal handlers.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        if number == getattr(signal, "SIGHUP", None):
            signal.signal(number, signal.SIG_IGN)  # the system, the shell and the launcher each say it: once will do
            _let_go_of_terminal()
        on_stop()

    ours = threading.current_thread() is threading.main_thread()
    former = {number: signal.signal(number, handle) for number in stop_signals() if ours}
    try:
        yield
    finally:
        for number, before in former.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, before)


def _let_go_of_terminal() -> None:
    """What is still printed on a terminal that was closed goes nowhere, rather than failing."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            os.dup2(nothing, stream)
    os.close(nothing)


class Relay:
    """Passes signals that reach this process on to a child while it runs; the former handlers return afterwards."""

    def __init__(self, child: subprocess.Popen[Any], foreground: Callable[[], bool] = in_foreground) -> None:
        self.child = child
        self.foreground = foreground
        self.interrupted = False
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Relay:
        self._former = {number: signal.signal(number, self._on_signal) for number in stop_signals("SIGQUIT")}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        from_terminal = number != signal.SIGTERM and self.foreground()
        self.interrupted = self.interrupted or number == signal.SIGINT
        if not from_terminal and self.child.poll() is None:
            self.child.send_signal(number)


def run_child(
    command: Sequence[str | Path],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[Any] | int | None = None,
    keep_open: Sequence[int] = (),
) -> tuple[int, bool]:
    """Run a command to its end; returns its exit code and whether Ctrl-C was pressed meanwhile.

    ``env`` is the child's whole environment, this process's own by default. ``keep_open`` are file descriptors that
    the child shares (a lock outlives a killed parent that way); not on Windows. Raises OSError when the command
    cannot be started.
    """
    shared: dict[str, Any] = {"pass_fds": tuple(keep_open)} if sys.platform != "win32" else {}
    words = [os.fspath(word) for word in command]
    env = child_environment() if env is None else env
    with subprocess.Popen(words, cwd=cwd, env=env, stdout=stdout, **shared) as child, Relay(child) as relay:
        returncode = child.wait()
    return exit_code(returncode), relay.interrupted
