"""PyTorch's own attention: the reference, on every machine, for every call.

On a CPU in bfloat16 it uses oneDNN's brgemm, hence AMX where the machine has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.backends.runtime import AttentionCall
from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch


def attend(call: AttentionCall) -> torch.Tensor:
    """What diffusers' native backend computes, masks of every shape included."""
    import torch.nn.functional as F

    query, key, value = (x.transpose(1, 2) for x in (call.query, call.key, call.value))
    mask = call.mask
    if mask is not None and mask.shape == (call.key.shape[0], call.key.shape[1]):
        mask = mask[:, None, None, :]  # (batch, kv_tokens): one row for all heads and queries
    grouped = query.shape[1] != key.shape[1]
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=call.causal, scale=call.scale, enable_gqa=grouped
    )
    return out.transpose(1, 2).contiguous()


class Sdpa:
    name = "sdpa"
    title = "PyTorch attention"
    kind: Kind = "attention"
    exact = True
    reference = True
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    devices: tuple[str, ...] = ("cpu", "cuda", "mps", "xpu")

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        return []

    def run(self, call: AttentionCall) -> torch.Tensor:
        return attend(call)
