"""What the worker answers when it is asked about this machine, as plain data that page and batch can read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from app.estimate import MemoryNeed


@dataclass(frozen=True)
class PlanAnswer:
    """The accelerators for a request on this machine: the plan as data, in a few words, what memory it needs, what of
    a recorded plan is not possible here, and why a GPU that is there is left out though nobody asked for the CPU.
    """

    plan: dict[str, Any]
    summary: str
    memory: MemoryNeed
    differences: tuple[str, ...] = ()
    unused_gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Accelerator:
    """One backend for one setting of the preferences: a row of the Accelerate tab.

    setting: the field of AccelPreferences that chooses it. state: "on" (engaged), "off" (could be chosen),
    "unavailable". reasons: why, each a sentence with what to do. forced: a person chose it. exact: equal to plain
    PyTorch up to rounding. calls, served: of the last clip, 0 without one. speedup (against plain PyTorch in the plan's
    precision), error (relative, the largest) and share_of_peak: as measured on this machine for this model's shapes,
    None where nothing was.
    """

    setting: str
    stage: str
    name: str
    title: str
    state: Literal["on", "off", "unavailable"]
    reasons: tuple[str, ...]
    forced: bool
    exact: bool
    reference: bool
    calls: int = 0
    served: int = 0
    speedup: float | None = None
    error: float | None = None
    share_of_peak: float | None = None
