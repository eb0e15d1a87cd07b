"""Small real runs, executed in a process that may die of them.

Started as a script, never imported by the app, and imports nothing of accel: `python -P child.py TASK...`. Around each
task it prints
`@proof start TASK` and `@proof done TASK {json}`; a start without a done names the task that killed the process, which
is an answer.
The result's keys: ok (ran and was right), reason (one sentence), figures (numbers; `_ms` = best milliseconds),
everything else detail.
KINETILE_PROOF_LIMIT (seconds) stops the process when a single task takes longer.

Each product is compared with the same product in float64. Limits of the relative error (Frobenius norm), from the
formats' rounding:
float32 1e-5, bfloat16 1e-2, float16 2e-3, int8 linears with one scale per tensor 3e-2.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3, "int8": 3e-2}
Result = dict[str, Any]

# Windows counts a thread's time in steps of 15 ms
CPU_CLOCK = time.perf_counter if sys.platform == "win32" else time.thread_time


# -- tools --


def best_ms(call: Callable[[], Any], clock: Callable[[], float] = CPU_CLOCK, budget: float = 0.06) -> float:
    """Least milliseconds of `call` on one core after one warm-up, repeated for about `budget` seconds, at most 20
    times.

    One core and its own clock, since on a busy machine the threads of a parallel loop wait for each other and for their
    turn.
    """
    import torch

    torch.set_num_threads(1)
    call()
    best, end = float("inf"), time.perf_counter() + budget
    for _ in range(20):
        start = clock()
        call()
        best = min(best, clock() - start)
        if time.perf_counter() > end:
            break
    return round(best * 1e3, 4)


def judged(got: Any, want: Any, dtype: str, **more: Any) -> Result:
    """Compares a result with its float64 reference."""
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    error = float((got - want).norm() / want.norm())
    ok = error <= TOLERANCE[dtype]  # False for NaN as well
    reason = (
        f"ran and was right (relative error {error:.1e})" if ok else f"ran and was wrong: relative error {error:.1e}"
    )
    return {"ok": ok, "reason": reason, "figures": {"error": error, **more.pop("figures", {})}, **more}


def seeded(*shape: int) -> Any:
    """Normal numbers, the same in every run, float32 on the CPU."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def shown(call: Callable[[], Any]) -> Any:
    """`call()` with oneDNN saying on standard output which instruction set it used."""
    import torch

    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        return call()


def flush() -> None:
    """Empties C's own buffer: oneDNN writes through it, past Python's."""
    sys.stdout.flush()
    with contextlib.suppress(OSError, TypeError, AttributeError):
        import ctypes

        ctypes.CDLL(None).fflush(None)


# -- the processor --


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


# -- packages --


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


def sgl_fa3() -> Result:
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] not in (8, 9):
        raise LookupError("FlashAttention-3 needs an NVIDIA GPU of compute capability 8.x or 9.x")
    sgl_ops("fwd")
    module = importlib.import_module("sgl_kernel.flash_attn")
    tokens = 256
    q = seeded(tokens, 4, 128).bfloat16().cuda()
    lengths = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    got = module.flash_attn_varlen_func(q, q, q, lengths, lengths, max_seqlen_q=tokens, max_seqlen_k=tokens)
    got = got[0] if isinstance(got, tuple) else got
    swapped = q.cpu().double().transpose(0, 1).unsqueeze(0)
    want = torch.nn.functional.scaled_dot_product_attention(swapped, swapped, swapped)[0].transpose(0, 1)
    return judged(got, want, "bfloat16")


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


def aiter_attention() -> Result:
    import torch

    name = torch.cuda.get_device_properties(0).gcnArchName.split(":")[0] if torch.version.hip else "no AMD GPU"
    if name not in ("gfx942", "gfx950"):
        raise LookupError(f"aiter's attention has code for gfx942 and gfx950 only, found {name}")
    module = importlib.import_module("aiter")
    q = seeded(1, 256, 8, 128).bfloat16().cuda()
    got = module.flash_attn_func(q, q, q)
    got = got[0] if isinstance(got, tuple) else got
    swapped = q.cpu().double().transpose(1, 2)
    want = torch.nn.functional.scaled_dot_product_attention(swapped, swapped, swapped).transpose(1, 2)
    return judged(got, want, "bfloat16")


# -- graphics processors --


def gpus() -> Result:
    """What torch shows, without running anything on it."""
    import torch

    found = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            item = torch.cuda.get_device_properties(index)
            arch = getattr(item, "gcnArchName", "") if torch.version.hip else f"sm_{item.major}{item.minor}"
            shown_uuid = str(getattr(item, "uuid", ""))
            found.append(
                {"index": index, "name": item.name, "memory": item.total_memory, "arch": arch, "uuid": shown_uuid}
            )
    arches = list(torch.cuda.get_arch_list()) if torch.version.cuda or torch.version.hip else []
    mps = torch.backends.mps.is_available() if hasattr(torch.backends, "mps") else False
    memory = int(torch.mps.recommended_max_memory()) if mps and hasattr(torch.mps, "recommended_max_memory") else 0
    return {"ok": True, "reason": "listed", "gpus": found, "arches": arches, "mps": mps, "mps_memory": memory}


