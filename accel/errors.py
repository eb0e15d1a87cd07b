"""What accel raises. Each message is one sentence that can be shown to a person.

AccelError
└── PlanError     a forced choice can't run on this machine; `.reasons` says why and what to do
"""

from __future__ import annotations

from collections.abc import Sequence


class AccelError(Exception):
    """Base of everything accel raises on purpose."""


class PlanError(AccelError):
    """A forced choice can't run here. Raised before anything loads."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = list(reasons)
        super().__init__("; ".join(self.reasons))
