"""Linears whose weights alone are stored in int8 or FP8, by torchao: for memory, not for speed. Approximate, so opt-in.

The weight is made wide again at each call, so inputs keep their precision and no chip is asked for int8 or FP8
products. It takes half of bf16's memory, a quarter of fp32's; what there is before packing must fit all the same. The
weight can't be got back: it is read again from its file, or kept in the host's memory.
Relative error of one 256 x 512 linear of normal numbers: int8 0.4 %, FP8 (e4m3) 2.6 % (torchao 0.18, on a CPU).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accel.advice import pip
from accel.contract import PackedMatrix
from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch

SMALLEST = 64  # below this a linear is all overhead
WANTED = "torchao>=0.18,<0.19"


class TorchaoMatrix:
    """One weight as torchao's tensor, in a linear of its own: torchao's verb takes modules."""

    def __init__(self, weight: torch.Tensor, config: Any) -> None:
        from torch import nn
        from torchao.quantization import quantize_

        out_features, in_features = weight.shape
        linear = nn.Linear(in_features, out_features, bias=False, device="meta", dtype=weight.dtype)
        linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
        quantize_(linear, config)
        self.weight: Any = linear.weight.detach()
        parts = [getattr(self.weight, name, None) for name in ("qdata", "scale")]
        self.nbytes = sum(part.numel() * part.element_size() for part in parts if part is not None)

    def run(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        import torch.nn.functional as F

        return F.linear(rows, self.weight, bias)

    def unpack(self) -> torch.Tensor | None:
        return None


@dataclass(eq=False)
class TorchaoWeights:
    """`config` is torchao's name for the format."""

    name: str
    title: str
    config: str
    kind: Kind = "linear"
    exact: bool = False
    reference: bool = False
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    devices: tuple[str, ...] = ("cpu", "cuda")
    runs_on: str = "CPUs and GPUs"
    comes_with: str = f"`{pip('install', WANTED)}`"
    blocks_only: bool = True
    one_byte: bool = True

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        package = machine.packages.get("torchao")
        if package is None or not package.installed:
            return [f"torchao is not installed: {self.comes_with}"]
        return [] if package.importable else [package.reason]

    def why_not_weight(self, out_features: int, in_features: int, dtype: str) -> str:
        if dtype not in self.dtypes:
            return f"kept in {dtype} by the model"
        if min(out_features, in_features) < SMALLEST:
            return f"{out_features} x {in_features} is too small to matter"
        return ""

    def pack(self, weight: torch.Tensor) -> PackedMatrix:
        import torchao.quantization as formats

        return TorchaoMatrix(weight, getattr(formats, self.config)())


INT8_WEIGHTS = TorchaoWeights("torchao_int8", "int8 weights by torchao (approximate)", "Int8WeightOnlyConfig")
FP8_WEIGHTS = TorchaoWeights("torchao_fp8", "FP8 weights by torchao (approximate)", "Float8WeightOnlyConfig")
