"""Where one call's time on a GPU goes: its kernels by what they do, told from their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("between GPUs, waiting included", ("nccl",)),
    # the first that fits: an attention kernel's name holds its library's words for products too
    ("attention", ("flash", "fmha", "sdpa", "attention")),
    ("linears", ("gemm", "cutlass", "nvjet", "cublas", "xmma", "splitkreduce")),
    ("fused passes", ("tokens_kernel", "rows_kernel", "heads_kernel")),
    ("quantising alone", ("_largest", "_heads", "_rows")),
    ("compiled, with quantising", ("triton_red_fused", "triton_per_fused")),
    ("compiled, without", ("triton_",)),
    ("norms", ("norm",)),
    ("copies", ("memcpy", "memset", "copy", "cat")),
    ("elementwise", ("elementwise", "reduce", "vectorized")),
)


def kind_of(name: str) -> str:
    """What a kernel does. Compiled reductions quantise where their name says that they look for a largest magnitude."""
    low = name.lower()
    kind = next((kind for kind, words in KINDS if any(word in low for word in words)), "other")
    return "compiled, without" if kind == "compiled, with quantising" and "amax" not in low else kind


def split(call: Callable[[], Any], named: int = 12) -> list[dict[str, Any]]:
    """The whole, then each kind, then the longest kernels: `{"op", "calls", "ms"}`, milliseconds on the GPU."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    kernels = [(row.key, row.count, row.self_device_time_total / 1e3) for row in seen.key_averages()]
    kernels = sorted((row for row in kernels if row[2]), key=lambda row: -row[2])
    kinds: dict[str, dict[str, Any]] = {}
    for name, count, ms in kernels:
        entry = kinds.setdefault(kind_of(name), {"op": kind_of(name), "calls": 0, "ms": 0.0})
        entry["calls"] += count
        entry["ms"] += ms
    whole = {"op": "gpu", "calls": sum(row[1] for row in kernels), "ms": sum(row[2] for row in kernels)}
    longest = [{"op": name[:160], "calls": count, "ms": ms} for name, count, ms in kernels[:named]]
    return [whole, *sorted(kinds.values(), key=lambda entry: -entry["ms"]), *longest]
