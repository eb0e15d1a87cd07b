"""Libraries: which are installed, by their metadata alone; whether they import is for a child process to say.

Two names mislead. `aiter` on the public index is an unrelated iterator library, AMD's kernels are `amd-aiter`.
`sgl_kernel` is the import name of a CUDA build (sglang-kernel) and of a CPU build (sglang-kernel-cpu) alike; only the
operators they register tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from accel.probing.host import Distribution, Host
from accel.types import Package, Unsettled

DISTRIBUTIONS = {
    "torch": ("torch",),
    "diffusers": ("diffusers",),
    "sgl_kernel": ("sglang-kernel-cpu", "sgl-kernel-cpu", "sglang-kernel", "sgl-kernel"),
    "aiter": ("amd-aiter", "aiter"),
    "sageattention": ("sageattention",),
    "flash_attn": ("flash-attn",),
    "triton": ("triton", "pytorch-triton-rocm", "triton-rocm", "triton-windows"),
    "torchao": ("torchao",),
}
"""Import name -> distributions that may hold it, the expected one first."""

CPU_ONLY_OPS = ("convert_weight_packed", "weight_packed_linear")


def installed(host: Host) -> dict[str, Distribution | None]:
    """The distribution found for each package, None when there is none. Reads metadata only."""
    return {
        name: next((found for item in candidates if (found := host.distribution(item)) is not None), None)
        for name, candidates in DISTRIBUTIONS.items()
    }


def torch_build(host: Host, torch: Distribution | None) -> str:
    """What torch was built for, from its version file and without importing it: "cpu", "cuda 13.0", "rocm 7.1"."""
    if torch is None:
        return ""
    text = host.read(f"{torch.folder}/torch/version.py") or ""
    found = dict(re.findall(r"^(cuda|hip)\b[^=]*=\s*'([^']+)'", text, re.MULTILINE))
    if "cuda" in found:
        return f"cuda {found['cuda']}"
    if "hip" in found:
        return f"rocm {found['hip']}"
    return "cpu" if text else torch.version.partition("+")[2] or "unknown"


def describe(
    host: Host, found: Mapping[str, Distribution | None], runs: Mapping[str, dict[str, Any]]
) -> dict[str, Package]:
    """Each package with its version and whether it imports, or the reason why not."""
    described = {}
    for name, distribution in found.items():
        run = runs.get(name)
        if distribution is None:
            described[name] = Package(name, DISTRIBUTIONS[name][0], "", "", False, f"{name} is not installed")
            continue
        ops = tuple(run.get("ops", ())) if run else ()
        build = torch_build(host, distribution) if name == "torch" else _build(name, ops)
        importable = bool(run and run["ok"])
        unsettled = _unsettled(run)
        reason = _explain(distribution, found.get("torch"), run, unsettled)
        described[name] = Package(
            name, distribution.name, distribution.version, build, importable, reason, ops, unsettled
        )
    return described


def _build(name: str, ops: tuple[str, ...]) -> str:
    if name != "sgl_kernel" or not ops:
        return ""
    return "cpu" if all(op in ops for op in CPU_ONLY_OPS) and "fwd" not in ops else "cuda"


def _unsettled(run: Mapping[str, Any] | None) -> Unsettled:
    if run is None or run.get("untried"):
        return "untried"
    return "undecided" if run.get("again") else ""  # a busy machine, or one short of memory, says nothing of it


def _explain(
    found: Distribution, torch: Distribution | None, run: Mapping[str, Any] | None, unsettled: Unsettled
) -> str:
    here = f"{found.name} {found.version} is installed"
    if run is None or unsettled == "untried":
        return f"{here}; whether it imports has not been tried yet"
    reason = str(run["reason"])
    if unsettled:
        return f"{here}; whether it imports is not known yet, since {reason}: the next start tries again"
    if "undefined symbol" in reason or "DLL load failed" in reason:
        wanted, have = found.torch or "another release", torch.version if torch else "none"
        return f"{found.name} {found.version} was built for another torch ({wanted}, found {have}): {reason}"
    return reason if run["ok"] else f"{found.name} {found.version} does not import: {reason}"
