"""AMD's attention in FP8 on gfx950, through aiter's FMHA. Approximate, so opt-in.

Query, key and value are quantised to e4m3 with one scale each. Nothing is padded and any number of heads is served,
hence it goes before `aiter_mla_fp8`. Few keys gain nothing, see `aiter_ops.FEWEST_KEYS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.backends import aiter_ops
from accel.backends.aiter_bf16 import AiterBf16
from accel.backends.flash_ops import scale_of
from accel.contract import AttentionCall, Refused
from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch

FUNCTION = "flash_attn_fp8_pertensor_func"


class AiterFmha:
    name = "aiter_fmha_fp8"
    title = "AMD's aiter FMHA in FP8 (approximate)"
    kind: Kind = "attention"
    exact = False
    reference = False
    dtypes: tuple[str, ...] = ("bfloat16",)
    devices: tuple[str, ...] = ("cuda",)
    runs_on = aiter_ops.runs_on(("gfx950",))
    comes_with = aiter_ops.COMES_WITH
    second = AiterBf16()
    head_sizes = (aiter_ops.HEAD_SIZE,)

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        reasons = aiter_ops.why_not_aiter(machine, ("gfx950",), FUNCTION)
        if traits.head_dim not in (0, *self.head_sizes):
            reasons.append(f"head size {traits.head_dim} is not {aiter_ops.HEAD_SIZE}")
        return reasons

    def run(self, call: AttentionCall) -> torch.Tensor:
        reason = aiter_ops.why_not_fp8(call)
        if not reason and call.key.shape[1] < aiter_ops.FEWEST_KEYS:
            reason = f"fewer than {aiter_ops.FEWEST_KEYS} keys are faster in bf16"
        if reason:
            raise Refused(reason)
        return self.attend(call)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """A call that `why_not_fp8` has nothing against, in FP8 however few its keys are."""
        attend, device = aiter_ops.function(FUNCTION), call.query.device
        with aiter_ops.on(device):
            (query, of_query), (key, of_key), (value, of_value) = (
                aiter_ops.quantised(x) for x in (call.query, call.key, call.value)
            )
            parts = (query.view(call.query.shape), key.view(call.key.shape), value.view(call.value.shape))
            scale = scale_of(call)
            out = attend(*parts, of_query, of_key, of_value, causal=False, softmax_scale=scale)
        return aiter_ops.first(out).to(call.query.dtype).contiguous()
