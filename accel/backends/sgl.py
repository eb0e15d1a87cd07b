"""What the three backends on SGLang's CPU kernels share: finding the operators, and saying why they can't be used.

Two builds, for CUDA and for the CPU, import as `sgl_kernel`, so a build is known by the operators it registers and
never by its name.
"""

from __future__ import annotations

import importlib
from typing import Any

from accel import advice
from accel.contract import Refused
from accel.types import Machine

MODULES = ("sgl_kernel", "sgl_kernel_cpu")
RUNS_ON = "Xeons with AMX (Sapphire Rapids and newer)"
COMES_WITH = advice.SGL_CPU


def why_not_sgl(machine: Machine, operators: tuple[str, ...], proof: str) -> list[str]:
    """Reasons from the machine: no AMX (nothing else matters then), no package, a build without these operators, or a
    trial run that failed."""
    without = machine.cpu.why_not("amx_tile") or machine.cpu.why_not("amx_bf16")
    if without:
        return [without]
    package = machine.packages.get("sgl_kernel")
    if package is None or not package.installed:
        return [f"sgl_kernel is not installed; {advice.SGL_CPU}"]
    if not package.importable:
        return [f"sgl_kernel {package.version} does not import: {package.reason}"]
    missing = ", ".join(name for name in operators if name not in package.ops)
    if missing:
        return [f"this build of sgl_kernel ({package.build}) registers no {missing}; {advice.SGL_CPU}"]
    unproved = machine.why_unproved(proof)
    return [unproved] if unproved else []


def operator(name: str) -> Any:
    """`torch.ops.sgl_kernel.<name>`, looked up anew each time. Raises Refused when it is not there."""
    import torch

    found = getattr(torch.ops.sgl_kernel, name, None)
    for module in MODULES:
        if found is None:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError:
                continue
            except (ImportError, OSError) as error:
                raise Refused(f"{module} does not import: {error}") from error
            found = getattr(torch.ops.sgl_kernel, name, None)
    if found is None:
        raise Refused(f"sgl_kernel registers no {name} here")
    return found
