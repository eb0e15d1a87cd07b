"""How far a benchmark is, and how long it still takes: its parts' steps, each reckoned beforehand, and what those that
are over really took.

A step's reckoning is by operations and the machine's peak, which a busy machine or a slow kernel misses by far. So the
steps that are over say by how much the rest of their part will miss it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

TRUST = 2.0
"""Seconds of work that the reckoning counts for against what was seen: one short step proves little."""


class Tell(Protocol):
    """Told how much is done (0 to 1), what comes next, and how many seconds are left where that is known."""

    def __call__(self, done: float, text: str, left: float | None = None, /) -> object: ...


class Course:
    """The course of one benchmark. Parts come in the order in which they are first expected."""

    def __init__(self, tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._started = clock()
        self._expected: dict[str, list[float]] = {}
        self._now: tuple[str, int, float] | None = None
        self._seen: dict[str, tuple[float, float]] = {}
        self._done = 0.0

    def expect(self, part: str, seconds: Iterable[float]) -> None:
        """What each step of a part will take; said anew when more is known."""
        self._expected[part] = list(seconds)

    def begin(self, part: str, step: int, text: str) -> None:
        """A step begins, so that what was going on is over."""
        now = self._clock()
        self._end(now)
        self._now = (part, step, now)
        spent, left = now - self._started, self._left()
        self._done = max(self._done, spent / (spent + left) if spent + left > 0 else 0.0)
        self._tell(self._done, text, left)

    def finish(self) -> None:
        """All is over."""
        self._tell(1.0, "done", 0.0)

    def _end(self, now: float) -> None:
        if self._now is None:
            return
        part, step, begun = self._now
        took, reckoned = self._seen.get(part, (0.0, 0.0))
        steps = self._expected.get(part, [])[step : step + 1]
        self._seen[part] = (took + now - begun, reckoned + sum(steps))

    def _left(self) -> float:
        """Seconds that the step of now and all after it take."""
        assert self._now is not None
        part, step, _ = self._now
        left, parts = 0.0, list(self._expected)
        for name in parts[parts.index(part) if part in parts else 0 :]:
            took, reckoned = self._seen.get(name, (0.0, 0.0))
            steps = self._expected[name][step:] if name == part else self._expected[name]
            left += sum(steps) * (took + TRUST) / (reckoned + TRUST)
        return left
