"""Small real runs, for a process that may die of them: a child of the probe calls `main(tasks)` and nothing else does.

Around each task it prints `@proof start TASK` and `@proof done TASK {json}`; a start without a done names the task that
killed the process, which is an answer. The result's keys: ok (ran and was right), reason (one sentence), figures
(numbers; `_ms` = best milliseconds), everything else detail. ACCEL_PROOF_LIMIT (seconds) stops the process when a
single task takes longer.
"""

from __future__ import annotations

import faulthandler
import json
import os
from collections.abc import Callable

from accel.probing.runs import gpus, kernels, packages, processor
from accel.probing.runs.tools import Result, flush

TASKS: dict[str, Callable[[], Result]] = {
    "torch": processor.torch_build,
    "fp32": lambda: processor.linear("float32"),
    "bf16": processor.bf16,
    "packed_bf16": processor.packed_bf16,
    "fp16": lambda: processor.linear("float16"),
    "int8": processor.int8,
    "conv3d": processor.conv3d,
    "threads": processor.threads,
    "gpus": gpus.gpus,
    "diffusers": lambda: packages.imports("diffusers"),
    "diffusers.cudnn": lambda: kernels.attention("cudnn", "bfloat16"),
    "diffusers.flash": lambda: kernels.attention("flash", "bfloat16"),
    "diffusers.sage": lambda: kernels.attention("sage", "fp8_attention"),
    "flash_attn": lambda: packages.imports("flash_attn"),
    "triton": lambda: packages.imports("triton"),
    "triton.kernel": gpus.triton_kernel,
    "triton.fp8_linear": kernels.fp8_linear,
    "sageattention": lambda: packages.imports("sageattention"),
    "torchao": lambda: packages.imports("torchao"),
    "sgl_kernel": packages.sgl_kernel,
    "sgl_kernel.weight_packed_linear": packages.sgl_packed_linear,
    "sgl_kernel.int8_scaled_mm_with_quant": packages.sgl_int8_linear,
    "sgl_kernel.flash_attn_varlen_func": packages.sgl_attention,
    "sgl_kernel.fa3": lambda: kernels.attention("fa3", "bfloat16"),
    "sgl_kernel.fa3_fp8": lambda: kernels.attention("fa3_fp8", "fp8_attention"),
    "aiter": packages.aiter,
    "aiter.flash_attn_func": lambda: kernels.attention("aiter_bf16", "bfloat16"),
    "aiter.flash_attn_fp8_pertensor_func": lambda: kernels.attention("aiter_fmha_fp8", "fp8_attention"),
    "aiter.mla_prefill_ps_asm_fwd": lambda: kernels.attention("aiter_mla_fp8", "fp8_attention"),
}


def run(task: str) -> Result:
    """The task's result; whatever it raises becomes its reason, and the process goes on to the next one."""
    try:
        return gpus.gpu(task.partition(":")[2]) if task.startswith("gpu:") else TASKS[task]()
    except LookupError as error:
        return {"ok": False, "reason": str(error.args[0])}
    except BaseException as error:
        text = " ".join(str(error).split())[:300] or "no message"
        return {"ok": False, "reason": f"{type(error).__name__}: {text}"}


def main(tasks: list[str]) -> None:
    limit = float(os.environ.get("ACCEL_PROOF_LIMIT", "0"))
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
        if task == "gpus":
            # every GPU in this same process: importing torch and starting the driver are the dear parts
            cards = [str(item["index"]) for item in result.get("gpus", ())] + (["mps"] if result.get("mps") else [])
            pending = [f"gpu:{card}" for card in cards] + pending
