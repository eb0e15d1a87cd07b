"""Counts of what ran: each call served, or fallen back with its reason. Kept inside the op bodies, so that compiled
graphs count too.

A module attribute that counts would break `torch.compile(fullgraph=True)` or make it recompile on every change; the
body of a custom op is invisible to the compiler and runs on every call.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """Counts of one (component, kind), safe to bump from several threads."""

    component: str
    kind: str
    backend: str
    served_calls: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def served(self) -> None:
        with self._lock:
            self.served_calls += 1

    def fell_back(self, reason: str) -> None:
        with self._lock:
            self.reasons[reason] += 1

    def reset(self) -> None:
        with self._lock:
            self.served_calls = 0
            self.reasons.clear()

    @property
    def fallen_back(self) -> int:
        return sum(self.reasons.values())

    @property
    def calls(self) -> int:
        return self.served_calls + self.fallen_back

    def to_dict(self) -> dict[str, Any]:
        """`{"backend", "calls", "served", "fallen_back", "reasons": {sentence: count}, "summary"}`."""
        return {
            "backend": self.backend,
            "calls": self.calls,
            "served": self.served_calls,
            "fallen_back": self.fallen_back,
            "reasons": dict(self.reasons.most_common()),
            "summary": self.summary(),
        }

    def summary(self) -> str:
        """For a person: "sgl_amx served 96 of 100 calls, 4 fell back: a mask per query (4)"."""
        if not self.calls:
            return f"{self.backend}: not called"
        text = f"{self.backend} served {self.served_calls} of {self.calls} calls"
        if self.reasons:
            text += f", {self.fallen_back} fell back: " + "; ".join(
                f"{reason} ({count})" for reason, count in self.reasons.most_common()
            )
        return text


@dataclass
class Reused:
    """What a step cache saved in one component. unit: what is counted; parts: how many of them a whole forward has."""

    component: str
    backend: str
    unit: str
    parts: int = 1
    calls: int = 0
    computed_calls: int = 0
    steps: dict[int, bool] = field(default_factory=dict)
    """By step, whether anything was reused in each of its forwards."""
    _before: int = 0
    _step: int = 0

    def enter(self, step: int) -> None:
        self._before, self._step = self.computed_calls, step

    def computed(self) -> None:
        self.computed_calls += 1

    def leave(self) -> None:
        self.calls += self.parts
        saved = self.computed_calls - self._before < self.parts
        self.steps[self._step] = self.steps.get(self._step, True) and saved

    def reset(self) -> None:
        self.calls = self.computed_calls = 0
        self.steps.clear()

    def to_dict(self) -> dict[str, Any]:
        """`{"backend", "unit", "calls", "served", "computed", "steps", "steps_reused", "summary"}`: `served` were taken
        from the cache."""
        return {
            "backend": self.backend,
            "unit": self.unit,
            "calls": self.calls,
            "served": self.calls - self.computed_calls,
            "computed": self.computed_calls,
            "steps": len(self.steps),
            "steps_reused": sum(self.steps.values()),
            "summary": self.summary(),
        }

    def summary(self) -> str:
        """For a person: "first_block saved 12 of 40 forwards, in 6 of 20 steps"."""
        if not self.calls:
            return f"{self.backend}: not called"
        saved = f"{self.calls - self.computed_calls} of {self.calls} {self.unit}"
        return f"{self.backend} saved {saved}, in {sum(self.steps.values())} of {len(self.steps)} steps"


@dataclass
class Unreached:
    """Attention that a backend can't be put into: said and counted, never passed over in silence.

    calls counts eager calls only: inside a compiled graph nothing of ours runs, so `compiled` marks the count as
    partial.
    """

    component: str
    modules: int
    why: str
    calls: int = 0
    compiled: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"modules": self.modules, "calls": self.calls, "why": self.why, "summary": self.summary()}

    def summary(self) -> str:
        number = f"{self.calls} or more" if self.compiled else str(self.calls)
        return f"not reachable, 0 of {number} calls: {self.why}"
