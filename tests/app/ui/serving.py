"""The real page in a process of its own, as `python launch.py` starts it, and what a test asks it without a browser."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
START_SECONDS = 180
END_SECONDS = 60


@dataclass
class Served:
    """A page that is up: its address, its data folder, its process and what it printed."""

    url: str
    home: Path
    process: subprocess.Popen[str]
    lines: list[str]

    @property
    def outputs(self) -> Path:
        return self.home / "outputs"

    def ask(self, path: str = "/", data: bytes | None = None, **headers: str) -> tuple[int, str]:
        """Status and text of one request; header names are written with _ for -."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data=data, headers=named)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status), answer.read().decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode("utf-8", "replace")

    def client(self, **settings: Any) -> Any:
        """A gradio_client for it."""
        from gradio_client import Client

        return Client(self.url, verbose=False, analytics_enabled=False, **settings)

    def end(self) -> int:
        """As Ctrl-C ends it; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(END_SECONDS)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(home: Path, *arguments: str) -> Iterator[Served]:
    """The page on a free port with its data in `home`."""
    command = [sys.executable, "-m", "app.cli", "--home", str(home), *arguments]
    if "--port" not in arguments:
        command += ["--port", str(free_port())]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines: list[str] = []
    opened = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Kinetile is open"):
                opened.set()
        opened.set()

    threading.Thread(target=read, daemon=True).start()
    served = Served("", home, process, lines)
    try:
        opened.wait(START_SECONDS)
        address = next((line.split()[4] for line in lines if line.startswith("Kinetile is open")), None)
        assert address is not None, "".join(lines)
        served.url = address
        yield served
        served.end()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
