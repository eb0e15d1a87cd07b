"""PyTorch's own attention: the reference, on every machine, for every call.

On a CPU in bfloat16 it uses oneDNN's brgemm, hence AMX where the machine has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.backends.stock import Reference
from accel.contract import AttentionCall, attend
from accel.types import Kind

if TYPE_CHECKING:
    import torch


class Sdpa(Reference):
    name = "sdpa"
    title = "PyTorch attention"
    kind: Kind = "attention"

    def run(self, call: AttentionCall) -> torch.Tensor:
        return attend(call)
