"""The fused passes' kernels in Triton: every token is read once and written once.

One program holds one token whole, so that norms, largest magnitudes and the final cast need no second read. Import this
where there is a GPU (or Triton's interpreter) and Triton alone; `passes.py` launches them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from accel.triton_fp8 import _cast

# Annotations of kernels are compiled too: only names inside `tl` may stand there.
#
# A program's columns are a power of two, and 5120 of 8192 would leave three eighths of its threads without work. So a
# token is held in two pieces, `first` columns and `rest` more (0 where the first are all): 5120 = 4096 + 1024.


@triton.jit
def _piece(start: tl.tensor, at: tl.tensor, columns: tl.constexpr) -> tl.tensor:
    """Columns `at` of the row at `start`, in float32; past the nearest cache, which belongs to what all rows share."""
    return tl.load(start + at, mask=at < columns, other=0.0, cache_modifier=".cg").to(tl.float32)


@triton.jit
def _shared(start: tl.tensor, at: tl.tensor, columns: tl.constexpr) -> tl.tensor:
    """The same of a row that every token reads."""
    return tl.load(start + at, mask=at < columns, other=0.0).to(tl.float32)


@triton.jit
def _put(
    values: tl.tensor,
    out: tl.tensor,
    at: tl.tensor,
    columns: tl.constexpr,
    factor: tl.tensor,
    most: tl.constexpr,
    saturates: tl.constexpr,
) -> None:
    """Times `factor`, as FP8; NaN stays NaN. saturates: the GPU's own cast keeps to the largest number."""
    small = (values * factor).to(out.dtype.element_ty) if saturates else _cast(values, factor, most, out)
    tl.store(out + at, small, mask=at < columns)


@triton.jit
def _row_scale(largest: tl.tensor, most: tl.constexpr, least: tl.constexpr) -> tl.tensor:
    """Of a row with that largest magnitude, NaN where nothing else is there. An infinity makes the scale infinite and
    itself NaN (infinity times zero), hence every product of the row, as it would be were the other numbers kept."""
    return tl.where(largest > least, largest, least) / most


@triton.jit
def _moved(
    embedding: tl.tensor,
    table: tl.tensor,
    index: tl.constexpr,
    tabled: tl.constexpr,
    at: tl.tensor,
    columns: tl.constexpr,
) -> tl.tensor:
    """Row `index` of a modulation."""
    row = _shared(embedding + index * columns, at, columns)
    if tabled:
        row += _shared(table + index * columns, at, columns)
    return row


@triton.jit
def _added(
    values: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    embedding: tl.tensor,
    table: tl.tensor,
    gate: tl.constexpr,
    tabled: tl.constexpr,
    at: tl.tensor,
    columns: tl.constexpr,
) -> tl.tensor:
    """The sum with y, gated where a gate is named, rounded and stored."""
    more = _piece(y, at, columns)
    if gate >= 0:
        more *= _moved(embedding, table, gate, tabled, at, columns)
    rounded = (values + more).to(total.dtype.element_ty)
    tl.store(total + at, rounded, mask=at < columns)
    return rounded.to(tl.float32)


@triton.jit
def _normal(
    values: tl.tensor,
    factor: tl.tensor,
    embedding: tl.tensor,
    table: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    shift: tl.constexpr,
    scale: tl.constexpr,
    tabled: tl.constexpr,
    affine: tl.constexpr,
    at: tl.tensor,
    columns: tl.constexpr,
) -> tl.tensor:
    """Centred values times `factor`, then the norm's own weight and bias, then the modulation."""
    values *= factor
    if affine:
        values = values * _shared(weight, at, columns) + _shared(bias, at, columns)
    if scale >= 0:
        factors = 1.0 + _moved(embedding, table, scale, tabled, at, columns)
        values = values * factors + _moved(embedding, table, shift, tabled, at, columns)
    return values


