"""Contenders in turn: each round asks every one of them once, so that whatever else the machine does hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from accel.benching.processes import Child, Failed

Job = tuple[dict[str, Any], dict[str, str]]
"""What the worker is told, and its environment."""
Times = dict[str, float]
"""Seconds by phase; there is always "total", and "cpu", the seconds of all threads together."""

LEAST_PATIENCE = 120.0
"""Seconds that one answer may take at least, however little time is left: a call that runs late still counts."""


class Race:
    """Starts a process per job; those that fail stand in `failures` and take no further part."""

    def __init__(self, jobs: Mapping[str, Job], end: float) -> None:
        """end: `time.monotonic()` when the time is up."""
        self.end = end
        self.failures: dict[str, str] = {}
        # all at once: importing torch takes one core, and building what it builds
        self._children = {name: Child(job, environ) for name, (job, environ) in jobs.items()}
        self.built = self._each(lambda child, name: child.ready(self._patience()))

    def __enter__(self) -> Race:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for child in self._children.values():
            child.close()

    def ask(self, command: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Everyone's answer, one after another."""
        return self._each(lambda child, name: child.ask(command, self._patience()))

    def save(self, folder: Path) -> dict[str, Times]:
        """A first run of everyone, with its result written to `folder` as NAME.npy."""

        def run(child: Child, name: str) -> dict[str, Any]:
            return child.ask({"run": True, "save": str(folder / f"{name}.npy")}, self._patience())

        return {name: answer["seconds"] for name, answer in self._each(run).items()}

    def rounds(self, most: int, warm: Mapping[str, Times] | None = None) -> dict[str, list[Times]]:
        """Up to `most` rounds, as many as fit. A first run (`warm`) counts only when there is time for no other."""
        runs: dict[str, list[Times]] = {name: [] for name in self._children}
        # the middle one stands for all: a first run that compiles takes minutes, the next ones seconds
        first = [times.get("total", 0.0) for times in (warm or {}).values()]
        took = len(first) * statistics.median(first) if first else 0.0
        for _ in range(most):
            begun = time.monotonic()
            if begun + took > self.end and (warm or any(runs.values())):
                break
            for name, answer in self.ask({"run": True}).items():
                runs[name].append(answer["seconds"])
            took = time.monotonic() - begun
        return {name: found or [(warm or {})[name]] for name, found in runs.items() if found or (warm or {}).get(name)}

    def _each(self, ask: Callable[[Child, str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
        answers = {}
        for name, child in list(self._children.items()):
            try:
                answers[name] = ask(child, name)
            except Failed as failure:
                self.failures[name] = str(failure)
                del self._children[name]
        return answers

    def _patience(self) -> float:
        return max(LEAST_PATIENCE, self.end - time.monotonic())


def summed_up(runs: list[Times]) -> dict[str, dict[str, float]]:
    """Median, least and most seconds of each phase."""
    phases = runs[0] if runs else {}
    columns = {phase: [run[phase] for run in runs] for phase in phases}
    return {
        phase: {"median": statistics.median(column), "least": min(column), "most": max(column)}
        for phase, column in columns.items()
    }


def errors(folder: Path, reference: str) -> dict[str, float]:
    """Relative error (Frobenius norm) of each saved result against the one called `reference`; empty without it."""
    import numpy as np

    if not (folder / f"{reference}.npy").is_file():
        return {}
    want = np.load(folder / f"{reference}.npy")
    size = float(np.linalg.norm(want.ravel())) or 1.0
    found = {}
    for path in sorted(folder.glob("*.npy")):
        if path.stem != reference:
            found[path.stem] = float(np.linalg.norm((np.load(path) - want).ravel())) / size
    return found
