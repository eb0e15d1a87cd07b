"""Packed linears of every shape, with and without bias, and back to the weight bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from accel.checking.line import Line, line_for, random, relative
from accel.linears import pack_linears
from accel.report import Tally

BATCHES = (1, 3)


def linear_lines(backend: Any, tokens: Sequence[int], inner: Sequence[int], outer: Sequence[int]) -> Iterator[Line]:
    for name in backend.dtypes:
        dtype = getattr(torch, name)
        yield _linear_line(backend, dtype, [k for k in inner if k % 32 == 0], outer, tokens, "linears")
        yield _linear_line(backend, dtype, [k for k in inner if k % 32], outer, tokens, "linears, inner % 32 != 0")


def _linear_line(
    backend: Any, dtype: torch.dtype, inner: Sequence[int], outer: Sequence[int], tokens: Sequence[int], group: str
) -> Line:
    """Each weight with and without bias, batches, a strided input, a NaN row; then unpacked, bit for bit."""
    line = line_for(backend, dtype, group)
    for ins in inner:
        for outs in outer:
            torch.manual_seed(ins * outs)
            linear: Any = torch.nn.Linear(ins, outs, bias=outs % 16 == 0).to(dtype).requires_grad_(False)
            model = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList([linear])})
            before = linear.weight.clone()
            tally = Tally("check", "linear", backend.name)
            packed = pack_linears(model, backend, tally, None)
            if not packed.packed:
                continue
            for count in tokens:
                for batch in BATCHES:
                    _one_linear(line, linear, before, batch, count, tally)
            packed.undo()
            line.expect(torch.equal(linear.weight, before), f"{ins} -> {outs}: not restored bit for bit")
    return line


def _one_linear(line: Line, linear: Any, weight: torch.Tensor, batch: int, count: int, tally: Tally) -> None:
    dtype, ins = weight.dtype, weight.shape[1]
    bias = None if linear.bias is None else linear.bias.double()
    inputs = (
        random(batch, ins, count, dtype=dtype).transpose(1, 2)
        if count == 17
        else random(batch, count, ins, dtype=dtype)
    )
    case = f"{batch} x {count}: {ins} -> {weight.shape[0]}"
    want = F.linear(inputs.double(), weight.double(), bias)
    served = tally.served_calls
    line.add(case, relative(linear(inputs), want), tally.served_calls > served)
    line.expect(tally.served_calls == served + 1, f"{case}: not served: {tally.summary()}")
    if count > 1:
        dirty = inputs.clone()
        dirty[0, count // 2] = float("nan")
        got, clean = linear(dirty), torch.ones(batch, count, dtype=torch.bool)
        clean[0, count // 2] = False
        line.add(case + ", one NaN row", relative(got[clean], want[clean]), tally.served_calls > served + 1)
