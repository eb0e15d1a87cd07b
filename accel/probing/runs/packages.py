"""Small runs of the kernel packages: does it import, which operators does it register, is each of them right."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import Any

from accel.probing.runs.tools import Result, best_ms, judged, seeded


def imports(name: str) -> Result:
    module = importlib.import_module(name)
    return {"ok": True, "reason": "imports", "version": str(getattr(module, "__version__", ""))}


def sgl_kernel() -> Result:
    import torch

    for name in ("sgl_kernel", "sgl_kernel_cpu"):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    names = {
        name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if "sgl_kernel::" in name
    }
    if not names:
        return {"ok": False, "reason": "imports, but registers no operator", "ops": []}
    return {"ok": True, "reason": f"imports and registers {len(names)} operators", "ops": sorted(names)}


def sgl_ops(*needed: str) -> Any:
    """The sgl_kernel operators, or a LookupError naming what this build lacks."""
    import torch

    found = sgl_kernel()
    missing = [name for name in needed if name not in found["ops"]]
    if missing:
        raise LookupError(f"this build of sgl_kernel does not register {', '.join(missing)}")
    return torch.ops.sgl_kernel


def sgl_packed_linear() -> Result:
    import torch
    import torch.nn.functional as functional

    ops = sgl_ops("convert_weight_packed", "weight_packed_linear")
    x, weight, bias = seeded(256, 512).bfloat16(), seeded(512, 512).bfloat16(), seeded(512)
    packed = ops.convert_weight_packed(weight)

    def run() -> Any:
        return ops.weight_packed_linear(x, packed, bias, True)

    figures = {
        "linear_plain_ms": best_ms(lambda: functional.linear(x, weight, bias.bfloat16())),
        "linear_packed_ms": best_ms(run),
    }
    return judged(run(), x.double() @ weight.double().T + bias.to(torch.float64), "bfloat16", figures=figures)


def sgl_int8_linear() -> Result:
    import torch
    import torch.nn.functional as functional

    ops = sgl_ops("convert_weight_packed", "int8_scaled_mm_with_quant")
    x, weight, bias = seeded(256, 512).bfloat16(), seeded(512, 512), seeded(512)
    scales = weight.abs().amax(1) / 127
    packed = ops.convert_weight_packed((weight / scales[:, None]).round().to(torch.int8))
    low = weight.bfloat16()

    def run() -> Any:
        return ops.int8_scaled_mm_with_quant(x, packed, scales, bias, torch.bfloat16, True)

    figures = {"linear_plain_ms": best_ms(lambda: functional.linear(x, low)), "linear_int8_ms": best_ms(run)}
    return judged(run(), x.double() @ weight.double().T + bias.double(), "int8", figures=figures)


def sgl_attention() -> Result:
    import torch
    import torch.nn.functional as functional

    op = sgl_ops("flash_attn_varlen_func").flash_attn_varlen_func
    tokens, heads, size = 256, 4, 64
    q, k, v = (seeded(tokens, heads, size).roll(shift, 0).bfloat16() for shift in (0, 1, 2))
    lengths = torch.tensor([0, tokens], dtype=torch.int32)
    arguments = [q, k, v, lengths, lengths, tokens, tokens, False]
    swapped = [item.transpose(0, 1).unsqueeze(0) for item in (q, k, v)]
    want = functional.scaled_dot_product_attention(*(item.double() for item in swapped))[0].transpose(0, 1)
    attend = functional.scaled_dot_product_attention
    figures = {"attention_plain_ms": best_ms(lambda: attend(*swapped)), "attention_ms": best_ms(lambda: op(*arguments))}
    scaled = any(argument.name == "sm_scale" for argument in op.default._schema.arguments)
    return judged(op(*arguments), want, "bfloat16", figures=figures, sm_scale=scaled)


AITER_FUNCTIONS = (
    "flash_attn_func",
    "flash_attn_fp8_pertensor_func",
    "per_tensor_quant",
    "get_ps_metadata_info_v1",
    "get_ps_metadata_v1",
    "mla_prefill_ps_asm_fwd",
    "mla_reduce_v1",
)


def aiter() -> Result:
    module = importlib.import_module("aiter")
    functions = [name for name in AITER_FUNCTIONS if hasattr(module, name)]
    if "flash_attn_func" not in functions:
        reason = "this is the iterator library named aiter, not AMD's kernels (distribution amd-aiter)"
        return {"ok": False, "reason": reason, "ops": functions}
    gpu = ""
    with contextlib.suppress(ImportError, AttributeError, RuntimeError):
        gpu = str(importlib.import_module("aiter.jit.utils.chip_info").get_gfx_runtime())
    return {"ok": True, "reason": "imports and is AMD's", "ops": functions, "gpu": gpu}
