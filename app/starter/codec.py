"""The VAE over whole clips, in 2-d convolutions: the path that training takes.

diffusers walks a clip chunk by chunk with a cache and 3-d convolutions. For training, the same function is computed at
once: frames lie in the batch, a convolution with three temporal taps becomes one 2-d convolution over time-shifted
frames stacked along the channels, in channels_last memory, which the GPU's bf16 kernels like best.

Only the small levels (32x20 and 16x10 at 256x160) look at neighbouring frames. At the large levels the two older
temporal taps stay exactly zero: a third of the work here, and on any machine that skips zero taps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import (
    WanCausalConv3d,
    WanMidBlock,
    WanResample,
    WanResidualBlock,
    WanRMS_norm,
    patchify,
    unpatchify,
)
from torch import Tensor, nn

from app.starter.canvas import constant

# Parts whose convolutions see one frame at a time; everything else sees three.
PER_FRAME = (
    "encoder.conv_in",
    "encoder.down_blocks.0",
    "encoder.down_blocks.1.resnets",
    "decoder.up_blocks.2",
    "decoder.up_blocks.3",
    "decoder.conv_out",
)


class ClipCodec(nn.Module):
    """Encode and decode whole clips with the weights of ``vae``; equal to diffusers' chunked path up to rounding.

    Raises:
        ValueError: a clip whose frame count is not 2k+1.
    """

    def __init__(self, vae: AutoencoderKLWan) -> None:
        super().__init__()
        self.vae = vae
        for name, module in vae.named_modules():
            if isinstance(module, WanCausalConv3d):
                per_frame = name.startswith(PER_FRAME) and module.kernel_size[0] == 3
                module.taps = 1 if per_frame or module.kernel_size[0] == 1 else 3
                if per_frame:
                    with torch.no_grad():
                        module.weight[:, :, :-1] = 0

    def encode(self, clips: Tensor) -> Tensor:
        """Clips ``(batch, 3, frames, h, w)`` in -1..1 to means ``(batch, 64, 1 + (frames-1)/2, h/16, w/16)``."""
        if clips.shape[2] % 2 != 1:
            raise ValueError(f"A clip of {clips.shape[2]} frames can't be encoded: the count must be 2k+1.")
        encoder, batch = self.vae.encoder, clips.shape[0]
        x = _conv(encoder.conv_in, _flat(patchify(clips, 2)), batch)
        for block in encoder.down_blocks:
            shortcut = x
            for resnet in block.resnets:
                x = _resnet(resnet, x, batch)
            if block.downsampler is not None:
                x = _downsample(block.downsampler, x, batch)
            x = x + _flat(block.avg_shortcut(_clip(shortcut, batch)))
        x = _mid(encoder.mid_block, x, batch)
        x = _conv(encoder.conv_out, _norm_silu(encoder.norm_out, x), batch)
        return _clip(_conv(self.vae.quant_conv, x, batch)[:, : self.vae.config.z_dim], batch)

    def decode(self, latents: Tensor) -> Tensor:
        """Latents (not standardised) back to clips ``(batch, 3, frames, height, width)``, not clamped."""
        decoder, batch = self.vae.decoder, latents.shape[0]
        x = _conv(decoder.conv_in, _conv(self.vae.post_quant_conv, _flat(latents), batch), batch)
        x = _mid(decoder.mid_block, x, batch)
        for block in decoder.up_blocks:
            shortcut = x
            for resnet in block.resnets:
                x = _resnet(resnet, x, batch)
            if block.upsampler is not None:
                x = _upsample(block.upsampler, x, batch)
                x = x + _flat(block.avg_shortcut(_clip(shortcut, batch), first_chunk=True))
        x = _conv(decoder.conv_out, _norm_silu(decoder.norm_out, x), batch)
        return unpatchify(_clip(x, batch), 2)

    def standardise(self, means: Tensor) -> Tensor:
        """Encoder means to what the transformer sees: zero mean, unit deviation per channel."""
        mean, std = self._statistics(means)
        return (means - mean) / std

    def restore(self, latents: Tensor) -> Tensor:
        """Inverse of :meth:`standardise`."""
        mean, std = self._statistics(latents)
        return latents * std + mean

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        config = self.vae.config
        mean, std = (
            constant(tuple(values), like.device).to(like.dtype).view(1, -1, 1, 1, 1)
            for values in (config.latents_mean, config.latents_std)
        )
        return mean, std


def _flat(clips: Tensor) -> Tensor:
    """``(batch, channels, frames, h, w)`` to ``(batch * frames, channels, h, w)``, channels_last in memory."""
    return clips.transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last)


def _clip(frames: Tensor, batch: int) -> Tensor:
    return frames.unflatten(0, (batch, -1)).transpose(1, 2)


def _shifted(frames: Tensor, batch: int, stride: int, pad: int) -> Tensor:
    """Each output frame's three input frames (oldest first) side by side along the channels."""
    x = frames.unflatten(0, (batch, -1))
    x = F.pad(x, (0, 0, 0, 0, 0, 0, pad, 0))
    count = (x.shape[1] - 3) // stride + 1
    taps = [x[:, k : k + (count - 1) * stride + 1 : stride] for k in range(3)]
    return torch.cat(taps, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last)


def _conv(conv: WanCausalConv3d, x: Tensor, batch: int) -> Tensor:
    weight = conv.weight
    if conv.taps == 3:
        x = _shifted(x, batch, conv.stride[0], conv._padding[4])
        weight = weight.transpose(1, 2).flatten(1, 2)
    else:
        weight = weight[:, :, -1]
    return F.conv2d(x, weight, conv.bias, padding=conv.kernel_size[1] // 2)


def _norm_silu(norm: WanRMS_norm, x: Tensor) -> Tensor:
    scaled = F.normalize(x.float(), dim=1) * norm.scale
    return F.silu(scaled.to(x.dtype) * norm.gamma.view(1, -1, 1, 1).to(x.dtype))


def _resnet(block: WanResidualBlock, x: Tensor, batch: int) -> Tensor:
    shortcut = x if isinstance(block.conv_shortcut, nn.Identity) else _conv(block.conv_shortcut, x, batch)
    x = _conv(block.conv1, _norm_silu(block.norm1, x), batch)
    return _conv(block.conv2, _norm_silu(block.norm2, x), batch) + shortcut


def _mid(block: WanMidBlock, x: Tensor, batch: int) -> Tensor:
    x = _resnet(block.resnets[0], x, batch)
    for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
        x = _flat(attention(_clip(x, batch)))
        x = _resnet(resnet, x, batch)
    return x


def _downsample(resample: WanResample, x: Tensor, batch: int) -> Tensor:
    x = resample.resample(x)
    if resample.mode != "downsample3d":
        return x
    clips = x.unflatten(0, (batch, -1))
    later = _conv(resample.time_conv, x, batch).unflatten(0, (batch, -1))
    return torch.cat([clips[:, :1], later], 1).flatten(0, 1)


def _upsample(resample: WanResample, x: Tensor, batch: int) -> Tensor:
    if resample.mode == "upsample3d":
        clips = x.unflatten(0, (batch, -1))
        if clips.shape[1] > 1:
            later = _conv(resample.time_conv, clips[:, 1:].flatten(0, 1), batch)
            pairs = later.unflatten(0, (batch, -1)).unflatten(2, (2, -1))
            clips = torch.cat([clips[:, :1], pairs.flatten(1, 2)], 1)
        x = clips.flatten(0, 1)
    return resample.resample(x)
