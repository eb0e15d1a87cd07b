"""Linears in bf16 with the weight packed once by oneDNN, through operators that torch itself registers.

Needs AVX512_BF16 or AMX. The packed tensor unpacks bit for bit (`to_dense`), so it replaces the weight in memory.
With an inner dimension that is no multiple of 32, AMX products have let NaN from one row leak into others: such
weights and their inputs are padded with zeros, which changes no result.
Measured on 16 vCPU of Emerald Rapids: 7800x8960x1536 in 53 ms against 57 ms of plain bf16 and 230 ms of fp32; on 2
cores of Zen 4: 1008x384x1536 in 2.7 ms, 3.0 ms and 6.2 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.contract import PackedMatrix, widened
from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch

INNER = 32
RUNS_ON = "CPUs with AVX512_BF16 or AMX (Zen 4, Sapphire Rapids and newer)"


class OneDnnMatrix:
    def __init__(self, weight: torch.Tensor) -> None:
        import torch

        self.in_features = weight.shape[1]
        padded = widened(weight, INNER)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(padded)
        self.nbytes = padded.numel() * padded.element_size()

    def run(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        import torch

        return torch.ops.mkldnn._linear_pointwise(widened(rows, INNER), self.packed, bias, "none", [], "")

    def unpack(self) -> torch.Tensor | None:
        return self.packed.to_dense()[:, : self.in_features].contiguous()


class OneDnnBf16:
    name = "onednn_bf16"
    title = "oneDNN packed linears"
    kind: Kind = "linear"
    exact = True
    reference = False
    dtypes: tuple[str, ...] = ("bfloat16",)
    devices: tuple[str, ...] = ("cpu",)
    runs_on = RUNS_ON
    comes_with = "PyTorch"
    blocks_only = False
    own_test = "packed_bf16"

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        unproved = machine.why_unproved("packed_bf16")
        if unproved:
            return [f"{unproved}; it needs a CPU with AVX512_BF16 or AMX, which are Zen 4, Sapphire Rapids or newer"]
        return []

    def why_not_weight(self, out_features: int, in_features: int, dtype: str) -> str:
        return "" if dtype == "bfloat16" else f"kept in {dtype} by the model"

    def pack(self, weight: torch.Tensor) -> PackedMatrix:
        return OneDnnMatrix(weight)
