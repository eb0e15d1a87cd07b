"""What really ran in a call, and how much memory it took: by the profiler's, oneDNN's and the system's own account."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

MOST = 3
"""Kernels that are named."""

MATTERS = 0.1
"""Part of the time from which a kernel is named."""

OURS = ("accel::", "ProfilerStep", "cudaDeviceSynchronize", "cudaLaunchKernel", "[memory]", "Activity Buffer Request")


def executed(call: Callable[[], Any], device: str) -> str:
    """The kernels that took most of one call's time, and what oneDNN says it ran: "aten::addmm 97 %
    (brg_matmul:avx512_core_bf16)"."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = device.startswith("cuda")
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    said: list[str] = []
    # the profiler writes two lines on the error stream each time
    with _heard(said), profile(activities=activities) as seen:
        with contextlib.nullcontext() if on_gpu else _onednn_talks():
            call()
        if on_gpu:
            torch.cuda.synchronize()
    rows = [row for row in seen.key_averages() if not row.key.startswith(OURS)]
    if on_gpu:  # an operator's row repeats the time of the kernels that it started
        rows = [row for row in rows if row.device_type.name == "CUDA"] or rows
    times = {row.key: _own_time(row, on_gpu) for row in rows}
    whole = sum(times.values()) or 1.0
    top = sorted(times.items(), key=lambda item: -item[1])[:MOST]
    named = [f"{_short(name)} {time / whole:.0%}" for name, time in top if time / whole >= MATTERS]
    by = implementations(said)
    return ", ".join(named) + (f" ({', '.join(by)})" if by else "")


def _own_time(row: Any, on_gpu: bool) -> float:
    return float(row.self_device_time_total if on_gpu else row.self_cpu_time_total)


def _short(name: str, most: int = 80) -> str:
    """A kernel's name without its template arguments and its return type."""
    plain = name.removeprefix("void ").partition("<")[0].partition("(")[0] or name
    return plain[:most]


@contextlib.contextmanager
def _heard(lines: list[str]) -> Iterator[None]:
    """While entered, what native libraries write on standard output and error goes into `lines`."""
    _flush()
    with tempfile.TemporaryFile() as file:
        kept = {stream: os.dup(stream) for stream in (1, 2)}
        for stream in kept:
            os.dup2(file.fileno(), stream)
        try:
            yield
        finally:
            _flush()
            for stream, real in kept.items():
                os.dup2(real, stream)
                os.close(real)
            file.seek(0)
            lines += file.read().decode("utf-8", "replace").splitlines()


def _onednn_talks() -> Any:
    """While entered, oneDNN writes what it executes on standard output."""
    return torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON)


def _flush() -> None:
    """Native libraries write through C's own buffer."""
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).fflush(None)


def implementations(lines: list[str]) -> list[str]:
    """The products' and convolutions' implementations that oneDNN names, each once."""
    found: dict[str, None] = {}
    for words in (line.split(",") for line in lines if line.startswith("onednn_verbose") and ",exec," in line):
        kind = next((at for at, word in enumerate(words) if word in ("matmul", "inner_product", "convolution")), None)
        if kind is not None and kind + 1 < len(words):
            found[words[kind + 1]] = None
    return list(found)[:MOST]


def memory(call: Callable[[], Any], device: str) -> tuple[Any, int | None]:
    """The call's result, and the most bytes it took beside what was there before; None where that can't be told.

    On a CPU these are resident pages, so memory that the process had already and used again does not show.
    """
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - before
    before = _status("VmRSS") if _begin() else 0
    result = call()
    return result, max(0, _status("VmHWM") - before) if before else None


def _begin() -> bool:
    """Give free memory back and have the kernel count the peak from here; only Linux can."""
    try:
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (OSError, TypeError):
        return False
    return True


def _status(name: str) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0