@triton.jit
def tokens_kernel(
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
    saturates: tl.constexpr,
    first: tl.constexpr,
    rest: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    embedding += (row // per_embedding) * embedding_stride
    place = row * columns
    at = tl.arange(0, first)
    a = _piece(x + place, at, columns)
    if rest > 0:
        beyond = first + tl.arange(0, rest)
        b = _piece(x + place, beyond, columns)
    if summed:
        a = _added(a, y + place, total + place, embedding, table, gate, tabled, at, columns)
        if rest > 0:
            b = _added(b, y + place, total + place, embedding, table, gate, tabled, beyond, columns)
    if normal:
        sums = tl.sum(a, axis=0)
        if rest > 0:
            sums += tl.sum(b, axis=0)
        mean = sums / columns
        a = tl.where(at < columns, a - mean, 0.0)
        squares = tl.sum(a * a, axis=0)
        if rest > 0:
            b = tl.where(beyond < columns, b - mean, 0.0)
            squares += tl.sum(b * b, axis=0)
        factor = 1.0 / tl.sqrt(squares / columns + eps)
        a = _normal(a, factor, embedding, table, weight, bias, shift, scale, tabled, affine, at, columns)
        if rest > 0:
            b = _normal(b, factor, embedding, table, weight, bias, shift, scale, tabled, affine, beyond, columns)
        if quantised:
            # what lies beyond the columns is a norm's shift, not 0
            size = tl.max(tl.abs(tl.where(at < columns, a, 0.0)), axis=0)
            if rest > 0:
                size = tl.maximum(size, tl.max(tl.abs(tl.where(beyond < columns, b, 0.0)), axis=0))
            to = _row_scale(size, most, least)
            tl.store(scales + row, to)
            _put(a, out + place, at, columns, 1.0 / to, most, saturates)
            if rest > 0:
                _put(b, out + place, beyond, columns, 1.0 / to, most, saturates)
        else:
            tl.store(out + place + at, a.to(out.dtype.element_ty), mask=at < columns)
            if rest > 0:
                tl.store(out + place + beyond, b.to(out.dtype.element_ty), mask=beyond < columns)


@triton.jit
def _activated(values: tl.tensor) -> tl.tensor:
    """gelu, tanh form: x * (1 + tanh(u)) / 2 is x * sigmoid(2 u).

    Arithmetic rules this pass, so: the constants carry 2 u to powers of two, and two products with a root's reciprocal
    are cheaper than a division.
    """
    root = tl.rsqrt(1.0 + tl.exp2(values * (-2.302208198 - 0.1029432397 * (values * values))))
    return values * root * root


@triton.jit
def rows_kernel(
    x: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    columns: tl.constexpr,
    gelu: tl.constexpr,
    most: tl.constexpr,
    least: tl.constexpr,
    saturates: tl.constexpr,
    first: tl.constexpr,
    rest: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    place = row * columns
    at = tl.arange(0, first)
    a = _piece(x + place, at, columns)
    if gelu:
        a = _activated(a)
    size = tl.max(tl.abs(a), axis=0)
    if rest > 0:
        beyond = first + tl.arange(0, rest)
        b = _piece(x + place, beyond, columns)
        if gelu:
            b = _activated(b)
        size = tl.maximum(size, tl.max(tl.abs(b), axis=0))
    scale = _row_scale(size, most, least)
    tl.store(scales + row, scale)
    _put(a, out + place, at, columns, 1.0 / scale, most, saturates)
    if rest > 0:
        _put(b, out + place, beyond, columns, 1.0 / scale, most, saturates)


@triton.jit
def _headed(
    values: tl.tensor,
    factor: tl.tensor,
    weight: tl.tensor,
    cosine: tl.tensor,
    sine: tl.tensor,
    scales: tl.tensor,
    out: tl.tensor,
    like: tl.tensor,
    begin: tl.constexpr,
    count: tl.constexpr,
    columns: tl.constexpr,
    size: tl.constexpr,
    rotated: tl.constexpr,
    quantised: tl.constexpr,
    most: tl.constexpr,
    saturates: tl.constexpr,
) -> None:
    """Columns `begin` to `begin + count` of one token: normed, turned, stored. A table of heads, so that what all heads
    share is read once."""
    at = begin + tl.arange(0, count)
    values = values * factor * _shared(weight, at, columns)
    if not quantised:
        values = values.to(like.dtype.element_ty).to(tl.float32)
    if rotated:
        pair = 2 * tl.arange(0, size // 2)
        cosines, sines = (
            tl.load(cosine + pair).to(tl.float32)[None, :],
            tl.load(sine + 1 + pair).to(tl.float32)[None, :],
        )
        left, right = tl.split(tl.reshape(values, (count // size, size // 2, 2)))
        values = tl.reshape(tl.join(left * cosines - right * sines, left * sines + right * cosines), (count,))
    if quantised:
        head = begin // size + tl.arange(0, count // size)
        factors = 1.0 / tl.load(scales + head, mask=head * size < columns, other=1.0)
        values = tl.reshape(tl.reshape(values, (count // size, size)) * factors[:, None], (count,))
        _put(values, out, at, columns, 1.0, most, saturates)
    else:
        tl.store(out + at, values.to(out.dtype.element_ty), mask=at < columns)


@triton.jit
def heads_kernel(
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
    saturates: tl.constexpr,
    first: tl.constexpr,
    rest: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    turn = (row % tokens) * size
    place = row * columns
    a = _piece(x + place, tl.arange(0, first), columns)
    squares = tl.sum(a * a, axis=0)
    if rest > 0:
        b = _piece(x + place, first + tl.arange(0, rest), columns)
        squares += tl.sum(b * b, axis=0)
    factor = 1.0 / tl.sqrt(squares / columns + eps)
    _headed(a, factor, weight, cosine + turn, sine + turn, scales, out + place, x, 0, first, columns, size, rotated,
            quantised, most, saturates)  # fmt: skip
    if rest > 0:
        _headed(b, factor, weight, cosine + turn, sine + turn, scales, out + place, x, first, rest, columns, size,
                rotated, quantised, most, saturates)  # fmt: skip
