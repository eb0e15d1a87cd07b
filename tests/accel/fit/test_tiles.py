"""Decoding in tiles: nearly the picture that it is without, by VAEs that can; refused beforehand by one that can't."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan

from accel.errors import PlanError
from accel.fit import tiles
from accel.fit.moving import tile
from accel.plan import make_plan
from accel.traits import traits_of
from accel.types import Preferences, Room
from tests import builders, tiny
from tests.tiny import wan

LEAST = 20.0
"""Decibels. Random weights show seams that trained ones hide."""
BETTER = 5.0
"""Decibels more than a picture in the wrong place has: the mirrored one."""


TILE = 8
"""Side of a tile in latents."""


def psnr(got: torch.Tensor, want: torch.Tensor) -> float:
    """Of frames between -1 and 1, in decibels."""
    return float(10 * torch.log10(4 / (got - want).square().mean()))


@pytest.mark.parametrize(("build", "factor"), [(wan.vae, 8), (wan.vae_22, 16)], ids=["no patch", "patch of 2"])
@pytest.mark.parametrize("frames", [5, 17])
def test_tiles_give_nearly_the_same_frames(build: Callable[[], Any], factor: int, frames: int) -> None:
    """Case 46: VAEs as Wan 2.1's and 2.2's, just under and just over a tile. Seams show, so PSNR is compared."""
    torch.manual_seed(0)
    vae = build()
    for side in ("height", "width"):  # smaller than the real ones, in the same proportions
        setattr(vae, f"tile_sample_min_{side}", TILE * factor)
        setattr(vae, f"tile_sample_stride_{side}", TILE * factor * 3 // 4)
    for rows, alike in ((TILE - 1, True), (TILE, True), (TILE + 1, False)):
        latents = torch.randn(1, vae.config.z_dim, (frames - 1) // 4 + 1, rows, rows)
        with torch.inference_mode():
            want = vae.decode(latents).sample
            undo = tile(vae)
            got = vae.decode(latents).sample
            undo()
            again = vae.decode(latents).sample
        assert got.shape == want.shape == (1, 3, frames, rows * factor, rows * factor)
        assert torch.equal(again, want)
        assert torch.equal(got, want) == alike
        if not alike:
            print(f"{frames} frames, {rows * factor} pixels: {psnr(got, want):.1f} dB")
            assert psnr(got, want) > max(LEAST, psnr(got.flip(-1), want) + BETTER)


@pytest.mark.parametrize("name", ["wan-t2v", "wan-ti2v", "ltx", "hunyuan", "hunyuan-15", "cogvideox-2b", "mochi"])
def test_each_family_s_vae_can(name: str) -> None:
    """Case 46: tried before any clip."""
    assert tiles.why_not(tiny.build(name).vae) == ""


class Failing(AutoencoderKLWan):
    def tiled_decode(self, z: torch.Tensor, return_dict: bool = True) -> Any:
        raise RuntimeError("Given groups=1, expected input[1, 12, 1, 32, 32] to have 3 channels")


class Narrow(AutoencoderKLWan):
    def tiled_decode(self, z: torch.Tensor, return_dict: bool = True) -> Any:
        found = super().tiled_decode(z)
        found.sample = found.sample[..., :-16]
        return found


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Failing, "failed when its tiles were tried: Given groups=1"), (Narrow, "makes (1, 3, 3, 288, 272) of (1, 3, 3")],
)
def test_a_vae_whose_tiles_are_wrong_does_without_and_says_so(kind: Any, said: str) -> None:
    """Case 46: before the clip, in the plan; asked for, they are refused with the same sentence."""
    pipeline = builders.wan()
    pipeline.vae = kind.from_config(pipeline.vae.config)
    traits = traits_of(pipeline, width=512, height=512, frames=49)
    plan = make_plan(builders.machine(), traits, room=Room(1, 0))
    assert plan.tiling.engaged == "off"
    assert any(said in reason for reason in plan.tiling.reasons)
    with pytest.raises(PlanError) as refused:
        make_plan(builders.machine(), traits, Preferences(tiling="on"))
    assert f"tiling=on can't be used here: {kind.__name__} {said}" in str(refused.value)
    pipeline.vae = AutoencoderKLWan.from_config(pipeline.vae.config)
    right = make_plan(builders.machine(), traits_of(pipeline, width=512, height=512, frames=49), room=Room(1, 0))
    assert right.tiling.engaged == "on"
