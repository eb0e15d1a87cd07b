"""PyTorch's own attention: the reference, on every machine, for every call.

On a CPU in bfloat16 it uses oneDNN's brgemm, hence AMX where the machine has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.contract import AttentionCall, attend
from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch


class Sdpa:
    name = "sdpa"
    title = "PyTorch attention"
    kind: Kind = "attention"
    exact = True
    reference = True
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    devices: tuple[str, ...] = ("cpu", "cuda", "mps", "xpu")
    runs_on = "any machine"
    comes_with = "PyTorch"

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        return []

    def run(self, call: AttentionCall) -> torch.Tensor:
        return attend(call)
