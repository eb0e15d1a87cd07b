"""Start a fetch in a process of its own, follow it, and end it when told to.

The child is killed rather than asked: what it has written of each file is kept either way, and the next fetch goes on
there. It says how far it is in lines of JSON, and at the end the folder or the sentence why there is none.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from app.console import duration
from app.environment.handover import child_environment
from app.errors import Cancelled, CannotRunError
from app.models.sources import network
from app.models.sources.explaining import offline
from app.video.outputs import size_text

ROOT = Path(__file__).resolve().parents[3]
LOOK_SECONDS = 0.2
SILENCE_SECONDS = 120.0
"""A fetch says several times a second how far it is; only while it lists files it waits for an answer, and not for
ever."""

OnProgress = Callable[["FetchProgress"], None]
ShouldStop = Callable[[], bool]


@dataclass(frozen=True)
class FetchProgress:
    """How far a fetch is. done of total: bytes, files that were here before included. speed: bytes a second, None
    before it is known; eta_seconds likewise. file: one that is under way.
    """

    stage: Literal["listing", "downloading", "checking"]
    done: int = 0
    total: int = 0
    speed: float | None = None
    eta_seconds: float | None = None
    file: str = ""

    @property
    def fraction(self) -> float:
        """0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    def sentence(self) -> str:
        """ "3.1 GiB of 28.4 GiB, 12 MiB/s, about 34:10 min left"."""
        if self.stage == "listing":
            return "asking what there is to fetch"
        said = [f"{size_text(self.done)} of {size_text(self.total)}"]
        if self.stage == "checking":
            return f"{said[0]}, checking {self.file}"
        if self.speed:
            said.append(f"{size_text(int(self.speed))}/s")
        if self.eta_seconds is not None and self.eta_seconds >= 0.5:
            said.append(f"about {duration(self.eta_seconds)} left")
        return ", ".join(said)


def fetch_repo(
    repo: str, on_progress: OnProgress = lambda progress: None, should_stop: ShouldStop = lambda: False
) -> Path:
    """Bring a repository's model into the Hugging Face cache; returns its folder there.

    Raises Cancelled when `should_stop` said so (what came is kept), CannotRunError when it can't be had.
    """
    if network.is_forbidden(os.environ):
        raise offline(repo)
    child = subprocess.Popen(
        [sys.executable, "-m", "app.models.sources.process", repo],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        env=network.for_fetching(child_environment({"PYTHONPATH": _path()})),
        # Ctrl-C is for this process to decide about
        **({"creationflags": 0x200} if sys.platform == "win32" else {"start_new_session": True}),
    )
    try:
        return _followed(child, repo, on_progress, should_stop)
    finally:
        child.kill()
        child.wait()


def _path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def _followed(child: subprocess.Popen[str], repo: str, on_progress: OnProgress, should_stop: ShouldStop) -> Path:
    said: queue.Queue[str | None] = queue.Queue()
    complaints: list[str] = []
    threading.Thread(target=_read, args=(child.stdout, said.put), daemon=True).start()
    listener = threading.Thread(target=_read, args=(child.stderr, lambda line: complaints.append(line or "")))
    listener.daemon = True
    listener.start()
    heard = time.monotonic()
    while True:
        if should_stop():
            raise Cancelled(f"Stopped; what came of {repo} is kept, and the next fetch goes on there.")
        try:
            line = said.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            if time.monotonic() - heard > SILENCE_SECONDS:
                raise CannotRunError(
                    f"No answer came while {repo} was fetched; what came is kept: try again."
                ) from None
            continue
        heard = time.monotonic()
        if line is None:
            listener.join(2)
            last = next((text.strip() for text in reversed(complaints) if text.strip()), "it said nothing")
            raise CannotRunError(f"The fetch of {repo} ended before it was done ({last[:200]}): start it again.")
        news: dict[str, Any] = json.loads(line)
        if "folder" in news:
            return Path(news["folder"])
        if "error" in news:
            raise CannotRunError(str(news["error"]))
        on_progress(FetchProgress(**news))


def _read(stream: Any, put: Callable[[str | None], object]) -> None:
    for line in stream:
        put(line)
    put(None)


def line_of(progress: FetchProgress) -> str:
    """One message of the child."""
    return json.dumps(asdict(progress))
