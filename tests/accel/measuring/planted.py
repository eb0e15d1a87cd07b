"""Backends whose speed and error are known beforehand, and rows written by hand."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from accel.readouts.results import Call, Row, Spread, judged
from accel.types import Kind, Machine, StageTraits


@dataclass
class Planted:
    """Attention through torch that sleeps for `delay` seconds, then is wrong by `wrong`, as a part of the result."""

    name: str = "planted"
    delay: float = 0.0
    wrong: float = 0.0
    exact: bool = True
    kind: Kind = "attention"
    reference: bool = False
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    devices: tuple[str, ...] = ("cpu",)
    runs_on: str = "any machine"
    comes_with: str = "PyTorch"
    title: str = "a planted backend"

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        return []

    def run(self, call: Any) -> Any:
        from accel.contract import attend

        time.sleep(self.delay)
        return attend(call) * (1 + self.wrong)


@dataclass
class Quick(Planted):
    """Faster than any attention: it multiplies nothing."""

    def run(self, call: Any) -> Any:
        return call.query * 0


CALL = Call("transformer", "attention", "self attention", {"batch": 1, "tokens": 8}, 1e6, count=10)


def spread(median: float, width: float = 0.02, repeats: int = 20) -> Spread:
    return Spread(median, median * (1 - width / 2), median * (1 + width / 2), repeats)


def row(backend: str, milliseconds: float, gain: float | None = None, width: float = 0.02, **changes: Any) -> Row:
    """A row for CALL; `gain` over the reference, None for the reference itself."""
    over = spread(1.0 if gain is None else gain, width)
    usual: dict[str, Any] = {
        "call": CALL,
        "backend": backend,
        "title": backend,
        "dtype": "float32",
        "device": "cpu",
        "exact": True,
        "verdict": "reference" if gain is None else judged(over),
        "time": spread(milliseconds / 1e3),
        "gain": over,
        "error": 1e-6,
    }
    return Row(**{**usual, **changes})
