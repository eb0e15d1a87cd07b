"""Swapping the class of a VAE's Conv3d modules, so that they call oneDNN directly, and swapping it back.

The modules stay the same objects with the same parameters: state dicts, casts and saving see the original weights.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from accel.contract import Counting, Undo
from accel.ops import CONVS, Lease, conv3d
from accel.swapping import Swaps, in_front

LAST = torch.channels_last_3d


class DirectMixin(nn.Conv3d):
    """Goes in front of a Conv3d class. `accel_*` attributes are set by `_prepare`, removed by the undo."""

    accel_slot: int
    accel_last: bool
    accel_taps: tuple[int, int]  # zero temporal taps left out at the front, at the back
    accel_weight: torch.Tensor | None  # the weight without those taps, where there are any

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.padding_mode != "zeros" or isinstance(self.padding, str) or input.dim() != 5:
            return super()._conv_forward(input, weight, bias)
        return self.accel_convolve(input, tuple(self.padding))

    def accel_convolve(self, frames: torch.Tensor, padding: tuple[int, ...]) -> torch.Tensor:
        front, back = self.accel_taps
        if padding[0] and (front or back):  # taps were left out: the frames they saw must be real to be cut away
            frames, padding = F.pad(frames, (0, 0, 0, 0, padding[0], padding[0])), (0, *padding[1:])
        return self.accel_call(frames[:, :, front : frames.shape[2] - back], padding)

    def accel_call(self, frames: torch.Tensor, padding: tuple[int, ...]) -> torch.Tensor:
        weight = self.weight if self.accel_weight is None else self.accel_weight
        shape = (padding, self.stride, self.dilation, self.groups)
        return conv3d(frames, weight, self.bias, *shape, self.accel_last, self.accel_slot)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not keep_vars:
            destination[prefix + "weight"] = destination[prefix + "weight"].contiguous()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        _prepare(self)


class DirectCausalMixin(DirectMixin):
    """For convolutions that pad in `forward(x, cache_x=None)` by `_padding` = (w, w, h, h, 2 * t, 0), as Wan's do."""

    def forward(self, x: torch.Tensor, cache_x: torch.Tensor | None = None) -> torch.Tensor:
        padding: Any = self._padding  # set by the class behind this one
        width, _, height, _, missing, _ = padding
        parts = [x]
        if cache_x is not None and missing > 0:
            parts.insert(0, cache_x.to(x.device))
            missing -= cache_x.shape[2]
        if missing > 0:
            parts.insert(0, x.new_zeros((x.shape[0], x.shape[1], missing, *x.shape[3:])))
        front, back = self.accel_taps
        frames = _join(parts, front + max(0, -missing))
        frames = frames[:, :, : frames.shape[2] - back] if back else frames
        return self.accel_call(frames, (0, height, width))


def _join(parts: list[torch.Tensor], skip: int) -> torch.Tensor:
    """`parts` one after another in time, without the first `skip` frames; copies only what is kept."""
    kept = []
    for part in parts:
        drop = min(skip, part.shape[2])
        skip -= drop
        if drop < part.shape[2]:
            kept.append(part[:, :, drop:] if drop else part)
    return kept[0] if len(kept) == 1 else torch.cat(kept, dim=2)


def swap_convolutions(vae: nn.Module, count: Counting, dtypes: tuple[str, ...], channels_last: bool) -> Undo:
    """Swap every Conv3d of `vae` whose weight has one of `dtypes` and that has one group; return the way back."""
    slot = CONVS.add(count)
    lease: Lease | None = Lease(CONVS, slot)
    swaps, lay_back = Swaps(), []
    for module in list(vae.modules()):
        if not isinstance(module, nn.Conv3d) or isinstance(module, DirectMixin):
            continue
        if str(module.weight.dtype).removeprefix("torch.") not in dtypes or module.groups != 1:
            continue
        if module.weight.is_contiguous():
            lay_back.append(module)
        swapped = swaps.swap(module, in_front(_mixin(type(module)), type(module)))
        swapped.accel_slot, swapped.accel_last, swapped.accel_lease = slot, channels_last, lease
        _prepare(swapped)

    def restore() -> None:
        nonlocal lease
        swaps.undo()
        for module in lay_back:
            module.weight.data = module.weight.data.contiguous()
        lease = None

    return restore


def _mixin(kind: type) -> type:
    return DirectCausalMixin if "forward" in vars(kind) and kind.__name__ == "WanCausalConv3d" else DirectMixin


def _prepare(module: DirectMixin) -> None:
    weight = module.weight.data
    live = (weight != 0).any(dim=0).any(dim=0).flatten(1).any(dim=1)
    used = live.nonzero().flatten().tolist()
    first, last = (used[0], used[-1]) if used else (0, 0)
    module.accel_taps = (first, weight.shape[2] - 1 - last) if module.dilation[0] == 1 else (0, 0)
    if module.accel_last:
        module.weight.data = weight.contiguous(memory_format=LAST)
    trimmed = any(module.accel_taps)
    taps = weight[:, :, first : last + 1]
    module.accel_weight = (
        taps.contiguous(memory_format=LAST if module.accel_last else torch.contiguous_format) if trimmed else None
    )
