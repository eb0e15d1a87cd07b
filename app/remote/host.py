"""What runs on the other machine, in an actor of Ray: a worker's process, its messages, and a folder for its files.

It decides nothing and holds no jobs. Each call may come in a thread of its own. A process that is replaced has its
number, so that nobody hears an earlier one. Everything lies in one temporary folder, gone when the actor closes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

import app
from app.environment.packages import installed, lacking, read_lists
from app.machine_memory import free_memory
from app.paths import Home, home, inside, relative_name
from app.video.outputs import CLIP_SUFFIXES
from app.worker.render import MACHINE
from app.worker.supervisor import ROOT, ProcessWorker
from app.worker.wire import Closed, Message

FOLDER = "kinetile-worker-"
PART = 8 * 1024 * 1024
"""Bytes of a file that travel at once."""
COMMAND = (sys.executable, "-m", "app.worker.process")
Said = tuple[Message, bytes]
_STARTING = threading.Lock()


class EngineHost:
    """data: the data folder whose readouts and probes count here, None for this machine's own. module: what the
    process runs. threads: Ray's own count of this engine's, where torch may count them itself, else 0. name: how clips
    tell where they were made.
    """

    def __init__(self, data: str | None, module: str, threads: int, name: str) -> None:
        if os.environ.get("OMP_NUM_THREADS") == str(threads):  # Ray counts every hyperthread
            del os.environ["OMP_NUM_THREADS"]
        self._name = name
        self._command = (sys.executable, "-m", module)
        self._root = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-"))
        self._lock = threading.Lock()
        self._number = 0
        self._worker: ProcessWorker | None = None
        self._said: queue.Queue[Said] = queue.Queue()
        self._kept: dict[tuple[str, str], str] = {}
        remove_leftovers(self._root.parent)
        with contextlib.suppress(Exception):  # only readouts are lost where there is no such folder
            os.symlink(home(data).cache, self._root / "cache", target_is_directory=True)

    def facts(self) -> dict[str, Any]:
        """What must fit before a clip is made here: versions, and the packages that are missing."""
        needed = read_lists(ROOT / "pyproject.toml").needed()
        return {
            "kinetile": app.__version__,
            "lacking": lacking(needed, installed(sys.path)),
            "folder": str(self._root / "outputs"),
        }

    # -- the process --

    def start(self) -> int:
        """Start a process, in the place of an earlier one; returns its number. Raises OSError."""
        with self._lock:
            self._stop()
            self._number += 1
            self._said = queue.Queue()
            with _STARTING:
                os.environ[MACHINE] = self._name  # the process inherits it
                self._worker = ProcessWorker(Home(self._root), self._command)
            listening = (self._worker, self._said)
            threading.Thread(target=_listen, args=listening, name="worker-listener", daemon=True).start()
            return self._number

    def tell(self, number: int, message: Message) -> bool:
        """Whether the process could be told."""
        worker = self._of(number)
        if worker is None:
            return False
        try:
            worker.channel.send(message)
        except Closed:
            return False
        return True

    def hear(self, number: int, seconds: float) -> list[Said]:
        """What it said since; waits that long for something. Its last word is "ended", with its death."""
        if self._of(number) is None:
            return [({"say": "ended", "death": None}, b"")]
        said = self._said
        found: list[Said] = []
        with contextlib.suppress(queue.Empty):
            found.append(said.get(timeout=seconds))
            while len(found) < 100:
                found.append(said.get_nowait())
        return found

    def has_ended(self, number: int, seconds: float) -> bool:
        """Whether it ended within that time."""
        worker = self._of(number)
        return worker is None or worker.wait(seconds)

    def kill(self, number: int) -> None:
        """End it at once."""
        with self._lock:
            if number == self._number:
                self._stop()

    def cpu_seconds(self, number: int) -> float:
        """See `Worker.cpu_seconds`."""
        worker = self._of(number)
        return 0.0 if worker is None else worker.cpu_seconds()

    def free(self) -> tuple[int, str, int]:
        """Bytes of memory that can be taken, whose limit that is, and bytes free on the disk for finished clips."""
        return (*free_memory(), shutil.disk_usage(self._root).free)

    def close(self) -> None:
        """End the process and remove every file."""
        with self._lock:
            self._stop()
            self._number += 1
        shutil.rmtree(self._root, ignore_errors=True)

    # -- files --

    def has(self, folder: str, name: str, digest: str) -> bool:
        """Whether that file lies in `folder` ("pictures" or "loras") with this SHA-256."""
        return self._kept.get((folder, name)) == digest

    def put(self, folder: str, name: str, at: int, data: bytes) -> None:
        """Write a part of a file; the first one begins it anew. Raises OSError, ValueError for a name that leaves."""
        path = self._root / folder / relative_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _partial(path).open("wb" if at == 0 else "r+b") as file:
            file.seek(at)
            file.write(data)

    def settle(self, folder: str, name: str, digest: str) -> bool:
        """Give a file that came whole its name; False, and it is gone, when it is another one than was sent."""
        path = self._root / folder / relative_name(name)
        if digest_of(_partial(path)) != digest:
            _partial(path).unlink()
            return False
        os.replace(_partial(path), path)
        self._kept[folder, name] = digest
        return True

    def files(self, output: str) -> list[tuple[str, int, str]]:
        """Suffix, bytes and SHA-256 of a finished clip's files, in the order in which they get their names."""
        clip = self._inside(output)
        order = [clip.with_suffix(suffix) for suffix in (".png", ".json", ".mp4")]
        return [(path.suffix, path.stat().st_size, digest_of(path)) for path in order if path.is_file()]

    def part(self, output: str, suffix: str, at: int) -> bytes:
        """A part of one of them."""
        with self._inside(output).with_suffix(suffix).open("rb") as file:
            file.seek(at)
            return file.read(PART)

    def forget(self, output: str) -> None:
        """Remove them: they are home."""
        clip = self._inside(output)
        for suffix in CLIP_SUFFIXES:
            clip.with_suffix(suffix).unlink(missing_ok=True)

    # -- inside --

    def _of(self, number: int) -> ProcessWorker | None:
        return self._worker if number == self._number else None

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _inside(self, output: str) -> Path:
        return inside(self._root / "outputs", Path(output).name)


def _listen(worker: ProcessWorker, said: queue.Queue[Said]) -> None:
    with contextlib.suppress(Closed):
        while True:
            said.put(worker.channel.receive())
    said.put(({"say": "ended", "death": asdict(worker.death())}, b""))


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def digest_of(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_leftovers(parent: Path) -> Sequence[Path]:
    """Remove the folders of hosts that were killed; returns them."""
    gone = []
    for folder in parent.glob(f"{FOLDER}*-*"):
        owner = folder.name.removeprefix(FOLDER).partition("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)
            gone.append(folder)
    return gone
