"""What the three backends on SGLang's CPU kernels share: finding the operators, and saying why they can't be used.

The package on the index (`sglang-kernel`) is the CUDA build; the CPU build, `sglang-kernel-cpu`, is made from
SGLang's own source tree. Both import as `sgl_kernel`, so a build is known by the operators it registers and never by
its name.
"""

from __future__ import annotations

import importlib
from typing import Any

from accel.backends.runtime import Refused
from accel.types import Machine

MODULES = ("sgl_kernel", "sgl_kernel_cpu")
WHERE = (
    "SGLang's CPU kernels are optional: build sgl-kernel/ of SGLang's source tree with its pyproject_cpu.toml "
    "(needs CMake and the libnuma headers) on this machine"
)


def why_not_sgl(machine: Machine, operators: tuple[str, ...], proof: str) -> list[str]:
    """Reasons from the machine: no AMX, no package, a build without these operators, or a trial run that failed."""
    reasons = [reason for reason in (machine.cpu.why_not("amx_tile"), machine.cpu.why_not("amx_bf16")) if reason][:1]
    package = machine.packages.get("sgl_kernel")
    if package is None or not package.installed:
        return [*reasons, f"sgl_kernel is not installed; {WHERE}"]
    if not package.importable:
        return [*reasons, f"sgl_kernel {package.version} does not import: {package.reason}"]
    missing = [name for name in operators if name not in package.ops]
    if missing:
        return [*reasons, f"this build of sgl_kernel ({package.build}) registers no {', '.join(missing)}; {WHERE}"]
    unproved = machine.why_unproved(proof)
    return [*reasons, unproved] if unproved and not reasons else reasons


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
