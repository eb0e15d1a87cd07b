"""Small runs of accel's own backends on a GPU: the very code that a clip runs, against float64 on the CPU."""

from __future__ import annotations

from typing import Any

from accel.probing.runs.tools import Result, judged, seeded

KEYS = 1100
"""More than the FP8 attention asks for, and no multiple of a tile."""


def attention(name: str, tolerance: str) -> Result:
    """The attention backend `name`: two items, as many query as key heads, a scale of its own."""
    import torch
    import torch.nn.functional as functional

    from accel.backends import backend
    from accel.backends.runtime import AttentionCall

    device = _gpu(torch, "FlashAttention-3 needs a GPU of compute capability 9.0", lambda found: found == (9, 0))
    low = [seeded(2, KEYS, 2, 128).roll(shift, 1).bfloat16() for shift in (0, 1, 2)]
    query, key, value = (item.to(device) for item in low)
    got = _served(backend("attention", name), AttentionCall(query, key, value, scale=0.1))
    wide_query, wide_key, wide_value = (item.double().transpose(1, 2) for item in low)
    want = functional.scaled_dot_product_attention(wide_query, wide_key, wide_value, scale=0.1)
    return judged(got, want.transpose(1, 2), tolerance)


def fp8_linear() -> Result:
    """The FP8 linear, quantising by Triton, with a bias and a row of zeros."""
    import torch

    from accel.backends import backend

    wanted = "FP8 products need a GPU of compute capability 8.9 or newer, gfx942 or gfx950"
    device = _gpu(torch, wanted, lambda found: found >= (8, 9))
    chosen: Any = backend("linear", "fp8")
    x, weight, bias = seeded(300, 512).bfloat16(), seeded(512, 512).bfloat16(), seeded(512).bfloat16()
    x[7] = 0
    got = chosen.pack(weight.to(device)).run(x.to(device), bias.to(device))
    return judged(got, x.double() @ weight.double().T + bias.double(), "fp8_linear")


def _gpu(torch: Any, otherwise: str, fits: Any) -> Any:
    """The first GPU whose capability fits. ROCm reports gfx942 as (9, 4), gfx950 as (9, 5)."""
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if fits(torch.cuda.get_device_capability(index)):
                return torch.device(f"cuda:{index}")
    raise LookupError(otherwise)


def _served(chosen: Any, call: Any) -> Any:
    from accel.backends.runtime import Refused

    try:
        return chosen.run(call)
    except Refused as refusal:
        raise LookupError(str(refusal)) from refusal
