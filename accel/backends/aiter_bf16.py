"""AMD's own attention in bf16 on gfx942 and gfx950, through aiter. What its FP8 neighbours refuse goes here.

Not measured by us yet: `auto` takes it where this machine's readouts find it the fastest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.backends import aiter_ops
from accel.backends.flash_ops import dense, scale_of, why_not_head, why_not_stage
from accel.contract import AttentionCall, Refused
from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch

FUNCTION = "flash_attn_func"
CHIPS = ("gfx942", "gfx950")


class AiterBf16:
    name = "aiter_bf16"
    title = "AMD's aiter attention"
    kind: Kind = "attention"
    exact = True
    reference = False
    dtypes: tuple[str, ...] = ("bfloat16",)
    devices: tuple[str, ...] = ("cuda",)
    runs_on = aiter_ops.runs_on(CHIPS)
    comes_with = aiter_ops.COMES_WITH

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        reasons = aiter_ops.why_not_aiter(machine, CHIPS, FUNCTION)
        reasons += why_not_stage(traits)
        return reasons

    def run(self, call: AttentionCall) -> torch.Tensor:
        import torch

        reason = aiter_ops.why_not_call(call, CHIPS) or why_not_head(call.query.shape[3])
        if reason:
            raise Refused(reason)
        attend = aiter_ops.function(FUNCTION)
        parts = (dense(call.query), dense(call.key), dense(call.value))
        # with gradients on, aiter keeps what a backward pass would need
        with aiter_ops.on(call.query.device), torch.no_grad():
            out = attend(*parts, softmax_scale=scale_of(call), causal=call.causal)
        return aiter_ops.first(out).contiguous()
