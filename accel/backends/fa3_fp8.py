"""FlashAttention-3 in FP8 on Hopper, through SGLang's CUDA kernels. Approximate, so opt-in.

Query, key and value are quantised to e4m3 with one scale per item of the batch and key head, in one fused kernel that
finds the largest magnitude and one that casts. Few keys gain nothing: quantising the query costs more than the product
saves, so such calls (cross attention to a prompt) run in bf16, counted with that reason, unless whoever made the query
made it in FP8 (the fused blocks do).
Measured on one H200, torch 2.11: 32760 tokens, 40 heads of 128, in 21.4 ms (1026 TFLOP/s) and the quantising, against
31.9 ms in bf16; relative error 5.4 % on pure noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.backends.fa3 import Fa3
from accel.backends.flash_ops import (
    COMES_WITH,
    RUNS_ON,
    attend,
    dense,
    scale_of,
    why_not_call,
    why_not_flash,
    why_not_stage,
)
from accel.contract import AttentionCall, Refused
from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch

FEWEST_KEYS = 1024
"""From the figures above: reading a query twice and writing it takes what FP8 saves on some 750 keys."""


class Fa3Fp8:
    name = "fa3_fp8"
    title = "FlashAttention-3 in FP8 (approximate)"
    kind: Kind = "attention"
    exact = False
    reference = False
    dtypes: tuple[str, ...] = ("bfloat16",)
    devices: tuple[str, ...] = ("cuda",)
    runs_on = RUNS_ON
    comes_with = COMES_WITH
    second = Fa3()

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        return [*why_not_flash(machine, "sgl_kernel.fa3_fp8"), *why_not_stage(traits)]

    def run(self, call: AttentionCall) -> torch.Tensor:
        reason = self.why_not_call(call)
        if reason:
            raise Refused(reason)
        return self.attend(call)

    def why_not_call(self, call: AttentionCall) -> str:
        """Why this one call is left to bf16, as one sentence; empty when it is served."""
        few = f"fewer than {FEWEST_KEYS} keys are faster in bf16" if call.key.shape[1] < FEWEST_KEYS else ""
        return self.why_not_quantised(call) or few

    def why_not_quantised(self, call: AttentionCall) -> str:
        """The same where query and key come in FP8 already, so that few keys gain, too."""
        return why_not_call(call, self.dtypes)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """A call that `why_not_quantised` has nothing against."""
        (query, q_descale), (key, k_descale) = (_quantised(x, call.key.shape[2]) for x in (call.query, call.key))
        return self.attend_quantised(query, q_descale, key, k_descale, call.value, scale_of(call), call.causal)

    def attend_quantised(
        self,
        query: torch.Tensor,
        q_descale: torch.Tensor,
        key: torch.Tensor,
        k_descale: torch.Tensor,
        value: torch.Tensor,
        scale: float | None = None,
        causal: bool = False,
    ) -> torch.Tensor:
        """As `attend`, for a query and key in e4m3 with float32 descales (batch, kv_heads), and a value in bf16.
        scale: None for the root of the head size."""
        value, v_descale = _quantised(value, key.shape[2])
        descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
        return attend(query, key, value, query.shape[3] ** -0.5 if scale is None else scale, causal, **descales)


def _quantised(x: torch.Tensor, kv_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    from accel import fp8

    return fp8.kernels(x.device).quantise_heads(dense(x), kv_heads, fp8.format_for(x.device))
