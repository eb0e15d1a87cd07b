"""Upsampling by two and the 3x3 convolution behind it as one 2x2 convolution of the small picture.

Each pixel of the small picture stands four times in the large one, so of the nine products behind an output pixel
several meet the same input: their weights are added up beforehand. One window of 2x2 input pixels serves four output
pixels with 16 products instead of 36, and the large picture of input channels is never written. Equal up to rounding
of the added weights. Measured on one core of Zen 4, the starter's decode: 8 % less time.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from accel.contract import Undo
from accel.swapping import Swaps

MODES = ("nearest", "nearest-exact")  # the same picture when the factor is two


class FoldedUpsample(nn.Sequential):
    """(upsample by two, 3x3 convolution) computed at once."""

    accel_folded: tuple[Any, torch.Tensor]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        conv: Any = self[1]
        if x.dim() != 4 or x.dtype != conv.weight.dtype:
            return super().forward(x)  # type: ignore[no-untyped-call]
        return fold(x, self._weight(conv), conv.bias)

    def _weight(self, conv: nn.Conv2d) -> torch.Tensor:
        weight = conv.weight
        state = (weight.data_ptr(), None if weight.is_inference() else weight._version, weight.dtype)
        if self.accel_folded[0] != state:  # loaded or cast since
            self.accel_folded = (state, folded_weight(weight.data))
        return self.accel_folded[1]


def folded_weight(weight: torch.Tensor) -> torch.Tensor:
    """(4 * out, in, 2, 2) in the order of the four output pixels, from (out, in, 3, 3)."""
    wide = weight.float()

    def halves(taps: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, middle, last = taps.unbind(dim)
        # output 2i sees inputs i-1, i, i; output 2i+1 sees i, i, i+1
        return torch.stack((first, middle + last), dim), torch.stack((first + middle, last), dim)

    parts = [part for rows in halves(wide, 2) for part in halves(rows, 3)]
    return torch.cat(parts).to(weight.dtype).contiguous(memory_format=torch.channels_last)


def fold(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """(n, out, 2h, 2w) from x (n, in, h, w) and a folded weight; in x's memory format."""
    n, _, height, width = x.shape
    outs = weight.shape[0] // 4
    four = F.conv2d(x, weight, None if bias is None else bias.repeat(4), padding=1).unflatten(1, (4, outs))
    out = torch.empty((n, outs, 2 * height, 2 * width), dtype=x.dtype, device=x.device, memory_format=_format(x))
    for row in (0, 1):
        for column in (0, 1):
            pixels = four[:, 2 * row + column, :, row : row + height, column : column + width]
            out[:, :, row::2, column::2] = pixels
    return out


def _format(x: torch.Tensor) -> torch.memory_format:
    return torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format


def swap_upsampling(vae: nn.Module) -> Undo:
    """Swap every (upsample by two, 3x3 convolution) pair of `vae`; return the way back."""
    swaps = Swaps()
    for pair in [module for module in vae.modules() if type(module) is nn.Sequential and _foldable(module)]:
        swaps.swap(pair, FoldedUpsample).accel_folded = (None, None)
    return swaps.undo


def _foldable(pair: nn.Sequential) -> bool:
    if len(pair) != 2 or not isinstance(pair[0], nn.Upsample) or type(pair[1]) is not nn.Conv2d:
        return False
    upsample, conv = pair[0], pair[1]
    plain = conv.kernel_size == (3, 3) and conv.padding == (1, 1) and conv.stride == (1, 1) and conv.groups == 1
    scale = upsample.scale_factor
    twice = tuple(scale) == (2.0, 2.0) if isinstance(scale, (tuple, list)) else scale == 2.0
    return plain and twice and conv.dilation == (1, 1) and conv.padding_mode == "zeros" and upsample.mode in MODES
