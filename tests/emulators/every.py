"""Any of the stand-ins beside this file, by the attention backend that it serves."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.emulators import aiter, diffusers_own, sgl_kernel_cpu, sgl_kernel_cuda


def emulated(attention: str) -> AbstractContextManager[Any]:
    """Whatever an attention backend runs on is here, on the CPU."""
    for prefix, emulator in (("sgl", sgl_kernel_cpu), ("fa3", sgl_kernel_cuda), ("aiter", aiter)):
        if attention.startswith(prefix):
            found: AbstractContextManager[Any] = emulator.installed()
            return found
    return diffusers_own.installed()
