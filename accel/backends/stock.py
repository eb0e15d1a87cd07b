"""The references for linears and the VAE: the modules as they are, on every machine. Attention's reference is
sdpa.py."""

from __future__ import annotations

from accel.types import Kind, Machine, StageTraits


class Reference:
    """What all references answer: they serve everything."""

    exact = True
    reference = True
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    devices: tuple[str, ...] = ("cpu", "cuda", "mps", "xpu")
    runs_on = "any machine"
    comes_with = "PyTorch"

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        return []


class StockLinear(Reference):
    name = "stock"
    title = "PyTorch linears"
    kind: Kind = "linear"


class StockVae(Reference):
    name = "stock"
    title = "PyTorch convolutions"
    kind: Kind = "vae"
