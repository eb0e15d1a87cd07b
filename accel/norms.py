"""A Wan VAE's norm and activation in three passes over memory instead of eight.

`WanRMS_norm` normalises, then multiplies twice and adds a bias that is 0.0; in bf16 it also goes through float32 and
back. As convolutions get faster, these passes are what is left of a decode. Same result up to rounding: the factors
are multiplied first, and the activation overwrites the norm's output, which nobody else holds.
Measured on 2 cores of Zen 4, norm and activation together: 40 channels of 2x80x128 in 0.37 ms against 0.59 ms in
fp32, 0.70 ms against 2.2 ms in bf16.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from accel.contract import Undo
from accel.swapping import Swaps, in_front

EPSILON = 1e-12  # of F.normalize, which the stock module calls
NORM, ACTIVATION = "WanRMS_norm", "nonlinearity"


class DirectNorm(nn.Module):
    """Goes in front of WanRMS_norm."""

    gamma: torch.Tensor
    scale: float
    bias: Any
    channel_first: bool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():  # what follows overwrites what gradients would need
            out: torch.Tensor = super().forward(x)
            return out
        size = torch.linalg.vector_norm(x, dim=1 if self.channel_first else -1, keepdim=True).clamp_min_(EPSILON)
        out = x.div(size).mul_(self.gamma * self.scale)
        return out if isinstance(self.bias, float) and self.bias == 0.0 else out.add_(self.bias)


class OverwritingSiLU(nn.SiLU):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(x, inplace=not torch.is_grad_enabled())


def swap_norms(vae: nn.Module) -> Undo:
    """Swap every WanRMS_norm of `vae`, and the activations that follow one; return the way back."""
    swaps = Swaps()
    for module in list(vae.modules()):
        if type(module).__name__ == NORM:
            swaps.swap(module, in_front(DirectNorm, type(module)))
        activation = getattr(module, ACTIVATION, None)
        if type(module).__name__.startswith("Wan") and type(activation) is nn.SiLU:
            swaps.swap(activation, OverwritingSiLU)
    return swaps.undo
