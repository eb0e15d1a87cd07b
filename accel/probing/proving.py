"""Runs the child tasks and reads their answers, whatever becomes of the children.

All tasks go to one child, one after another, since importing torch is the dear part (about two seconds). When the child
dies, the task it was at gets the manner of death as its answer and a new child takes the rest. Results are plain
dictionaries as the child printed them, plus `isa`, oneDNN's own account of what ran. A result with `again: true`
(stopped at a limit, killed for memory) must not be remembered.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from accel.probing import verdict
from accel.probing.host import DONE, START, Host, Outcome
from accel.waiting import WAITING, WAITING_ENVIRONMENT

Result = dict[str, Any]

PROCESSOR = ("torch", "fp32", "bf16", "packed_bf16", "fp16", "int8", "conv3d", "threads")
BF16_USERS = ("packed_bf16", "fp16", "int8", "threads")
"""Not tried once the bf16 product has killed its process: they reach for the same instructions."""

AITER = ("aiter.flash_attn_func", "aiter.flash_attn_fp8_pertensor_func", "aiter.mla_prefill_ps_asm_fwd")

OF_PACKAGE = {
    "diffusers": ("diffusers.cudnn",),
    "flash_attn": ("diffusers.flash",),
    "sageattention": ("diffusers.sage",),
    "sgl_kernel": (
        "sgl_kernel.weight_packed_linear",
        "sgl_kernel.int8_scaled_mm_with_quant",
        "sgl_kernel.flash_attn_varlen_func",
        "sgl_kernel.fa3",
        "sgl_kernel.fa3_fp8",
    ),
    "aiter": AITER,
    "triton": ("triton.kernel", "triton.fp8_linear"),
}

SLOW = dict.fromkeys(AITER, 300.0)
"""Seconds that a task may need on its first run, because its package compiles kernels then."""

TASK_SECONDS = 8.0
"""Limit of one ordinary task; more for who has more patience. The slowest seen, importing diffusers on two busy cores,
took 4."""

REMOVED = (
    "ONEDNN_VERBOSE",
    "DNNL_VERBOSE",
    "TORCH_LOGS",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PYTHONVERBOSE",
    "PYTHONWARNINGS",
)
"""Variables that would print into the answers. What changes the hardware's behaviour stays: the real run will see it
too."""

WINDOWS_SIGNALS = {0xC000001D: "an illegal instruction", 0xC0000005: "an access violation"}


def environment(host: Host, threads: int) -> dict[str, str]:
    """The child's environment: ours without what prints, with the thread count that the real run will use."""
    kept = {name: value for name, value in host.environ.items() if name not in REMOVED}
    workers = {"OMP_NUM_THREADS": str(threads), **WAITING_ENVIRONMENT[WAITING]}
    return {**kept, **workers, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}


def prove(
    host: Host, tasks: Sequence[str], threads: int, patience: float, known: Mapping[str, Result]
) -> dict[str, Result]:
    """Results of `tasks` that `known` lacks, within about `patience` seconds; what did not fit in says so in its
    result."""
    end, limit = time.monotonic() + patience, max(TASK_SECONDS, patience / 4)
    results: dict[str, Result] = {}
    slow = [task for task in tasks if task in SLOW and task not in known]
    _run(host, [task for task in tasks if task not in known and task not in SLOW], threads, end, limit, results)
    # the child that lists the GPUs also tries them; what it did not survive to try is left for another one
    gpus = results.get("gpus") or known.get("gpus") or {}
    cards = [f"gpu:{item['index']}" for item in gpus.get("gpus", ())] + (["gpu:mps"] if gpus.get("mps") else [])
    left = [task for task in cards if task not in known and task not in results]
    _run(host, left, threads, end, limit, results)
    for task in slow:
        if end - time.monotonic() >= SLOW[task]:
            _run(host, [task], threads, end, SLOW[task], results)
        else:
            how = f"`python -m accel.doctor --patience {2 * SLOW[task]:.0f}` waits for it"
            reason = f"not tried yet: its first run may compile for {SLOW[task] / 60:.0f} minutes; {how}"
            results[task] = {"ok": False, "reason": reason, "again": True, "untried": "compiling"}
    return results


def _run(host: Host, tasks: list[str], threads: int, end: float, limit: float, results: dict[str, Result]) -> None:
    """Runs `tasks` in as many children as it takes, adding to `results`."""
    pending = list(tasks)
    while pending:
        left = end - time.monotonic()
        if left <= 0:
            reason = "not tried yet: the time for testing was used up"
            results |= {task: {"ok": False, "reason": reason, "again": True, "untried": "time"} for task in pending}
            return
        environ = {**environment(host, threads), "ACCEL_PROOF_LIMIT": f"{min(limit, left):g}"}
        outcome = host.child(pending, environ, left + 1.0)
        found, at = read(outcome.stdout)
        results |= found
        if at is None and not any(task in found for task in pending):
            at = pending[0]  # the child died before its first task
        if at is not None:
            results[at] = died(outcome, min(limit, left))
            if at == "bf16" and outcome.code not in (None, 0, 1):
                results |= {task: _spared(results["bf16"]) for task in pending if task in BF16_USERS}
        pending = [task for task in pending if task not in results]


def _spared(death: Result) -> Result:
    return {"ok": False, "reason": f"not tried, since {death['reason']}"}


def read(stdout: str) -> tuple[dict[str, Result], str | None]:
    """Finished tasks and their results, and the task that was begun but not finished."""
    results: dict[str, Result] = {}
    current: str | None = None
    lines: list[str] = []
    for line in stdout.splitlines():
        if line.startswith(START) and current is None:
            current, lines = line.removeprefix(START).strip(), []
        elif line.startswith(DONE) and current is not None:
            name, _, text = line.removeprefix(DONE).partition(" ")
            try:
                result = json.loads(text)
            except ValueError:
                continue
            if name == current and isinstance(result, dict) and {"ok", "reason"} <= result.keys():
                results[name] = {**result, "isa": isa} if (isa := verdict.instructions(lines)) else result
                current = None
        else:
            lines.append(line)
    return results, current


def died(outcome: Outcome, limit: float) -> Result:
    """How a child ended in the middle of a task, as that task's result."""
    if outcome.code is None or "Timeout (" in outcome.stderr:
        return {"ok": False, "reason": f"it did not answer within {limit:.0f} s", "again": True}
    name = signal_name(outcome.code)
    if name == "SIGKILL":
        reason = "its test process was killed from outside (SIGKILL), most often for want of memory"
        return {"ok": False, "reason": reason, "again": True}
    if name:
        return {"ok": False, "reason": f"its test process was killed by {name}", "signal": name}
    last = next((line.strip() for line in reversed(outcome.stderr.splitlines()) if line.strip()), "no message")
    return {"ok": False, "reason": f"its test process ended with status {outcome.code}: {last[:200]}"}


def signal_name(code: int) -> str:
    """The signal behind an exit status, empty when there is none. Windows has no signals and reports exception numbers
    instead."""
    if code in WINDOWS_SIGNALS:
        return WINDOWS_SIGNALS[code]
    if code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
