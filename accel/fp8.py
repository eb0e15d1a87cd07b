"""Eight-bit floats: which format a GPU multiplies, and quantising to it, in plain torch and in Triton.

e4m3fn reaches 448 and is what NVIDIA (compute capability 8.9 and newer) and gfx950 multiply; gfx942 has e4m3fnuz, which
reaches 240. Being floats, both keep three bits of mantissa at any scale, so a scale has to avoid overflow only: the
largest magnitude becomes the largest number. What is not finite becomes NaN and stays where it was: it takes no part in
the scale. A quantised tensor times its float32 scale is the tensor again, 2.6 % off on normal numbers.

The plain functions are what torch.compile fuses with whatever stands before them, and what the Triton kernels
(`triton_fp8.py`), used outside compiled code, are compared with.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
import torch.nn.functional as F

from accel.contract import Refused

SMALLEST = 1e-12
"""Lower bound of a largest magnitude, so that a row of zeros has a scale."""


def format_for(device: torch.device) -> torch.dtype:
    """The e4m3 format that `device` multiplies."""
    if device.type == "cuda" and torch.version.hip:
        chip = torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
        return torch.float8_e4m3fnuz if chip == "gfx942" else torch.float8_e4m3fn
    return torch.float8_e4m3fn


def quantise_rows(x: torch.Tensor, form: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` (..., n) in `form`, and float32 scales (..., 1): one per row. Plain torch, for compiled code and the CPU."""
    return _scaled(x.float(), form, (-1,))


def quantise_heads(
    x: torch.Tensor, kv_heads: int, form: torch.dtype, width: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` (batch, tokens, heads, head_dim) in `form`, and float32 scales (batch, kv_heads), as attention kernels take
    them: query heads that share a key head share its scale. `width`, where given, is what each head is filled up to
    with zeros. Plain torch."""
    batch, tokens, heads, size = x.shape
    wide = F.pad(x.float(), (0, (width or size) - size))
    quantised, scales = _scaled(wide.view(batch, tokens, kv_heads, heads // kv_heads, -1), form, (1, 3, 4))
    return quantised.view(batch, tokens, heads, -1), scales.view(batch, kv_heads)


def _scaled(wide: torch.Tensor, form: torch.dtype, over: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    most = torch.finfo(form).max
    size = wide.abs()
    finite = size < torch.inf  # false for NaN as well
    scales = torch.where(finite, size, 0.0).amax(over, keepdim=True).clamp_min(SMALLEST) / most
    # a product may end a rounding above the largest number, which the cast would make NaN
    scaled = (wide * (1.0 / scales)).clamp(-most, most)
    return torch.where(finite, scaled, torch.nan).to(form), scales


def kernels(device: torch.device) -> Any:
    """Who quantises eagerly on `device`: `triton_fp8` on a GPU, this module on a CPU. Raises Refused without Triton:
    in eager torch it would take longer than FP8 saves."""
    if device.type == "cpu":
        return sys.modules[__name__]
    try:
        return importlib.import_module("accel.triton_fp8")
    except ImportError as error:
        raise Refused(f"quantising needs triton, which does not import: {error}") from error
