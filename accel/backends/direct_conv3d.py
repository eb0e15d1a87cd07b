"""A VAE's fp32 conv3d sent to oneDNN directly.

torch sends a conv3d of batch 1 with N*C*T*H <= 20480 to `slow_conv3d`; a video VAE decodes one latent frame at a
time, so small VAEs spend most of their time there. Measured, decoding, equal to fp32 rounding: the starter on 2 cores
of Zen 4 4.6x faster; a Wan VAE on 2 cores of Zen 3, by the convolutions alone, 5.5x at base width 16, 1.6x at 32, 1.25x
at 48.
Weights (and, in a Wan VAE, everything between them) lie in channels_last_3d. Spatial padding is left to oneDNN; the
causal frames in front, zeros or the frames cached from the latent before, are put there by `cat`. A temporal tap that
is zero in every channel costs its whole product and adds nothing: such taps are left out, with the input frames only
they would see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.contract import Counting, Undo
from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch

# Families whose modules were checked to pass channels_last_3d tensors on: others get contiguous ones back.
KEEPS_CHANNELS_LAST = frozenset({"AutoencoderKLWan"})


class DirectConv3d:
    name = "direct_conv3d"
    title = "oneDNN conv3d in fp32"
    kind: Kind = "vae"
    exact = True
    reference = False
    dtypes: tuple[str, ...] = ("float32",)
    devices: tuple[str, ...] = ("cpu",)
    runs_on = "CPUs"
    comes_with = "PyTorch"

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        unproved = machine.why_unproved("conv3d")
        reasons = [unproved] if unproved else []
        if traits.conv3d == 0:
            reasons.append(f"{traits.class_name} has no 3-D convolution")
        return reasons

    def apply(self, vae: torch.nn.Module, count: Counting) -> Undo:
        from accel.convolutions import swap_convolutions
        from accel.norms import swap_norms
        from accel.upsampling import swap_upsampling

        last = type(vae).__name__ in KEEPS_CHANNELS_LAST
        steps = [swap_convolutions(vae, count, self.dtypes, last), swap_norms(vae), swap_upsampling(vae)]

        def undo() -> None:
            while steps:
                steps.pop()()

        return undo
