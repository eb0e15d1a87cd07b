"""What accel raises. Each message is one sentence that can be shown to a person.

AccelError
├── PlanError         a forced choice can't run on this machine; `.reasons` says why and what to do, `.unknown` which of
│                     them speak of names or strengths that there are on no machine
└── NonFiniteError    latents or frames are no picture any more; `.what`, `.step` and the backend say where
"""

from __future__ import annotations

from collections.abc import Sequence


class AccelError(Exception):
    """Base of everything accel raises on purpose."""


class Unknown(str):
    """A reason against a choice that no machine could keep: its name, or the strength behind it, does not exist."""

    __slots__ = ()


class PlanError(AccelError):
    """A forced choice can't run here. Raised before anything loads."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = list(reasons)
        self.unknown = [reason for reason in self.reasons if isinstance(reason, Unknown)]
        super().__init__("; ".join(self.reasons))


class NonFiniteError(AccelError):
    """Latents that are not finite, or frames of one flat value. `step` counts from 1; 0 means after the last."""

    def __init__(self, what: str, step: int, backend: str) -> None:
        self.what, self.step, self.backend = what, step, backend
        where = f"at step {step}" if step else "after decoding"
        super().__init__(
            f"{what} {where} with {backend or 'the stock backends'}; run it again with "
            "--accel attention=sdpa,linear=stock,vae=stock,dtype=float32"
        )
