"""Linears with int8 weights and activations on AMX through SGLang's `int8_scaled_mm_with_quant`. Approximate, so
opt-in.

Weights are quantised per output channel, activations per token inside the kernel, which stores them unsigned: the +128
correction lies inside the packed weight, in four more bytes per row. Wants in % 32 == 0 and out % 32 == 0 (the
correction is made per block of 32 outputs). The weight can't be got back from int8: whoever packs keeps it, or reads
it again from its file.
Measured on 16 vCPU of Emerald Rapids: 7800x1536x1536 in 4.6 ms against 8.9 ms of bf16, relative error 0.8 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.backends.sgl import COMES_WITH, RUNS_ON, operator, why_not_sgl
from accel.contract import AMX_LOCK, PackedMatrix, widened
from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch

OPERATORS = ("convert_weight_packed", "int8_scaled_mm_with_quant")
INNER, OUTER = 32, 32
LARGEST = 127


def quantise_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 (out, in) and float32 scales (out,): the largest magnitude of each row becomes 127."""
    import torch

    scales = weight.float().abs().amax(1).clamp_min(1e-12) / LARGEST
    quantised = (weight.float() / scales[:, None]).round().clamp(-LARGEST, LARGEST)
    return quantised.to(torch.int8), scales


class SglInt8Matrix:
    def __init__(self, weight: torch.Tensor) -> None:
        quantised, self.scales = quantise_rows(weight)
        self.packed = operator(OPERATORS[0])(widened(quantised, INNER))
        self.nbytes = self.packed.numel() + self.scales.numel() * 4

    def run(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        wide = None if bias is None else bias.detach().float()
        with AMX_LOCK:
            return operator(OPERATORS[1])(widened(rows, INNER), self.packed, self.scales, wide, rows.dtype, True)

    def unpack(self) -> torch.Tensor | None:
        return None


class AmxInt8:
    name = "sgl_amx_int8"
    title = "SGLang linears on AMX, int8 (approximate)"
    kind: Kind = "linear"
    exact = False
    reference = False
    dtypes: tuple[str, ...] = ("bfloat16",)
    devices: tuple[str, ...] = ("cpu",)
    runs_on = RUNS_ON
    comes_with = COMES_WITH
    blocks_only = True
    one_byte = True

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        reasons = why_not_sgl(machine, OPERATORS, f"sgl_kernel.{OPERATORS[1]}")
        if not reasons and machine.cpu.why_not("amx_int8"):
            return [machine.cpu.why_not("amx_int8")]
        return reasons

    def why_not_weight(self, out_features: int, in_features: int, dtype: str) -> str:
        if dtype != "bfloat16":
            return f"kept in {dtype} by the model"
        return "" if out_features % OUTER == 0 else f"{out_features} outputs are no multiple of {OUTER}"

    def pack(self, weight: torch.Tensor) -> PackedMatrix:
        return SglInt8Matrix(weight)
