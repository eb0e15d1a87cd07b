"""The fused passes' kernels in Triton: every token is read once and written once.

One program holds one token whole, so that norms, largest magnitudes and the final cast need no second read. Import this
where there is a GPU (or Triton's interpreter) and Triton alone; `passes.py` launches them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from accel.triton_fp8 import _cast, _finite_size

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
def _largest(values: tl.tensor) -> tl.tensor:
    """The largest magnitude of what is finite."""
    return tl.max(_finite_size(values), axis=0)


@triton.jit
def _put(
    values: tl.tensor, out: tl.tensor, at: tl.tensor, columns: tl.constexpr, factor: tl.tensor, most: tl.constexpr
) -> None:
    """Times `factor`, as FP8; what is not finite becomes NaN."""
    tl.store(out + at, _cast(values, factor, most, out), mask=at < columns)


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
    like: tl.tensor,
    at: tl.tensor,
    columns: tl.constexpr,
) -> tl.tensor:
    """Centred values times `factor`, then the norm's own weight and bias, then the modulation; rounded."""
    values *= factor
    if affine:
        values = values * _shared(weight, at, columns) + _shared(bias, at, columns)
    if scale >= 0:
        factors = 1.0 + _moved(embedding, table, scale, tabled, at, columns)
        values = values * factors + _moved(embedding, table, shift, tabled, at, columns)
    return values.to(like.dtype.element_ty).to(tl.float32)


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
        a = _normal(a, factor, embedding, table, weight, bias, shift, scale, tabled, affine, x, at, columns)
        if rest > 0:
            b = _normal(b, factor, embedding, table, weight, bias, shift, scale, tabled, affine, x, beyond, columns)
        if quantised:
            # what lies beyond the columns is a norm's shift, not 0
            size = _largest(tl.where(at < columns, a, 0.0))
            if rest > 0:
                size = tl.maximum(size, _largest(tl.where(beyond < columns, b, 0.0)))
            to = tl.maximum(size, least) / most
            tl.store(scales + row, to)
            _put(a, out + place, at, columns, 1.0 / to, most)
            if rest > 0:
                _put(b, out + place, beyond, columns, 1.0 / to, most)
        else:
            tl.store(out + place + at, a.to(out.dtype.element_ty), mask=at < columns)
            if rest > 0:
                tl.store(out + place + beyond, b.to(out.dtype.element_ty), mask=beyond < columns)


@triton.jit
def _activated(values: tl.tensor, like: tl.tensor) -> tl.tensor:
    """gelu, tanh form: x * (1 + tanh(u)) / 2 is x * sigmoid(2 u), one exponential instead of a tanh; rounded."""
    inner = 1.5957691216057308 * (values + 0.044715 * values * values * values)
    return (values / (1.0 + tl.exp(-inner))).to(like.dtype.element_ty).to(tl.float32)


@triton.jit
def rows_kernel(
    x: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    columns: tl.constexpr,
    gelu: tl.constexpr,
    most: tl.constexpr,
    least: tl.constexpr,
    first: tl.constexpr,
    rest: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    place = row * columns
    at = tl.arange(0, first)
    a = _piece(x + place, at, columns)
    if gelu:
        a = _activated(a, x)
    size = _largest(a)
    if rest > 0:
        beyond = first + tl.arange(0, rest)
        b = _piece(x + place, beyond, columns)
        if gelu:
            b = _activated(b, x)
        size = tl.maximum(size, _largest(b))
    scale = tl.maximum(size, least) / most
    tl.store(scales + row, scale)
    _put(a, out + place, at, columns, 1.0 / scale, most)
    if rest > 0:
        _put(b, out + place, beyond, columns, 1.0 / scale, most)


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
) -> None:
    """Columns `begin` to `begin + count` of one token: normed, turned, stored."""
    at = begin + tl.arange(0, count)
    values = (values * factor * _shared(weight, at, columns)).to(like.dtype.element_ty).to(tl.float32)
    if rotated:
        pair = begin + 2 * tl.arange(0, count // 2)
        cosines = _shared(cosine, pair % size, size)
        sines = _shared(sine + 1, pair % size, size)
        left, right = tl.split(tl.reshape(values, (count // 2, 2)))
        turned = tl.join(left * cosines - right * sines, left * sines + right * cosines)
        values = tl.reshape(turned, (count,)).to(like.dtype.element_ty).to(tl.float32)
    if quantised:
        scale = tl.load(scales + at // size, mask=at < columns, other=1.0)
        _put(values, out, at, columns, 1.0 / scale, most)
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
            quantised, most)  # fmt: skip
    if rest > 0:
        _headed(b, factor, weight, cosine + turn, sine + turn, scales, out + place, x, first, rest, columns, size,
                rotated, quantised, most)  # fmt: skip
