"""Attention in every head size, length and form that models hand over, against float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from accel.checking.line import Line, line_for, random, relative
from accel.contract import AttentionCall, attend
from accel.ops import ATTENTION, AttentionSlot, attention
from accel.report import Tally

BATCHES = (1, 3)
CROSS_TOKENS = 77


def attention_lines(backend: Any, tokens: Sequence[int], heads: Sequence[int]) -> Iterator[Line]:
    for name in backend.dtypes:
        dtype = getattr(torch, name)
        supported = [size for size in heads if size in getattr(backend, "head_sizes", heads)]
        unsupported = [size for size in heads if size not in supported]
        yield _attend_line(backend, dtype, "self attention", supported, tokens, None)
        yield _attend_line(backend, dtype, "cross attention", supported, tokens, CROSS_TOKENS)
        if unsupported:
            yield _attend_line(backend, dtype, "unsupported head sizes", unsupported, tokens, CROSS_TOKENS)
        yield _strided_line(backend, dtype)
        yield _masked_line(backend, dtype)
        yield _steep_line(backend, dtype)
        yield _nan_attention_line(backend, dtype)


def _run(
    backend: Any, line: Line, case: str, call: AttentionCall, want: torch.Tensor, serve: bool | None = True
) -> torch.Tensor:
    """The call through the op, compared and counted. `serve`: whether it must be served, None when either is right."""
    tally = Tally("check", "attention", backend.name)
    slot = ATTENTION.add(AttentionSlot(backend, tally))
    try:
        got = attention(call.query, call.key, call.value, call.mask, call.scale, call.causal, slot)
    finally:
        ATTENTION.remove(slot)
    line.add(case, relative(got, want), bool(tally.served_calls))
    line.expect(tally.calls == 1, f"{case}: counted {tally.calls} calls")
    if serve is not None:
        line.expect(
            bool(tally.served_calls) == serve, f"{case}: {'not served' if serve else 'served'}: {tally.summary()}"
        )
    return got


def _exact(call: AttentionCall) -> torch.Tensor:
    mask = call.mask if call.mask is None or call.mask.dtype == torch.bool else call.mask.double()
    query, key, value = call.query.double(), call.key.double(), call.value.double()
    return attend(AttentionCall(query, key, value, mask, call.scale, call.causal))


def _attend_line(
    backend: Any, dtype: torch.dtype, group: str, sizes: Sequence[int], tokens: Sequence[int], kv: int | None
) -> Line:
    line, serve = line_for(backend, dtype, group), "unsupported" not in group
    for size in sizes:
        for count in tokens:
            for batch in BATCHES:
                q = random(batch, count, 2, size, dtype=dtype, seed=1)
                k, v = (random(batch, kv or count, 2, size, dtype=dtype, seed=seed) for seed in (2, 3))
                call = AttentionCall(q, k, v, scale=0.2 if count == 17 else None)
                _run(
                    backend,
                    line,
                    f"{batch} x {count} tokens, {kv or count} keys, 2 x {size}",
                    call,
                    _exact(call),
                    serve,
                )
    return line


def _strided_line(backend: Any, dtype: torch.dtype) -> Line:
    """Inputs as models may hand them over: transposed, sliced out of a fused projection, expanded, with a stride
    inside.
    """
    line, (b, s, h, d) = line_for(backend, dtype, "strided inputs"), (3, 33, 2, 64)
    fused = random(b, s, 3 * h * d, dtype=dtype).unflatten(-1, (3, h, d))
    turned = random(b, h, s, d, dtype=dtype, seed=1).transpose(1, 2)
    inner = random(b, s, h, 2 * d, dtype=dtype, seed=2)[..., ::2]
    one = random(1, s, h, d, dtype=dtype, seed=3).expand(b, s, h, d)
    forms = {"fused": fused[:, :, 0], "transposed": turned, "inner stride": inner, "expanded": one}
    for name, form in forms.items():
        for other in (form, fused[:, :, 1]):
            call = AttentionCall(form, other, fused[:, :, 2])
            _run(backend, line, name, call, _exact(call))
    return line


def _masked_line(backend: Any, dtype: torch.dtype) -> Line:
    """A mask must be obeyed or refused, never dropped."""
    line, (b, s, h, d) = line_for(backend, dtype, "masks"), (3, 17, 2, 64)
    q, k, v = (random(b, s, h, d, dtype=dtype, seed=seed) for seed in (1, 2, 3))
    row = torch.ones(b, s, dtype=torch.bool)
    row[0, 13:], row[1, ::2] = False, False
    hiding = torch.where(row, 0.0, -10000.0).to(dtype)
    triangle = torch.ones(s, s, dtype=torch.bool).tril().expand(b, 1, s, s)
    masks = {
        "a row per item": row,
        "keys hidden": row[:, None, None],
        "keys at -10000": hiding[:, None, None].expand(b, h, 1, s),
        "a mask per query": triangle,
        "weights": random(b, 1, 1, s, dtype=dtype, seed=4),
    }
    for name, mask in masks.items():
        call = AttentionCall(q, k, v, mask)
        _run(backend, line, name, call, _exact(call), True if backend.reference else None)
    for tokens in (s, 1100):
        q, k, v = (random(b, tokens, h, d, dtype=dtype, seed=seed) for seed in (1, 2, 3))
        causal = AttentionCall(q, k, v, causal=True)
        _run(backend, line, f"causal, {tokens} tokens", causal, _exact(causal), True if backend.reference else None)
    return line


def _steep_line(backend: Any, dtype: torch.dtype) -> Line:
    """Scores that lie far apart, the largest first or last: kernels go through the keys in blocks and rescale."""
    line, (b, s, h, d) = line_for(backend, dtype, "steep scores"), (1, 1700, 2, 64)
    line.limit *= 5  # a score of 100 carries its own rounding, 1e-5 in fp32, into the exponent
    q, k, v = (random(b, s, h, d, dtype=dtype, seed=seed) for seed in (1, 2, 3))
    q[..., 0] = 30.0
    for name, part in (("first", slice(0, 100)), ("in the middle", slice(800, 900)), ("last", slice(1600, 1700))):
        for height in (20.0, 30.0):
            steep = k.clone()
            steep[:, part, :, 0] = height
            call = AttentionCall(q, steep, v)
            _run(backend, line, f"scores of {30 * height / 8:.0f} {name}", call, _exact(call), None)
    return line


def _nan_attention_line(backend: Any, dtype: torch.dtype) -> Line:
    """One NaN query must spoil its own row alone, one NaN key its own item of the batch alone."""
    line, (b, h, d) = line_for(backend, dtype, "one NaN row"), (3, 2, 64)
    for tokens, keys in ((17, 17), (33, 801), (257, 800)):
        q = random(b, tokens, h, d, dtype=dtype, seed=1)
        k, v = (random(b, keys, h, d, dtype=dtype, seed=seed) for seed in (2, 3))
        want = _exact(AttentionCall(q, k, v))
        q_nan, k_nan = q.clone(), k.clone()
        q_nan[0, 5], k_nan[0, 5] = float("nan"), float("nan")
        for name, call in (("query", AttentionCall(q_nan, k, v)), ("key", AttentionCall(q, k_nan, v))):
            tally = Tally("check", "attention", backend.name)
            slot = ATTENTION.add(AttentionSlot(backend, tally))
            got = attention(call.query, call.key, call.value, None, None, False, slot)
            ATTENTION.remove(slot)
            clean = torch.ones(b, tokens, dtype=torch.bool)
            clean[0, 5 if name == "query" else slice(None)] = False
            line.add(f"a NaN {name}, {keys} keys", relative(got[clean], want[clean]), bool(tally.served_calls))
    return line
