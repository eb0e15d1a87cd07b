"""The processes of a measurement: one per contender, asked in turn, and one that does nothing but be busy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from accel.probing.overrides import APPLIED

ROOT = Path(__file__).parents[2]
MARK = "@bench "
"""Begins the lines that are answers, so that nothing a library prints is mistaken for one."""

BUSY = """
import os, sys
while os.name == "nt" or os.getppid() == int(sys.argv[1]):  # whoever is killed leaves no busy process behind
    for _ in range(100000):
        pass
"""
BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from accel.benching.worker import main; main()"


class Failed(Exception):  # noqa: N818 - one contender's end, which the others outlive
    """A contender's process said why it can't, died or took too long; str() is the reason."""


class Child:
    """A contender's process, building its work. Ask `ready` before anything else."""

    def __init__(self, job: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        command = [sys.executable, "-c", BOOT, str(ROOT)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, env=dict(environ), text=True, encoding="utf-8", **pipes)
        self._send(job)

    def ready(self, timeout: float) -> dict[str, Any]:
        """What it says once its work is built. Raises Failed, and the process is gone then."""
        return self._answer(timeout)

    def ask(self, command: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The answer to `command`. Raises Failed, and the process is gone then."""
        self._send(command)
        return self._answer(timeout)

    def _send(self, command: Mapping[str, Any]) -> None:
        stdin, _ = self._pipes()
        with suppress(OSError):  # it died; the answer will say so
            stdin.write(json.dumps(command) + "\n")
            stdin.flush()

    def _answer(self, timeout: float) -> dict[str, Any]:
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._process.kill()

        _, stdout = self._pipes()
        timer = threading.Timer(timeout, stop)
        timer.start()
        line = next((line for line in stdout if line.startswith(MARK)), "")
        timer.cancel()
        answer: dict[str, Any] = json.loads(line.removeprefix(MARK)) if line else {}
        if "failed" in answer or not line:
            self.close()
            how = f"it took more than {timeout:.0f} s" if late.is_set() else f"its process ended with {self._ended()}"
            raise Failed(answer.get("failed", how))
        return answer

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _ended(self) -> str:
        code = self._process.returncode
        return f"signal {-code}" if code < 0 else f"status {code}"

    def close(self) -> None:
        """End the process; closing it twice does nothing."""
        for stream in self._pipes():
            with suppress(OSError):
                stream.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def plain_environment() -> dict[str, str]:
    """This process's environment without what accel has set in it: what a person's own script would see."""
    ours = os.environ.get(APPLIED, "").split(",")
    return {name: value for name, value in os.environ.items() if name not in ours and name != APPLIED}


@contextmanager
def busy_process() -> Iterator[None]:
    """While entered, one process on this machine keeps one core busy."""
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())])
    time.sleep(0.2)
    try:
        yield
    finally:
        process.kill()
        process.wait()
