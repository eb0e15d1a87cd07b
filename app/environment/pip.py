"""One face for pip: look at what it would take, install, say what went wrong. Tests put another in its place.

pip keeps its own settings (indexes, find-links, proxies, certificates); only what would send packages out of the
environment is taken away. Its output goes to stderr, so that a machine can read stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from app.environment.handover import child_environment, run_child

_ELSEWHERE = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_DRY_RUN", "PIP_REPORT")
_QUIET = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


@dataclass(frozen=True)
class Candidate:
    """What pip would install: version and the lines of its ``Requires-Dist``."""

    version: str
    requires: tuple[str, ...]


class Pip(Protocol):
    """What the installer asks of pip."""

    def look(self, requirement: str, index: str | None, seconds: float) -> Candidate | str:
        """What pip would take, or in words why nothing; ``index`` is asked with a time-out in seconds."""

    def install(
        self,
        requirements: Sequence[str],
        constraints: Sequence[str] = (),
        index: str | None = None,
        extra_index: str | None = None,
        dependencies: bool = True,
    ) -> int:
        """Install with visible progress; 0 when all went well, 130 when interrupted, another number otherwise."""


class RealPip:
    """``python -m pip`` of one environment."""

    def __init__(self, python: Path, folder: Path, keep_open: Sequence[int] = ()) -> None:
        self.python = python
        self.folder = folder
        self.keep_open = tuple(keep_open)

    def look(self, requirement: str, index: str | None, seconds: float) -> Candidate | str:
        where = ["--index-url", index, "--timeout", str(seconds), "--retries", "0"] if index else []
        options = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-", *where]
        command = [os.fspath(self.python), "-m", "pip", "install", *options, requirement]
        # The report names authors, whose letters a console of Windows may not have.
        unicode = {**_environment(), "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            command, env=unicode, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
        if done.returncode == 0:
            try:
                metadata = json.loads(done.stdout)["install"][0]["metadata"]
                return Candidate(metadata["version"], tuple(metadata.get("requires_dist", ())))
            except (ValueError, LookupError, TypeError) as error:
                return f"pip's report could not be read ({error})"
        return last_error(done.stderr) or f"pip ended with code {done.returncode}"

    def install(
        self,
        requirements: Sequence[str],
        constraints: Sequence[str] = (),
        index: str | None = None,
        extra_index: str | None = None,
        dependencies: bool = True,
    ) -> int:
        options = [] if dependencies else ["--no-deps"]
        options += ["--index-url", index, "--retries", "1"] if index else []
        options += ["--extra-index-url", extra_index] if extra_index else []
        if constraints:
            file = self.folder / "kinetile-constraints.txt"
            file.write_text("\n".join(constraints) + "\n", encoding="utf-8")
            options += ["--constraint", os.fspath(file)]
        return self._run("install", *options, *requirements)

    def _run(self, *words: str) -> int:
        sys.stderr.flush()
        command = [os.fspath(self.python), "-m", "pip", *words]
        code, interrupted = run_child(command, env=_environment(), stdout=_stderr(), keep_open=self.keep_open)
        return 130 if interrupted else code


def last_error(text: str) -> str:
    """The most telling line of pip's output: its last ERROR line, else its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1]


def _environment() -> dict[str, str]:
    return child_environment(_QUIET, without=_ELSEWHERE)


def _stderr() -> int | None:
    """Our stderr as a descriptor for pip's stdout; None (pip's own) where stderr is no real file, as in a test."""
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return None
