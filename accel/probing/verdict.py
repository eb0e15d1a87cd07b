"""From claims and child runs to usable flags: a CPU feature counts once a real run used it, survived and was right.

oneDNN says in its own log which instruction set a product ran with ("brg_matmul:avx10_1_512_amx"), so "used" is read,
not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from accel.probing import cpu
from accel.types import Flag

Runs = Mapping[str, Mapping[str, Any]]

NEEDS: dict[str, tuple[str, str]] = {
    # flag: (task that proves it, what oneDNN's or torch's own account of that run must contain)
    "avx2": ("fp32", ""),
    "avx512f": ("fp32", ""),
    "avx512bw": ("fp32", ""),
    "avx512_vnni": ("int8", ""),
    "avx_vnni": ("int8", ""),
    "avx512_bf16": ("bf16", "avx512_core_bf16|avx512_core_fp16|avx10|amx"),
    "avx512_fp16": ("fp16", "avx512_core_fp16|avx10|amx"),
    "amx_tile": ("bf16", "amx"),
    "amx_bf16": ("bf16", "amx"),
    "amx_int8": ("int8", "amx"),
    "amx_fp16": ("fp16", "amx_fp16|amx_2"),
    "neon": ("fp32", ""),
    "sve": ("bf16", "sve|acl"),
    "sve2": ("bf16", "sve|acl"),
    "bf16": ("bf16", "bf16|acl|sve"),
    "i8mm": ("int8", ""),
    "sme": ("fp32", "sme"),
}

ALSO = {"amx_int8": "sgl_kernel.int8_scaled_mm_with_quant"}
"""A second run that proves the flag as well: oneDNN's log does not name the instructions of a plain int8 product."""


def flags(arch: str, claim: cpu.Claim, runs: Runs, capped: str) -> dict[str, Flag]:
    """Every feature that decides something on `arch`, judged. `capped` is ONEDNN_MAX_CPU_ISA, empty when unset."""
    claimed = claim.flags | cpu.claims_of_torch(str(runs.get("torch", {}).get("abilities", "")))
    return {name: _judge(name, name in claimed, claim.source, runs, capped) for name in cpu.FLAGS.get(arch, ())}


def _judge(name: str, claimed: bool, source: str, runs: Runs, capped: str) -> Flag:
    if not claimed:
        return Flag(False, False, f"this CPU has no {name}", source)
    task, wanted = NEEDS[name]
    run = runs.get(task)
    also = runs.get(ALSO.get(name, ""))
    if also and also["ok"]:
        return Flag(True, True, f"proved by {ALSO[name]}", "a run in a child process")
    if run is None:
        return Flag(True, False, f"{name} is advertised, not tried yet", source)
    if not run["ok"]:
        return Flag(True, False, f"{name} is advertised, not usable: {run['reason']}", "a run in a child process")
    used = str(run.get("isa", ""))
    if not wanted or re.search(wanted, used):
        detail = f"{task} {run['reason']}" + (f", run by {used}" if used else "")
        return Flag(True, True, detail, "a run in a child process")
    if capped:
        return Flag(
            True, False, f"{name} is advertised, but ONEDNN_MAX_CPU_ISA={capped} keeps it unused", "the environment"
        )
    took = f"oneDNN took {used}" if used else "which instructions ran is not known"
    return Flag(
        True, False, f"{name} is advertised, but the {task} run did not use it: {took}", "a run in a child process"
    )


def instructions(lines: list[str]) -> str:
    """The implementation that oneDNN names for a task's product, empty when its log has none.

    Lines look like `onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,...`.
    """
    for words in (line.split(",") for line in lines if line.startswith("onednn_verbose") and ",exec," in line):
        kind = next((at for at, word in enumerate(words) if word in ("matmul", "inner_product", "convolution")), None)
        if kind is not None and kind + 1 < len(words):
            return words[kind + 1]
    return ""
