"""What this machine multiplies at most, per dtype: square products of growing size, the fastest run of all of them.

The figure is what libraries reach here, not what the chip's sheet says: the raw tile peak of 16 vCPU of Emerald Rapids
is 16.4 TFLOP/s in bf16. int8 counts a multiplication and an addition as two operations, as the others do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from accel.measuring.timing import ShouldStop, Stopped
from accel.readouts.results import Peak

LADDER = {"cpu": (256, 512, 1024, 2048, 4096, 8192), "cuda": (2048, 4096, 8192, 16384), "mps": (1024, 2048, 4096)}
REPEATS, LONGEST = 5, 0.1
"""Runs of each product at least; quick ones are repeated for this many seconds, since a moment of rest helps them."""

Ways = Iterator[tuple[str, Callable[[], Any]]]
"""How a product is computed, and the call that does it."""


def measure(
    device: str,
    dtypes: Iterable[str],
    seconds: float,
    should_stop: ShouldStop = lambda: False,
    ways: Callable[[str, str, int], Ways] | None = None,
) -> tuple[tuple[Peak, ...], tuple[str, ...]]:
    """Peaks of the dtypes that this device can multiply in, about `seconds` seconds each, and why others have none.

    dtypes: torch's names, "int8", and "float8" for e4m3. Raises Stopped.
    """
    peaks, notes = [], []
    for dtype in dtypes:
        try:
            peaks.append(_climb(device, dtype, seconds, should_stop, ways or products))
        except Stopped:
            raise
        except Exception as error:  # a product that torch does not have here
            notes.append(f"no peak in {dtype}: {' '.join(str(error).split())[:150]}")
    return tuple(peaks), tuple(notes)


def _climb(
    device: str, dtype: str, seconds: float, should_stop: ShouldStop, ways: Callable[[str, str, int], Ways]
) -> Peak:
    """Larger products as long as the next one fits into the time: it takes eight times as long."""
    best, end = Peak(device, dtype, 0.0, ""), time.perf_counter() + seconds
    for size in LADDER[device.partition(":")[0]]:
        slowest = 0.0
        for how, call in ways(device, dtype, size):
            took = _fastest(call, device, end, should_stop)
            slowest = max(slowest, took)
            speed = 2 * size**3 / took / 1e12
            if speed > best.teraflops:
                best = Peak(device, dtype, speed, f"{size} x {size} x {size} by {how}")
        if time.perf_counter() + slowest * 8 * 2 > end:
            break
    return best


def _fastest(call: Callable[[], Any], device: str, end: float, should_stop: ShouldStop) -> float:
    """Least seconds of some runs after a first one that is not counted."""
    call()
    synchronize(device)
    times: list[float] = []
    while not times or (time.perf_counter() < end and (len(times) < REPEATS or sum(times) < LONGEST)):
        if should_stop():
            raise Stopped
        start = time.perf_counter()
        call()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)


def synchronize(device: str) -> None:
    """Returns when the device has done all that was asked of it."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()


def products(device: str, dtype: str, size: int) -> Ways:
    """Every way in which a square product of this dtype is computed here. Raises what torch raises for none."""
    if dtype == "int8":
        yield from _int8(device, size)
    elif dtype == "float8":
        yield from _float8(device, size)
    else:
        kind = getattr(torch, dtype)
        a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
        out = torch.empty_like(a)
        yield "torch.mm", lambda: torch.mm(a, b, out=out)
        if device == "cpu":
            yield "F.linear", lambda: F.linear(a, b)
        if device == "cpu" and dtype == "bfloat16" and torch.ops.mkldnn._is_mkldnn_bf16_supported():
            packed = torch.ops.mkldnn._reorder_linear_weight(b, size)
            yield "a packed oneDNN linear", lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], "")


def _int8(device: str, size: int) -> Ways:
    a, b = (torch.randint(-127, 128, (size, size), dtype=torch.int8, device=device) for _ in range(2))
    yield "torch._int_mm", lambda: torch._int_mm(a, b)
    if device == "cpu" and hasattr(torch.ops.onednn, "qlinear_pointwise"):
        packed = torch.ops.onednn.qlinear_prepack(b, [size, size])
        unsigned = a.view(torch.uint8)
        scales, zeros = torch.ones(size), torch.zeros(size, dtype=torch.int32)
        run = torch.ops.onednn.qlinear_pointwise
        yield (
            "oneDNN's int8 linear",
            lambda: run(unsigned, 1.0, 128, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""),
        )


def _float8(device: str, size: int) -> Ways:
    if not device.startswith("cuda"):
        raise RuntimeError("FP8 products are for GPUs")
    a, b = (torch.randn(size, size, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    rows, columns = torch.ones(size, 1, device=device), torch.ones(1, size, device=device)
    one = torch.ones((), device=device)
    yield (
        "torch._scaled_mm, one scale per row",
        lambda: torch._scaled_mm(a, b.t(), rows, columns, out_dtype=torch.bfloat16, use_fast_accum=True),
    )
    yield (
        "torch._scaled_mm, one scale",
        lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True),
    )
