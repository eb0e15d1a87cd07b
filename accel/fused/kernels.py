"""The fused passes in Triton: every token is read once and written once. Same functions as `plain`.

One program holds one token whole, so that norms, largest magnitudes and the final cast need no second read. Import this
where there is a GPU (or Triton's interpreter) and Triton alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from accel.fp8 import SMALLEST
from accel.fused.plain import Modulation, Norm, Rows, head_scales
from accel.triton_fp8 import _cast, _finite_size, _most, _on

NONE = -1
"""For a row of the modulation that a pass does not use."""


# Annotations of kernels are compiled too: only names inside `tl` may stand there.


@triton.jit
def _quantise(
    values: tl.tensor,
    row: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    at: tl.tensor,
    columns: tl.constexpr,
    most: tl.constexpr,
    least: tl.constexpr,
) -> None:
    scale = tl.maximum(tl.max(_finite_size(values), axis=0), least) / most
    tl.store(scales + row, scale)
    tl.store(out + row * columns + at, _cast(values, 1.0 / scale, most, out), mask=at < columns)


@triton.jit
def _moved(
    embedding: tl.tensor,
    table: tl.tensor,
    index: tl.constexpr,
    tabled: tl.constexpr,
    at: tl.tensor,
    columns: tl.constexpr,
) -> tl.tensor:
    """One row of a modulation. These rows are the same for all tokens, so they stay in the nearest cache."""
    row = tl.load(embedding + index * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    if tabled:
        row += tl.load(table + index * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    return row


@triton.jit
def _tokens(
    x: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    embedding: tl.tensor,
    table: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    per_embedding: tl.tensor,
    embedding_stride: tl.tensor,
    columns: tl.constexpr,
    eps: tl.constexpr,
    gate: tl.constexpr,
    shift: tl.constexpr,
    scale: tl.constexpr,
    tabled: tl.constexpr,
    summed: tl.constexpr,
    normal: tl.constexpr,
    affine: tl.constexpr,
    quantised: tl.constexpr,
    most: tl.constexpr,
    least: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < columns
    place = row * columns + at
    moved = embedding + (row // per_embedding) * embedding_stride
    values = tl.load(x + place, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    if summed:
        more = tl.load(y + place, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
        if gate >= 0:
            more *= _moved(moved, table, gate, tabled, at, columns)
        added = (values + more).to(total.dtype.element_ty)
        tl.store(total + place, added, mask=inside)
        values = added.to(tl.float32)
    if normal:
        centred = tl.where(inside, values - tl.sum(values, axis=0) / columns, 0.0)
        values = centred * (1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + eps))
        if affine:
            values *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
            values += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
        if scale >= 0:
            values *= 1.0 + _moved(moved, table, scale, tabled, at, columns)
            values += _moved(moved, table, shift, tabled, at, columns)
        rounded = values.to(x.dtype.element_ty)
        if quantised:
            _quantise(rounded.to(tl.float32), row, out, scales, at, columns, most, least)
        else:
            tl.store(out + place, rounded, mask=inside)


@triton.jit
def _rows(
    x: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    columns: tl.constexpr,
    gelu: tl.constexpr,
    most: tl.constexpr,
    least: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    values = tl.load(x + row * columns + at, mask=at < columns, other=0.0, cache_modifier=".cg").to(tl.float32)
    if gelu:
        # x * (1 + tanh(u)) / 2 is x * sigmoid(2 u): one exponential instead of a tanh
        inner = 1.5957691216057308 * (values + 0.044715 * values * values * values)
        values = (values / (1.0 + tl.exp(-inner))).to(x.dtype.element_ty).to(tl.float32)
    _quantise(values, row, out, scales, at, columns, most, least)


@triton.jit
def _heads(
    x: tl.tensor,
    weight: tl.tensor,
    cosine: tl.tensor,
    sine: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    tokens: tl.tensor,
    columns: tl.constexpr,
    size: tl.constexpr,
    eps: tl.constexpr,
    rotated: tl.constexpr,
    quantised: tl.constexpr,
    most: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    values *= 1.0 / tl.sqrt(tl.sum(values * values, axis=0) / columns + eps)
    values *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    values = values.to(x.dtype.element_ty).to(tl.float32)
    if rotated:
        pair = 2 * tl.arange(0, block // 2)
        turn = (row % tokens) * size + pair % size
        cosines = tl.load(cosine + turn, mask=pair < columns, other=0.0).to(tl.float32)
        sines = tl.load(sine + turn + 1, mask=pair < columns, other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(values, (block // 2, 2)))
        turned = tl.join(first * cosines - second * sines, first * sines + second * cosines)
        values = tl.reshape(turned, (block,)).to(x.dtype.element_ty).to(tl.float32)
    if quantised:
        factor = 1.0 / tl.load(scales + at // size, mask=inside, other=1.0)
        tl.store(out + row * columns + at, _cast(values, factor, most, out), mask=inside)
    else:
        tl.store(out + row * columns + at, values.to(out.dtype.element_ty), mask=inside)


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
    shape = (columns, gelu, _most(form), SMALLEST, triton.next_power_of_2(columns))
    with _on(x):
        _rows[(x.numel() // columns,)](x, *found, *shape, num_warps=_warps(columns))
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
        _heads[(batch * tokens,)](
            x, weight, cosine, sine, x if scales is None else scales, out, tokens, columns, size, eps,
            rotation is not None, form is not None, most, triton.next_power_of_2(columns), num_warps=_warps(columns),
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
        _tokens[(tokens,)](
            x, _or(y, x), _or(total, x), _or(out, x), _or(scales, x), embedding, _or(table, x),
            _or(used.weight, x), _or(used.bias, x), per, embedding.shape[-2] * columns, columns, used.eps, _index(gate),
            _index(used.shift), _index(used.scale), table is not None, y is not None, norm is not None, affine,
            scales is not None, most, SMALLEST, triton.next_power_of_2(columns), num_warps=_warps(columns),
        )  # fmt: skip


def _or(tensor: torch.Tensor | None, otherwise: torch.Tensor) -> torch.Tensor:
    """A pointer is wanted even where a kernel does not read it."""
    return otherwise if tensor is None else tensor


def _index(row: int | None) -> int:
    return NONE if row is None else row


def _rows_like(x: torch.Tensor, form: torch.dtype) -> Rows:
    scales = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    return Rows(torch.empty(x.shape, dtype=form, device=x.device), scales)


def _warps(columns: int) -> int:
    """Some 32 values a thread stay in registers."""
    return min(16, max(1, triton.next_power_of_2(columns) // 1024))
