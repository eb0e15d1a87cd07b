"""The fused passes in plain torch, rounding where the kernels round. Tokens are (batch, tokens, channels), bf16.

A `Modulation` is what a block adds to its table of shifts, scales and gates; a pass names the rows that it uses.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from accel.fp8 import quantise_rows

ROUNDED = 1.02
"""A largest magnitude may grow by this when a norm and a rotation round to bf16 on the way."""


class Modulation(NamedTuple):
    """What a block's timestep says. embedding: (batch, n, channels), or (batch, tokens, n, channels) where every token
    has its own time; table: (n, channels), to be added to it, None where it was."""

    embedding: torch.Tensor
    table: torch.Tensor | None = None

    def vector(self, index: int) -> torch.Tensor:
        """Row `index`, float32 (batch, 1 or tokens, channels)."""
        row = self.embedding[..., index, :].float()
        row = row if self.table is None else row + self.table[index].float()
        return row if self.embedding.dim() == 4 else row.unsqueeze(1)


class Rows(NamedTuple):
    """Tokens as a product in FP8 takes them: values (batch, tokens, channels), float32 scales (batch, tokens, 1)."""

    values: torch.Tensor
    scales: torch.Tensor


class Norm(NamedTuple):
    """A layer norm in float32. weight and bias: its own, where it has them; shift and scale: rows of the modulation
    that follow it, where any do."""

    eps: float
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    shift: int | None = None
    scale: int | None = None


def add(x: torch.Tensor, y: torch.Tensor, modulation: Modulation, gate: int | None) -> torch.Tensor:
    """`x + y`, y times the modulation's row `gate` where one is named."""
    if gate is None:
        return x + y
    return (x.float() + y.float() * modulation.vector(gate)).to(x.dtype)


def normed(x: torch.Tensor, norm: Norm, modulation: Modulation) -> torch.Tensor:
    """The norm of `x` and its modulation."""
    return _normed(x, norm, modulation).to(x.dtype)


def _normed(x: torch.Tensor, norm: Norm, modulation: Modulation) -> torch.Tensor:
    wide = F.layer_norm(x.float(), x.shape[-1:], norm.weight, norm.bias, norm.eps)
    if norm.scale is not None and norm.shift is not None:
        wide = wide * (1 + modulation.vector(norm.scale)) + modulation.vector(norm.shift)
    return wide


def normed_rows(x: torch.Tensor, norm: Norm, modulation: Modulation, form: torch.dtype) -> Rows:
    """As `normed`, quantised without a rounding to x's dtype on the way; so are the passes below."""
    return Rows(*quantise_rows(_normed(x, norm, modulation), form))


def add_normed_rows(
    x: torch.Tensor, y: torch.Tensor, gate: int | None, norm: Norm, modulation: Modulation, form: torch.dtype
) -> tuple[torch.Tensor, Rows]:
    """`add`, and `normed_rows` of the sum."""
    total = add(x, y, modulation, gate)
    return total, normed_rows(total, norm, modulation, form)


def gelu_rows(x: torch.Tensor, form: torch.dtype) -> Rows:
    """The tanh form of gelu, quantised."""
    return Rows(*quantise_rows(F.gelu(x.float(), approximate="tanh"), form))


def rows(x: torch.Tensor, form: torch.dtype) -> Rows:
    """`x`, quantised."""
    return Rows(*quantise_rows(x, form))


def heads(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    rotation: tuple[torch.Tensor, torch.Tensor] | None,
    count: int,
    form: torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Queries or keys: the RMS norm over all channels of `x` (batch, tokens, channels), with `weight`, rotated.

    rotation: cosines and sines (1, tokens, 1, head_dim), each pair's twice, as diffusers' Wan models hand them on.
    Returns (batch, tokens, count, head_dim) in x's dtype and None, or in `form` with float32 scales (batch, count).
    """
    exact = (x, weight) if form is None else (x.float(), weight.float())
    out = F.rms_norm(exact[0], x.shape[-1:], exact[1], eps).unflatten(-1, (count, -1))
    if rotation is not None:
        first, second = out.unflatten(-1, (-1, 2)).float().unbind(-1)
        cosine, sine = rotation[0][..., 0::2].float(), rotation[1][..., 1::2].float()
        out = torch.stack((first * cosine - second * sine, first * sine + second * cosine), -1).flatten(-2)
    if form is None:
        return out.to(x.dtype), None
    most = torch.finfo(form).max
    scales = head_scales(weight, count, form)
    scaled = (out / scales.view(1, 1, -1, 1)).clamp(-most, most)
    scaled = torch.where(out.isfinite(), scaled, torch.nan)
    return scaled.to(form), scales.expand(x.shape[0], -1).contiguous()


def head_scales(weight: torch.Tensor, count: int, form: torch.dtype) -> torch.Tensor:
    """Scales (1, count) that no RMS norm with `weight` over all heads' channels can overflow, so that nobody has to
    look for the largest magnitude first.

    The squares of a normed token add up to the number of channels, so no pair of them is longer than its root, turned
    or not. FP8 being floating, values far below the bound keep their three bits: down to 1/28000 of it.
    """
    largest = weight.float().abs().view(1, count, -1).amax(-1).clamp_min(1e-12)
    return largest * (ROUNDED * weight.numel() ** 0.5 / torch.finfo(form).max)
