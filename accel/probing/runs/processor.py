"""Small runs on the processor: products, attention and conv3d in each dtype, timed beside float32 on one core; and a
block of a transformer on many."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from accel.probing.runs.tools import Result, best_ms, judged, seeded, shown


def torch_build() -> Result:
    import torch

    abilities = {}
    if hasattr(torch.cpu, "get_capabilities"):
        abilities = {key: value for key, value in torch.cpu.get_capabilities().items() if value is True}
    return {
        "ok": True,
        "reason": "imports",
        "version": torch.__version__,
        "cuda": torch.version.cuda or "",
        "hip": torch.version.hip or "",
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "abilities": " ".join(sorted(abilities)),
    }


def linear(dtype_name: str) -> Result:
    """A 512x512x512 linear in `dtype_name`, against float64, timed beside float32."""
    import torch
    import torch.nn.functional as functional

    x, weight = seeded(512, 512), seeded(512, 512)
    dtype = getattr(torch, dtype_name)
    low_x, low_weight = x.to(dtype), weight.to(dtype)
    got = shown(lambda: functional.linear(low_x, low_weight))
    figures = {
        "linear_float32_ms": best_ms(lambda: functional.linear(x, weight)),
        f"linear_{dtype_name}_ms": best_ms(lambda: functional.linear(low_x, low_weight)),
    }
    return judged(got, low_x.double() @ low_weight.double().T, dtype_name, figures=figures)


def bf16() -> Result:
    """bf16 linear, attention and conv3d, each timed beside float32: without the instructions bf16 is 8 to 40 times
    slower."""
    import torch
    import torch.nn.functional as functional

    if hasattr(torch.cpu, "_init_amx"):
        torch.cpu._init_amx()
    result = linear("bfloat16")
    q = seeded(1, 6, 512, 64)
    low_q = q.bfloat16()
    clip, kernel = seeded(1, 16, 3, 66, 66), seeded(16, 16, 3, 3, 3)
    low_clip, low_kernel = clip.bfloat16(), kernel.bfloat16().to(memory_format=torch.channels_last_3d)
    attend = functional.scaled_dot_product_attention
    result["figures"] |= {
        "attention_float32_ms": best_ms(lambda: attend(q, q, q)),
        "attention_bfloat16_ms": best_ms(lambda: attend(low_q, low_q, low_q)),
        "conv3d_float32_ms": best_ms(lambda: direct_conv3d(clip, kernel)),
        "conv3d_bfloat16_ms": best_ms(lambda: functional.conv3d(low_clip, low_kernel)),
    }
    return result


def packed_bf16() -> Result:
    """A bf16 linear with its weight packed once by oneDNN, timed beside the plain one."""
    import torch
    import torch.nn.functional as functional

    x, weight = seeded(512, 512).bfloat16(), seeded(512, 512).bfloat16()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 512)
    run = torch.ops.mkldnn._linear_pointwise
    got = shown(lambda: run(x, packed, None, "none", [], ""))
    figures = {
        "linear_plain_ms": best_ms(lambda: functional.linear(x, weight)),
        "linear_packed_ms": best_ms(lambda: run(x, packed, None, "none", [], "")),
    }
    return judged(got, x.double() @ weight.double().T, "bfloat16", figures=figures)


def int8() -> Result:
    """A linear with int8 weights through oneDNN, and torch's dynamically quantised one timed beside float32."""
    import torch
    import torch.nn.functional as functional

    x, weight = seeded(512, 512), seeded(512, 512)
    want = x.double() @ weight.double().T
    scale = float(weight.abs().max()) / 127
    packed = torch.ops.quantized.linear_prepack(torch.quantize_per_tensor(weight, scale, 0, torch.qint8), None)
    run = torch.ops.quantized.linear_dynamic
    result = judged(run(x, packed, True), want, "int8")
    result["figures"] |= {
        "linear_float32_ms": best_ms(lambda: functional.linear(x, weight)),
        "linear_int8_ms": best_ms(lambda: run(x, packed)),
    }
    if result["ok"] and hasattr(torch.ops.onednn, "qlinear_pointwise"):
        through_onednn = judged(shown(lambda: onednn_int8(x, weight)), want, "int8")
        return result if through_onednn["ok"] else through_onednn
    return result


def onednn_int8(x: Any, weight: Any) -> Any:
    import torch

    x_scale, scales = float(x.abs().max()) / 127, weight.abs().amax(1) / 127
    low_x = ((x / x_scale).round() + 128).to(torch.uint8)
    low_weight = (weight / scales[:, None]).round().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(low_weight, list(x.shape))
    zeros = torch.zeros(len(scales), dtype=torch.int32)
    run = torch.ops.onednn.qlinear_pointwise
    return run(low_x, x_scale, 128, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")


def direct_conv3d(x: Any, weight: Any) -> Any:
    import torch

    return torch.mkldnn_convolution(x, weight, None, [0, 0, 0], [1, 1, 1], [1, 1, 1], 1)


def conv3d() -> Result:
    """oneDNN's float32 conv3d called directly, timed beside torch's own choice for a small decoder's shape."""
    import torch
    import torch.nn.functional as functional

    x, weight = seeded(1, 8, 3, 66, 66), seeded(8, 8, 3, 3, 3)
    fast = weight.to(memory_format=torch.channels_last_3d)
    got = shown(lambda: direct_conv3d(x, fast))
    figures = {
        "conv3d_stock_ms": best_ms(lambda: functional.conv3d(x, weight)),
        "conv3d_direct_ms": best_ms(lambda: direct_conv3d(x, fast)),
    }
    return judged(got, functional.conv3d(x.double(), weight.double()), "float32", figures=figures)


FEWEST = 4
"""Threads that always pay: fewer are not tried."""


def threads() -> Result:
    """A small transformer block with all threads this process has, and with fewer, in powers of two down to FEWEST.

    512 tokens of width 384, six heads of 64: the work of one block of a model with some ten million weights. In bf16
    as well where oneDNN has it. Least milliseconds by the wall clock, counts in turn.
    """
    import torch

    # the other runs have set torch to one
    most = int(os.environ.get("OMP_NUM_THREADS", "1"))
    counts = sorted({most, *(2**power for power in range(10) if FEWEST <= 2**power < most)})
    if len(counts) == 1:
        return {"ok": True, "reason": f"{most} threads always work together"}
    figures: dict[str, float] = {}
    for name in ("float32", "bfloat16")[: 1 + torch.ops.mkldnn._is_mkldnn_bf16_supported()]:
        block = transformer_block(getattr(torch, name))
        for _ in range(3):
            for count in counts:
                torch.set_num_threads(count)
                block()
                key = f"{name}_{count}_ms"
                figures[key] = min(figures.get(key, float("inf")), *(wall_ms(block) for _ in range(4)))
    return {"ok": True, "reason": "ran", "figures": figures}


def transformer_block(dtype: Any) -> Callable[[], Any]:
    import torch.nn.functional as functional

    x, square = seeded(512, 384).to(dtype), seeded(384, 384).to(dtype)
    up, down = seeded(1536, 384).to(dtype), seeded(384, 1536).to(dtype)

    def block() -> Any:
        y = functional.layer_norm(x, (384,))
        q, k, v = (functional.linear(y, square).view(1, 512, 6, 64).transpose(1, 2) for _ in range(3))
        y = x + functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(512, 384)
        return y + functional.linear(functional.gelu(functional.linear(y * 2, up)), down)

    return block


def wall_ms(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return round((time.perf_counter() - start) * 1e3, 4)
