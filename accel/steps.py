"""Keeping the first and the last steps of a clip exact: approximate attention then steps aside, and that is counted.

The first steps settle what is where and the last ones the finest detail, so an error costs most there. The step is read
from the pipeline's scheduler before each forward of the transformer; compiled blocks stay as they are, since whether to
step aside is looked up inside the attention op.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from accel.ops import AttentionSlot


class ExactSteps:
    """A forward pre-hook of one transformer. Its copies do nothing: a copied component carries no installation."""

    def __init__(self, pipeline: Any = None, slot: AttentionSlot | None = None, count: int = 0) -> None:
        self.pipeline = (lambda: None) if pipeline is None else weakref.ref(pipeline)
        self.slot, self.count = slot, count

    def __call__(self, module: nn.Module, args: Any) -> None:
        scheduler = getattr(self.pipeline(), "scheduler", None)
        if self.slot is None or scheduler is None or torch.compiler.is_compiling():
            return
        step, steps = scheduler.step_index or 0, len(scheduler.timesteps)
        exact = step < self.count or step >= steps - self.count
        self.slot.aside = f"one of the first or last {self.count} steps, kept exact as asked" if exact else ""

    def __reduce__(self) -> tuple[type[ExactSteps], tuple[()]]:
        return ExactSteps, ()


def why_not(pipeline: Any) -> str:
    """Why the pipeline's step can't be known, as one sentence; empty when it can."""
    scheduler = getattr(pipeline, "scheduler", None)
    if hasattr(type(scheduler), "step_index") and hasattr(scheduler, "timesteps"):
        return ""
    return f"{type(scheduler).__name__} does not tell at which step it is, so no step is kept exact"
