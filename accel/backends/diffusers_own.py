"""Attention that diffusers brings names for, on NVIDIA GPUs of compute capability 8.0 and newer: PyTorch's call into
cuDNN, the packages flash-attn and sageattention. Called through diffusers' own functions, never by hand.

cuDNN measured on one H200, torch 2.11: 32760 tokens, 40 heads of 128, in 37.2 ms against 38.1 ms of PyTorch's choice.
The others have no figure of ours: `auto` takes an exact one where this machine's readouts find it the fastest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from accel.advice import pip
from accel.backends.flash_ops import capability, dense, why_not_form, why_not_head, why_not_stage
from accel.contract import AttentionCall, Refused
from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch

LOWEST = (8, 0)
NO_KERNEL = "No available kernel"
"""How PyTorch begins when the one way that it was told to go is none for this call."""


@dataclass(eq=False)
class DiffusersOwn:
    """`own` is diffusers' name for it, `package` what must be installed beside PyTorch, if anything."""

    name: str
    title: str
    own: str
    package: str
    comes_with: str
    exact: bool
    kind: Kind = "attention"
    reference: bool = False
    dtypes: tuple[str, ...] = ("bfloat16", "float16")
    devices: tuple[str, ...] = ("cuda",)
    runs_on: str = "NVIDIA GPUs of compute capability 8.0 and newer"

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        found = [gpu.arch for gpu in machine.usable_gpus()]
        if not any((match := re.fullmatch(r"sm_(\d+)", arch)) and int(match[1]) >= 80 for arch in found):
            there = f"found {', '.join(found)}" if found else "found no GPU that can be used"
            return [f"{self.title} runs on NVIDIA GPUs of compute capability 8.0 or newer, {there}"]
        package = machine.packages.get(self.package)
        if self.package and (package is None or not package.installed):
            return [f"{self.package} is not installed: {self.comes_with}"]
        if package is not None and not package.importable:
            return [package.reason]
        unproved = machine.why_unproved(f"diffusers.{self.name}")
        return [*([unproved] if unproved else []), *why_not_stage(traits)]

    def run(self, call: AttentionCall) -> torch.Tensor:
        from accel.bridge import own_attention

        reason = why_not_call(call, self.dtypes)
        if reason:
            raise Refused(reason)
        parts = (dense(call.query), dense(call.key), dense(call.value))
        try:
            return own_attention(self.own)(*parts, is_causal=call.causal, scale=call.scale).contiguous()
        except RuntimeError as error:
            if not str(error).startswith(NO_KERNEL):
                raise
            raise Refused(f"{self.title} has no kernel for this call") from error


def why_not_call(call: AttentionCall, dtypes: tuple[str, ...]) -> str:
    """Why this one call can't be served, as one sentence; empty when it can."""
    query, key = call.query, call.key
    if capability(query.device) < LOWEST:
        return f"the tensors are on {query.device}, this kernel runs on compute capability 8.0 or newer"
    if query.shape[2] != key.shape[2]:
        return f"{query.shape[2]} query heads beside {key.shape[2]} key heads"
    return why_not_form(call, dtypes) or why_not_head(query.shape[3])


CUDNN = DiffusersOwn("cudnn", "cuDNN attention", "_native_cudnn", "", "PyTorch", exact=True)
FLASH = DiffusersOwn(
    "flash", "FlashAttention-2", "flash", "flash_attn", f"`{pip('install', 'flash-attn')}`", exact=True
)
SAGE = DiffusersOwn(
    "sage", "SageAttention (approximate)", "sage", "sageattention", f"`{pip('install', 'sageattention')}`", exact=False
)
