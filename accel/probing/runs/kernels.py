"""Small runs of accel's own backends on a GPU: the very code that a clip runs, against float64 on the CPU."""

from __future__ import annotations

from typing import Any

from accel.probing.runs.tools import Result, judged, seeded

KEYS, HEADS = 1100, 8
"""More keys than FP8 attention asks for, and no multiple of a tile; as many heads as AMD's MLA kernel asks for."""


def attention(name: str, tolerance: str) -> Result:
    """The attention backend `name`: two items, as many query as key heads, a scale of its own."""
    import torch.nn.functional as functional

    from accel.backends import backend
    from accel.contract import AttentionCall

    low = [seeded(2, KEYS, HEADS, 128).roll(shift, 1).bfloat16() for shift in (0, 1, 2)]
    chosen: Any = backend("attention", name)

    def run(device: Any) -> Any:
        query, key, value = (item.to(device) for item in low)
        return chosen.run(AttentionCall(query, key, value, scale=0.1))

    got = _served(run)
    wide_query, wide_key, wide_value = (item.double().transpose(1, 2) for item in low)
    want = functional.scaled_dot_product_attention(wide_query, wide_key, wide_value, scale=0.1)
    return judged(got, want.transpose(1, 2), tolerance)


def fp8_linear() -> Result:
    """The FP8 linear, quantising by Triton, with a bias and a row of zeros."""
    import torch

    from accel.backends import backend

    chosen: Any = backend("linear", "fp8")
    x, weight, bias = seeded(300, 512).bfloat16(), seeded(512, 512).bfloat16(), seeded(512).bfloat16()
    x[7] = 0
    # ROCm reports gfx942 as (9, 4), gfx950 as (9, 5)
    fitting = [device for device in gpus() if torch.cuda.get_device_capability(device) >= (8, 9)]
    if not fitting:
        raise LookupError("FP8 products need a GPU of compute capability 8.9 or newer, gfx942 or gfx950")
    got = chosen.pack(weight.to(fitting[0])).run(x.to(fitting[0]), bias.to(fitting[0]))
    return judged(got, x.double() @ weight.double().T + bias.double(), "fp8_linear")


def gpus() -> list[Any]:
    """torch's devices for all GPUs it can use."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device(f"cuda:{index}") for index in range(count)]


def _served(run: Any) -> Any:
    """`run(device)` on the first GPU that the backend does not refuse."""
    from accel.contract import Refused

    reason = "there is no GPU that torch can use"
    for device in gpus():
        try:
            return run(device)
        except Refused as refusal:
            reason = str(refusal)
    raise LookupError(reason)
