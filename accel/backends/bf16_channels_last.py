"""A VAE in bf16 with its conv3d weights in channels_last_3d, sent to oneDNN directly.

For CPUs with AVX512_BF16 or AMX; elsewhere bf16 convolutions are 30 to 40 times slower than fp32. Measured on 16 vCPU
of Emerald Rapids: a 96-channel conv3d over 5x240x416 in 61 ms, against 110 ms of contiguous bf16 and 289 ms of fp32;
on 2 cores of Zen 4 a Wan VAE of base width 32 decodes in 1.0 s, against 1.9 s of direct fp32 and 3.2 s of stock fp32.
"""

from __future__ import annotations

from accel.backends.direct_conv3d import DirectConv3d
from accel.backends.onednn_bf16 import RUNS_ON
from accel.types import Machine, StageTraits


class Bf16ChannelsLast(DirectConv3d):
    name = "bf16_channels_last"
    title = "oneDNN conv3d in bf16"
    dtypes: tuple[str, ...] = ("bfloat16",)
    runs_on = RUNS_ON

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        reasons = super().why_not(machine, traits)
        if not (machine.cpu.usable("avx512_bf16") or machine.cpu.usable("amx_bf16")):
            reasons.append("this CPU has neither AVX512_BF16 nor AMX: bf16 would be many times slower than fp32")
        unproved = machine.why_unproved("bf16")
        return [*reasons, unproved] if unproved else reasons
