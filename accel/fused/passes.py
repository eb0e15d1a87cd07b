"""The fused passes on a GPU, by the kernels beside this file. Same functions as `plain`."""

from __future__ import annotations

import os

import torch
import triton

from accel.fp8 import SMALLEST
from accel.fused.kernels import heads_kernel, rows_kernel, tokens_kernel
from accel.fused.plain import Modulation, Norm, Rows, head_scales
from accel.triton_fp8 import _most, _on

NONE = -1
"""For a row of the modulation that a pass does not use."""

SATURATES = not torch.version.hip and os.environ.get("TRITON_INTERPRET") != "1"
"""NVIDIA's cast to FP8 keeps to the largest number and keeps NaN, so nobody has to look at each value before it."""


def add(x: torch.Tensor, y: torch.Tensor, modulation: Modulation, gate: int | None) -> torch.Tensor:
    """As `plain.add`."""
    total = torch.empty_like(x)
    _run(x, y, gate, None, modulation, total, None, None)
    return total


def normed(x: torch.Tensor, norm: Norm, modulation: Modulation) -> torch.Tensor:
    """As `plain.normed`."""
    out = torch.empty_like(x)
    _run(x, None, None, norm, modulation, None, out, None)
    return out


def normed_rows(x: torch.Tensor, norm: Norm, modulation: Modulation, form: torch.dtype) -> Rows:
    """As `plain.normed_rows`."""
    found = _rows_like(x, form)
    _run(x, None, None, norm, modulation, None, *found)
    return found


def add_normed_rows(
    x: torch.Tensor, y: torch.Tensor, gate: int | None, norm: Norm, modulation: Modulation, form: torch.dtype
) -> tuple[torch.Tensor, Rows]:
    """As `plain.add_normed_rows`."""
    total, found = torch.empty_like(x), _rows_like(x, form)
    _run(x, y, gate, norm, modulation, total, *found)
    return total, found


def gelu_rows(x: torch.Tensor, form: torch.dtype) -> Rows:
    """As `plain.gelu_rows`."""
    return _quantised(x, form, True)


def rows(x: torch.Tensor, form: torch.dtype) -> Rows:
    """As `plain.rows`."""
    return _quantised(x, form, False)


def _quantised(x: torch.Tensor, form: torch.dtype, gelu: bool) -> Rows:
    x, found = x.contiguous(), _rows_like(x, form)
    columns = x.shape[-1]
    shape = (columns, gelu, _most(form), SMALLEST, SATURATES, *_pieces(columns))
    with _on(x):
        rows_kernel[(x.numel() // columns,)](x, *found, *shape, num_warps=_warps(columns))
    return found


def heads(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    rotation: tuple[torch.Tensor, torch.Tensor] | None,
    count: int,
    form: torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As `plain.heads`."""
    x = x.contiguous()
    batch, tokens, columns = x.shape
    size = columns // count
    out = torch.empty((batch, tokens, count, size), dtype=form or x.dtype, device=x.device)
    scales = None if form is None else head_scales(weight, count, form)
    cosine, sine = (part.contiguous() for part in rotation) if rotation is not None else (x, x)
    most = 0.0 if form is None else _most(form)
    with _on(x):
        heads_kernel[(batch * tokens,)](
            x, weight, cosine, sine, x if scales is None else scales, out, tokens, columns, size, eps,
            rotation is not None, form is not None, most, SATURATES, *_pieces(columns), num_warps=_warps(columns),
        )  # fmt: skip
    return out, None if scales is None else scales.expand(batch, -1).contiguous()


def _run(
    x: torch.Tensor,
    y: torch.Tensor | None,
    gate: int | None,
    norm: Norm | None,
    modulation: Modulation,
    total: torch.Tensor | None,
    out: torch.Tensor | None,
    scales: torch.Tensor | None,
) -> None:
    """The one kernel behind sums and norms. `total` and `out` are contiguous; so become x, y and the modulation."""
    x, y = x.contiguous(), None if y is None else y.contiguous()
    embedding, table = modulation.embedding.contiguous(), modulation.table
    columns = x.shape[-1]
    tokens = x.numel() // columns
    per = 1 if embedding.dim() == 4 else tokens // embedding.shape[0]
    used = norm or Norm(0.0)
    affine = used.weight is not None and used.bias is not None
    most = _most(out.dtype) if out is not None and scales is not None else 0.0
    with _on(x):
        tokens_kernel[(tokens,)](
            x, _or(y, x), _or(total, x), _or(out, x), _or(scales, x), embedding, _or(table, x),
            _or(used.weight, x), _or(used.bias, x), per, embedding.shape[-2] * columns, columns, used.eps, _index(gate),
            _index(used.shift), _index(used.scale), table is not None, y is not None, norm is not None, affine,
            scales is not None, most, SMALLEST, SATURATES, *_pieces(columns), num_warps=_warps(columns),
        )  # fmt: skip


def _or(tensor: torch.Tensor | None, otherwise: torch.Tensor) -> torch.Tensor:
    """A pointer is wanted even where a kernel does not read it."""
    return otherwise if tensor is None else tensor


def _index(row: int | None) -> int:
    return NONE if row is None else row


def _rows_like(x: torch.Tensor, form: torch.dtype) -> Rows:
    scales = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    return Rows(torch.empty(x.shape, dtype=form, device=x.device), scales)


def _pieces(columns: int) -> tuple[int, int]:
    """The largest power of two in `columns`, and the least that holds the rest of them, 0 without one."""
    first = 1 << (columns.bit_length() - 1)
    rest = columns - first
    return first, triton.next_power_of_2(rest) if rest else 0


def _warps(columns: int) -> int:
    """Up to 128 threads a token. On an H200, tokens of 5120 took 1.1 times as long with twice as many, which wait for
    each other's sums; tokens of 13824 took 1.1 times as long with twice, 1.3 times with four times as many."""
    return min(4, max(1, triton.next_power_of_2(columns) // 2048))
