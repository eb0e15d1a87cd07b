"""Convolutions one by one, and a whole small video VAE, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from accel.checking.line import Line, line_for, random, relative
from accel.convolutions import swap_convolutions
from accel.report import Tally


def convolution_lines(backend: Any) -> Iterator[Line]:
    for name in backend.dtypes:
        yield _convolution_line(backend, getattr(torch, name))
        yield _decode_line(backend, getattr(torch, name))


def _convolution_line(backend: Any, dtype: torch.dtype) -> Line:
    line = line_for(backend, dtype, "conv3d")
    shapes = [
        (8, 16, 3, 1, 1),
        (16, 8, 1, 0, 1),
        (12, 12, 3, 0, 2),
        (16, 16, (3, 1, 1), 0, 1),
        (4, 20, (1, 3, 3), (0, 1, 1), 1),
    ]
    for ins, outs, kernel, padding, stride in shapes:
        for zero in (None, slice(0, 1), slice(0, 2), slice(2, 3)):
            torch.manual_seed(ins)
            conv: Any = torch.nn.Conv3d(ins, outs, kernel, stride, padding).to(dtype).requires_grad_(False)  # type: ignore[arg-type]
            if zero is not None:
                conv.weight[:, :, zero] = 0
            for batch, frames in ((1, 4), (3, 5)):
                inputs = random(batch, ins, frames, 9, 11, dtype=dtype)
                wide = inputs.double(), conv.weight.double(), conv.bias.double()
                want = F.conv3d(*wide, conv.stride, conv.padding)
                for last in (False, True):
                    undo = swap_convolutions(conv, Tally("check", "vae", backend.name), backend.dtypes, last)
                    line.add(
                        f"{batch} x {ins} -> {outs}, kernel {kernel}, taps {zero}", relative(conv(inputs), want), True
                    )
                    undo()
    return line


def _decode_line(backend: Any, dtype: torch.dtype) -> Line:
    """A whole small Wan VAE, encoded and decoded, cached frames and all."""
    from diffusers import AutoencoderKLWan

    torch.manual_seed(0)
    widths = {"base_dim": 8, "z_dim": 4, "dim_mult": [1, 2, 2], "num_res_blocks": 1}
    statistics = {"latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
    vae: Any = AutoencoderKLWan(temperal_downsample=[False, True], **widths, **statistics).eval()
    line = line_for(backend, dtype, "Wan VAE, both ways")
    # errors of a whole network: each of some twenty layers rounds
    line.limit *= 5
    clip, latents = random(1, 3, 5, 32, 32, dtype=dtype, seed=1), random(1, 4, 3, 8, 8, dtype=dtype, seed=2)
    with torch.inference_mode():
        torch.nn.Module.to(vae, dtype).double()  # the reference starts from the same rounded weights
        exact = vae.decode(latents.double()).sample, vae.encode(clip.double()).latent_dist.mean
        torch.nn.Module.to(vae, dtype)
        tally = Tally("check", "vae", backend.name)
        undo = backend.apply(vae, tally)
        got = vae.decode(latents).sample, vae.encode(clip).latent_dist.mean
        undo()
    for name, ours, theirs in zip(("decode", "encode"), got, exact, strict=True):
        line.add(name, relative(ours, theirs), bool(tally.served_calls))
    return line
