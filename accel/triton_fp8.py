"""Quantising to FP8 in Triton: each value is read twice and written once, which is all that memory must carry.

Per row the second read comes from the cache; per head it can't, since a head's largest magnitude is known only after
all of its tokens were seen. Import this where there is a GPU (or Triton's interpreter) and Triton alone.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from accel.fp8 import SMALLEST

TOKENS = 64
"""Tokens of one head that one program takes: 64 values of 128 per thread stay in registers, rows are pieces of 256
bytes."""

WIDEST = 8192
"""Columns of a row that one program holds at a time."""


# Annotations of kernels are compiled too: only names inside `tl` may stand there.


@triton.jit
def _finite_size(x: tl.tensor) -> tl.tensor:
    """Magnitudes; 0 for what is not finite."""
    size = tl.abs(x)
    return tl.where(size < float("inf"), size, 0.0)


@triton.jit
def _cast(x: tl.tensor, factor: tl.tensor, most: tl.constexpr, like: tl.tensor) -> tl.tensor:
    scaled = tl.minimum(tl.maximum(x * factor, -most), most)
    scaled = tl.where(tl.abs(x) < float("inf"), scaled, float("nan"))
    return scaled.to(like.dtype.element_ty)


@triton.jit
def _rows(
    x: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    stride: tl.tensor,
    columns: tl.constexpr,
    most: tl.constexpr,
    least: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    largest = tl.zeros((block,), dtype=tl.float32)
    for start in range(0, columns, block):
        inside = start + at < columns
        values = tl.load(x + row * stride + start + at, mask=inside, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, _finite_size(values))
    scale = tl.maximum(tl.max(largest, axis=0), least) / most
    tl.store(scales + row, scale)
    for start in range(0, columns, block):
        inside = start + at < columns
        values = tl.load(x + row * stride + start + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row * columns + start + at, _cast(values, 1.0 / scale, most, out), mask=inside)


@triton.jit
def _largest(
    x: tl.tensor,
    largest: tl.tensor,
    tokens: tl.tensor,
    of_batch: tl.tensor,
    of_token: tl.tensor,
    of_head: tl.tensor,
    kv_heads: tl.tensor,
    group: tl.tensor,
    size: tl.constexpr,
    wide: tl.constexpr,
    block: tl.constexpr,
) -> None:
    head, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    token = tl.program_id(1).to(tl.int64) * block + tl.arange(0, block)
    column = tl.arange(0, wide)
    place = x + batch * of_batch + token[:, None] * of_token + head.to(tl.int64) * of_head + column[None, :]
    inside = (token < tokens)[:, None] & (column < size)[None, :]
    values = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    most = tl.max(tl.max(_finite_size(values), axis=1), axis=0)
    tl.atomic_max(largest + batch * kv_heads + head // group, most)


@triton.jit
def _heads(
    x: tl.tensor,
    out: tl.tensor,
    largest: tl.tensor,
    scales: tl.tensor,
    tokens: tl.tensor,
    of_batch: tl.tensor,
    of_token: tl.tensor,
    of_head: tl.tensor,
    heads: tl.tensor,
    kv_heads: tl.tensor,
    group: tl.tensor,
    size: tl.constexpr,
    width: tl.constexpr,
    wide: tl.constexpr,
    block: tl.constexpr,
    most: tl.constexpr,
    least: tl.constexpr,
) -> None:
    head, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    token = tl.program_id(1).to(tl.int64) * block + tl.arange(0, block)
    column = tl.arange(0, wide)
    place = x + batch * of_batch + token[:, None] * of_token + head.to(tl.int64) * of_head + column[None, :]
    inside = (token < tokens)[:, None] & (column < size)[None, :]
    values = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    shared = batch * kv_heads + head // group
    scale = tl.maximum(tl.load(largest + shared), least) / most
    tl.store(scales + shared, scale)  # every program of the head writes the same number
    target = out + ((batch * tokens + token[:, None]) * heads + head) * width + column[None, :]
    tl.store(target, _cast(values, 1.0 / scale, most, out), mask=(token < tokens)[:, None] & (column < width)[None, :])


def quantise_rows(x: torch.Tensor, form: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """As `fp8.quantise_rows`, for `x` (rows, n) whose last dim is contiguous."""
    rows, columns = x.shape
    out, scales = x.new_empty((rows, columns), dtype=form), x.new_empty((rows, 1), dtype=torch.float32)
    block = min(triton.next_power_of_2(columns), WIDEST)
    with _on(x):
        _rows[(rows,)](x, out, scales, x.stride(0), columns, _most(form), SMALLEST, block, num_warps=8)
    return out, scales


def quantise_heads(
    x: torch.Tensor, kv_heads: int, form: torch.dtype, width: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `fp8.quantise_heads`, for any strides but the last, which is 1."""
    batch, tokens, heads, size = x.shape
    width = width or size
    out = torch.empty((*x.shape[:3], width), dtype=form, device=x.device)
    largest = torch.zeros(batch, kv_heads, dtype=torch.float32, device=x.device)
    scales = torch.empty_like(largest)
    grid = (heads, triton.cdiv(tokens, TOKENS), batch)
    strides, group = x.stride()[:3], heads // kv_heads
    shape = (size, width, triton.next_power_of_2(width), TOKENS)
    with _on(x):
        _largest[grid](
            x, largest, tokens, *strides, kv_heads, group, size, triton.next_power_of_2(size), TOKENS, num_warps=4
        )
        _heads[grid](x, out, largest, scales, tokens, *strides, heads, kv_heads, group, *shape, _most(form), SMALLEST,
                     num_warps=4)  # fmt: skip
    return out, scales


def _most(form: torch.dtype) -> float:
    return float(torch.finfo(form).max)


def _on(x: torch.Tensor) -> Any:
    """Triton launches on the current GPU, whatever its arguments lie on."""
    return torch.cuda.device(x.device if x.is_cuda else -1)
