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
