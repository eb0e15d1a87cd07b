"""First stage: the VAE, from nothing, on rendered clips. Two gates: better than PCA, and the judge sees the objects.

`train_decoder` goes on with the decoder alone: the latents stay what they are, so that a transformer can be trained on
them meanwhile.
"""

from __future__ import annotations

import math
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor, nn

from app.starter import world
from app.starter.canvas import Canvas
from app.starter.codec import ClipCodec
from app.starter.mix import training_group
from app.starter.model import LATENT_CHANNELS, build_vae
from app.starter.saving import replace_folder
from app.starter.training import Average, Clock, Flat, Ranks, learning_rate_factor

LATENT_NOISE = 0.12  # largest deviation of the noise the decoder must bear; a sampler's latents are never exact
SIZE_PENALTY = 1e-3  # keeps latents near unit size, so that the noise means something


class ClipPool:
    """Rendered clips on the device, the oldest replaced as training goes on.

    Drawn as the transformer's, with more that is small or spins: there a decoder loses outlines first. Half of the
    groups are loose (see `Dice`), as pictures of users are.
    """

    def __init__(
        self, rng: random.Random, clips: int, group: int, device: torch.device, canvas: Canvas = world.CANVAS
    ) -> None:
        self.rng, self.group, self.device, self.canvas, self.next = rng, group, device, canvas, 0
        self.clips = torch.cat([self._group() for _ in range(max(1, clips // group))])

    def _group(self) -> Tensor:
        scenes, loose = training_group(self.rng, self.group), self.rng.random() < 0.5
        return world.render(scenes, self.device, canvas=self.canvas, loose=loose)

    def refresh(self) -> Tensor:
        """Replace the oldest group; returns the new one, uint8."""
        fresh = self._group()
        self.clips[self.next : self.next + self.group] = fresh
        self.next = (self.next + self.group) % len(self.clips)
        return fresh

    def batch(self, size: int) -> Tensor:
        """``(size, 3, frames, height, width)`` in -1..1."""
        chosen = torch.randint(0, len(self.clips), (size,), device=self.device)
        return self.clips[chosen].float() / 127.5 - 1


def reconstruction_loss(clips: Tensor, again: Tensor) -> dict[str, Tensor]:
    """L1 and L2 for the colours, first differences for outlines (x, y) and flicker (time)."""
    error = again - clips
    outlines = error.diff(dim=3).abs().mean() + error.diff(dim=4).abs().mean()
    flicker = error.diff(dim=2).abs().mean()
    return {"l1": error.abs().mean(), "l2": error.square().mean(), "outlines": outlines, "flicker": flicker}


class VaeStep(nn.Module):
    """Encode, disturb, decode, compare: one compiled graph."""

    def __init__(self, codec: ClipCodec) -> None:
        super().__init__()
        self.codec = codec

    def forward(self, clips: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        means = self.codec.encode(clips).float()
        again = self.codec.decode(means + noise).float()
        parts = reconstruction_loss(clips, again)
        loss = parts["l1"] + 2 * parts["l2"] + 0.7 * parts["outlines"] + 0.4 * parts["flicker"]
        return loss + SIZE_PENALTY * means.square().mean(), parts["l2"].detach(), parts["outlines"].detach()


def train_vae(
    ranks: Ranks, seconds: float, out: Path, batch: int = 8, pool: int = 2048, group: int = 32, rate: float = 1.5e-3
) -> None:
    """Train for ``seconds`` and write ``out`` (a diffusers VAE folder, fp32) from the averaged weights."""
    torch.manual_seed(5)
    vae = build_vae().to(ranks.device)
    codec = ClipCodec(vae)
    parameters = list(vae.parameters())
    ranks.share(p.data for p in parameters)
    torch.manual_seed(100 + ranks.rank)
    clips = ClipPool(random.Random(100 + ranks.rank), pool, group, ranks.device)
    step_module = VaeStep(codec)
    run = torch.compile(step_module, dynamic=False) if ranks.cuda else step_module
    optimiser = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=ranks.cuda)
    average = Average(parameters, 0.998)
    clock, step, seen = Clock(ranks, seconds), 0, []
    shape = (batch, LATENT_CHANNELS, (world.FRAMES + 1) // 2, world.HEIGHT // 16, world.WIDTH // 16)
    while (passed := clock.tick(step)) < 1:
        for parameters_group in optimiser.param_groups:
            parameters_group["lr"] = rate * learning_rate_factor(step, passed, warmup=150, flat_until=0.35)
        if step % 8 == 0:
            clips.refresh()
        size = LATENT_NOISE * torch.rand(batch, 1, 1, 1, 1, device=ranks.device)
        with ranks.autocast():
            loss, squared, outlines = run(clips.batch(batch), size * torch.randn(shape, device=ranks.device))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        ranks.average_gradients(parameters)
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimiser.step()
        average.update()
        step += 1
        seen.append(torch.stack([squared, outlines]))
        if step % 200 == 0 or step in (5, 50):
            _report(ranks, clock, step, batch, seen)
            seen = []
    average.apply()
    _finish(ranks, codec, clips, out, step * batch * ranks.size)


def _report(ranks: Ranks, clock: Clock, step: int, batch: int, seen: list[Tensor]) -> None:
    squared, outlines = torch.stack(seen).mean(0).tolist()
    rate = step * batch * ranks.size / clock.elapsed()
    ranks.say(
        f"vae step {step} {clock.elapsed():.0f}s psnr {-10 * math.log10(squared / 4):.2f} "
        f"outlines {outlines:.4f} clips/s {rate:.0f}"
    )


@torch.no_grad()
def _finish(ranks: Ranks, codec: ClipCodec, clips: ClipPool, out: Path, clips_seen: int) -> None:
    """Latent statistics over eight fresh groups into the config, log-variance made constant, weights written."""
    vae: AutoencoderKLWan = codec.vae
    vae.quant_conv.weight[LATENT_CHANNELS:] = 0
    vae.quant_conv.bias[LATENT_CHANNELS:] = 2 * math.log(0.02)
    means = []
    for _ in range(8):
        with ranks.autocast():
            means.append(codec.encode(clips.refresh().float() / 127.5 - 1).float())
    stacked = torch.cat(means)
    mean, std = stacked.mean((0, 2, 3, 4)), stacked.std((0, 2, 3, 4))
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    ranks.say(f"vae done: {clips_seen} clips seen; latent deviation {std.min():.2f}...{std.max():.2f}")
    if ranks.first:
        vae.save_pretrained(out)


class LatentClips:
    """Clips and their latents on the device; the oldest replaced, encoded once each."""

    def __init__(self, ranks: Ranks, codec: ClipCodec, pool: int, group: int, seed: int, canvas: Canvas) -> None:
        self.ranks, self.codec, self.dice = ranks, codec, ranks.dice(seed)
        self.clips = ClipPool(random.Random(1000 * seed + ranks.rank), pool, group, ranks.device, canvas)
        self.latents = torch.cat([self._encode(part) for part in self.clips.clips.split(group)])

    @torch.no_grad()
    def _encode(self, clips: Tensor) -> Tensor:
        with self.ranks.autocast():
            return torch.cat([self.codec.encode(part.float() / 127.5 - 1).float() for part in clips.split(8)])

    def refresh(self) -> None:
        """Replace the oldest group."""
        start = self.clips.next
        self.latents[start : start + self.clips.group] = self._encode(self.clips.refresh())

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Clips ``(size, 3, frames, h, w)`` in -1..1 and their latents with noise of random strength."""
        device = self.latents.device
        chosen = torch.randint(0, len(self.latents), (size,), device=device, generator=self.dice)
        strength = LATENT_NOISE * torch.rand(size, 1, 1, 1, 1, device=device, generator=self.dice)
        noise = torch.randn(size, *self.latents.shape[1:], device=device, generator=self.dice)
        return self.clips.clips[chosen].float() / 127.5 - 1, self.latents[chosen] + strength * noise


class DecoderStep(nn.Module):
    """Decode and compare: one compiled graph. L2 counts more than in `VaeStep`: colours are right by now."""

    def __init__(self, codec: ClipCodec) -> None:
        super().__init__()
        self.codec = codec

    def forward(self, clips: Tensor, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        parts = reconstruction_loss(clips, self.codec.decode(latents).float())
        loss = parts["l1"] + 6 * parts["l2"] + 0.7 * parts["outlines"] + 0.3 * parts["flicker"]
        return loss, parts["l2"].detach(), parts["outlines"].detach()


def train_decoder(
    ranks: Ranks,
    seconds: float,
    start: Path,
    out: Path,
    batch: int = 16,
    pool: int = 2048,
    group: int = 32,
    rate: float = 8e-4,
    canvas: Canvas = world.CANVAS,
) -> None:
    """Train the decoder of the VAE in ``start`` for ``seconds``, compiling included, and write the VAE to ``out``."""
    began = time.monotonic()
    vae = AutoencoderKLWan.from_pretrained(start, torch_dtype=torch.float32).to(ranks.device).requires_grad_(False)
    codec = ClipCodec(vae)
    parameters = [*vae.post_quant_conv.parameters(), *vae.decoder.parameters()]
    for parameter in parameters:
        parameter.requires_grad_(True)
    flat = Flat([parameters])
    clips = LatentClips(ranks, codec, pool, group, 9, canvas)
    step_module = DecoderStep(codec)
    run: Callable[..., tuple[Tensor, Tensor, Tensor]] = step_module
    if ranks.cuda:
        torch._dynamo.config.suppress_errors = True  # plain calls where compiling fails; torch logs why
        run = torch.compile(step_module, dynamic=False)
    optimiser = torch.optim.AdamW(flat.groups, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=ranks.cuda)
    average = Average([flat.data], 0.998)

    def gradients() -> Tensor:
        flat.grad.zero_()
        with ranks.autocast():
            loss, squared, outlines = run(*clips.batch(batch))
        loss.backward()
        return torch.stack([squared, outlines])

    gradients()
    ranks.wait()
    ranks.say(f"decoder: ready after {time.monotonic() - began:.0f}s")
    clock, step, seen = Clock(ranks, seconds - (time.monotonic() - began)), 0, []
    while (passed := clock.tick(step)) < 1:
        optimiser.param_groups[0]["lr"] = rate * learning_rate_factor(step, passed, warmup=100, flat_until=0.3)
        if step % 8 == 0:
            clips.refresh()
        seen.append(gradients())
        ranks.average(flat.grad)
        flat.clip(1.0)
        optimiser.step()
        average.update()
        step += 1
        if step % 200 == 0 or step in (5, 50):
            _report(ranks, clock, step, batch, seen)
            seen = []
    average.apply()
    ranks.say(f"decoder done: {step * batch * ranks.size} clips seen")
    if ranks.first:
        new = out.with_name(out.name + ".new")
        shutil.rmtree(new, ignore_errors=True)
        vae.save_pretrained(new)
        replace_folder(new, out)
