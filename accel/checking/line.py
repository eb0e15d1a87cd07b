"""One line of the table, and what every case is judged by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

# Worst relative error that passes. bf16 rounds to 2**-9 = 2e-3, fp16 to 5e-4, per operand and result; int8 dynamic
# quantisation of normal numbers gives about 1.3 % (per token 0.8 %), 2.5 % without VNNI.
LIMITS = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3, "int8": 4e-2}


@dataclass
class Line:
    """One line of the table: all cases of one group with one backend and dtype."""

    backend: str
    dtype: str
    group: str
    limit: float
    cases: int = 0
    served: int = 0
    worst: float = 0.0
    faults: list[str] = field(default_factory=list)

    def add(self, case: str, error: float, served: bool) -> None:
        self.cases += 1
        self.served += served
        if not error <= self.limit:  # NaN fails as well
            self.faults.append(f"{case}: relative error {error:.2e}, limit {self.limit:.0e}")
        self.worst = max(self.worst, error) if error == error else float("nan")

    def expect(self, condition: bool, fault: str) -> None:
        if not condition:
            self.faults.append(fault)

    def text(self) -> str:
        verdict = f"{len(self.faults)} FAULTS" if self.faults else "right"
        return (
            f"{self.backend:<20}{self.dtype:<10}{self.group:<30}{self.cases:>6}{self.served:>8}"
            f"{self.worst:>11.1e}{self.limit:>9.0e}  {verdict}"
        )


HEADER = f"{'backend':<20}{'dtype':<10}{'cases of':<30}{'cases':>6}{'served':>8}{'worst':>11}{'limit':>9}  verdict"


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative error in float64; infinite when `got` is NaN somewhere that `want` is not."""
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm().clamp_min(1e-30))


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def line_for(backend: Any, dtype: torch.dtype, group: str) -> Line:
    """An empty line for cases of one group in one dtype."""
    name = str(dtype).removeprefix("torch.")
    return Line(backend.name, name, group, LIMITS[name if backend.exact else "int8"])