def gpu(which: str) -> Result:
    """A product and a conv3d on one GPU, in bf16 where it can and float32, against float64 on the CPU."""
    import torch

    device = torch.device("mps" if which == "mps" else f"cuda:{which}")
    finish = torch.mps.synchronize if which == "mps" else torch.cuda.synchronize
    x, weight = seeded(256, 512), seeded(512, 512)
    want = x.double() @ weight.double().T
    single = judged(x.to(device) @ weight.to(device).T, want, "float16")
    clip, kernel = seeded(1, 8, 3, 34, 34), seeded(8, 8, 3, 3, 3)
    convolve = torch.nn.functional.conv3d
    volume = judged(convolve(clip.to(device), kernel.to(device)), convolve(clip.double(), kernel.double()), "bfloat16")
    if not (single["ok"] and volume["ok"]):
        return single if not single["ok"] else volume
    figures = {"error": single["figures"]["error"]}
    big = seeded(1024, 1024).to(device)
    for name in ("float32", "float16", "bfloat16"):
        low = big.to(getattr(torch, name))
        figures[f"linear_{name}_ms"] = best_ms(lambda low=low: (low @ low, finish()), time.perf_counter)  # type: ignore[misc]
    low_x, low_weight = x.to(device).bfloat16(), weight.to(device).bfloat16()
    wanted = low_x.cpu().double() @ low_weight.cpu().double().T
    return judged(low_x @ low_weight.T, wanted, "bfloat16", figures=figures)


def triton_kernel() -> Result:
    """Compiles and runs a kernel that doubles numbers: torch.compile on a GPU rests on this."""
    import torch

    if not torch.cuda.is_available():
        raise LookupError("triton needs a GPU that torch can use")
    triton = importlib.import_module("triton")
    globals()["tl"] = importlib.import_module("triton.language")

    def double(source, target):  # type: ignore[no-untyped-def]
        at = tl.arange(0, 256)  # type: ignore[name-defined]  # noqa: F821
        tl.store(target + at, tl.load(source + at) * 2)  # type: ignore[name-defined]  # noqa: F821

    x = seeded(256).cuda()
    got = torch.empty_like(x)
    triton.jit(double)[(1,)](x, got)
    return judged(got, x.double() * 2, "float32")


# -- running --

TASKS: dict[str, Callable[[], Result]] = {
    "torch": torch_build,
    "fp32": lambda: linear("float32"),
    "bf16": bf16,
    "packed_bf16": packed_bf16,
    "fp16": lambda: linear("float16"),
    "int8": int8,
    "conv3d": conv3d,
    "gpus": gpus,
    "diffusers": lambda: imports("diffusers"),
    "triton": lambda: imports("triton"),
    "triton.kernel": triton_kernel,
    "sageattention": lambda: imports("sageattention"),
    "torchao": lambda: imports("torchao"),
    "sgl_kernel": sgl_kernel,
    "sgl_kernel.weight_packed_linear": sgl_packed_linear,
    "sgl_kernel.int8_scaled_mm_with_quant": sgl_int8_linear,
    "sgl_kernel.flash_attn_varlen_func": sgl_attention,
    "sgl_kernel.fa3": sgl_fa3,
    "aiter": aiter,
    "aiter.flash_attn_func": aiter_attention,
}


def run(task: str) -> Result:
    try:
        return gpu(task.partition(":")[2]) if task.startswith("gpu:") else TASKS[task]()
    except LookupError as error:
        return {"ok": False, "reason": str(error.args[0])}
    except BaseException as error:  # the sentence is the result; the process goes on to the next task
        text = " ".join(str(error).split())[:300] or "no message"
        return {"ok": False, "reason": f"{type(error).__name__}: {text}"}


def main(tasks: list[str]) -> None:
    limit = float(os.environ.get("KINETILE_PROOF_LIMIT", "0"))
    pending = list(tasks)
    while pending:
        task = pending.pop(0)
        if limit:
            faulthandler.dump_traceback_later(limit, exit=True)
        print(f"@proof start {task}", flush=True)
        result = run(task)
        faulthandler.cancel_dump_traceback_later()
        flush()
        print(f"@proof done {task} {json.dumps(result)}", flush=True)
        if (
            task == "gpus"
        ):  # every GPU in the same process, since importing torch and starting the driver are the dear parts
            pending = [f"gpu:{item['index']}" for item in result.get("gpus", ())] + pending
            pending = ["gpu:mps", *pending] if result.get("mps") else pending


if __name__ == "__main__":
    main(sys.argv[1:])
