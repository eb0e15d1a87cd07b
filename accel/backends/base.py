"""What every backend answers, whatever its kernel: "can you?", as a list of reasons why not.

An empty list means usable. The page's badges, `--doctor`, the error for a forced choice and the log all print these
same sentences, so each one says what is missing, which value was seen, and what a person can do about it. Asking must
be cheap: no kernel, no torch and no package is imported, everything needed stands in the Machine, whose facts were
proved in child processes beforehand.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from accel.types import Kind, Machine, StageTraits


@runtime_checkable
class Backend(Protocol):
    """One way to run the calls of one kind.

    name: as typed in preferences ("sdpa", "sgl_amx"). title: as shown to a person ("PyTorch attention").
    exact: equal to the stock module up to the rounding of its dtype. Approximate backends (int8, fp8) are opt-in:
    `auto` takes them only where readouts found them faster and this very model's clips alike.
    dtypes: dtypes the stage must run in for this backend to serve it.
    devices: torch device types it serves ("cpu", "cuda", "mps").
    reference: the stock path, which serves everything. Exactly one per kind.
    """

    name: str
    title: str
    kind: Kind
    exact: bool
    reference: bool
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        """Sentences why this backend can't serve `traits` on `machine`, each with what to do; empty when it can."""
        ...
