"""What a starter is worth: the VAE's two gates, and the judge's table on prompts that training never saw."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanPipeline
from torch import Tensor

from app.starter import judge, sheets, world
from app.starter.canvas import Canvas
from app.starter.codec import ClipCodec
from app.starter.model import LATENT_CHANNELS, TEXT_TOKENS
from app.starter.prompts import JudgedPrompt, draw_prompts, frozen_prompts
from app.starter.training import Ranks


def psnr(clips: Tensor, again: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of each clip, both ``(n, 3, frames, h, w)`` in -1..1."""
    return -10 * torch.log10((clips - again).square().mean((1, 2, 3, 4)) / 4)


def fresh_clips(seed: int, groups: int, size: int, device: torch.device) -> Tensor:
    """Clips of scenes drawn from ``seed``, uint8; training draws from other seeds."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    return torch.cat([world.render(world.random_group(rng, size), device) for _ in range(groups)])


def principal_components(clips: Tensor, components: int) -> tuple[Tensor, Tensor]:
    """Mean and leading components of the codec's own blocks (16 x 16 pixels x 2 frames), in fp64."""
    blocks = _blocks(clips).double()
    mean = blocks.mean(0)
    covariance = (blocks - mean).T @ (blocks - mean) / len(blocks)
    return mean, torch.linalg.eigh(covariance).eigenvectors[:, -components:]


def _blocks(clips: Tensor) -> Tensor:
    """Every frame pair after the first frame, cut into blocks: ``(blocks, 3 * 2 * 16 * 16)`` in -1..1."""
    x = clips[:, :, 1:].float() / 127.5 - 1
    n, c, t, h, w = x.shape
    x = x.reshape(n, c, t // 2, 2, h // 16, 16, w // 16, 16).permute(0, 2, 4, 6, 1, 3, 5, 7)
    return x.reshape(-1, c * 2 * 16 * 16)


@torch.no_grad()
def vae_gates(ranks: Ranks, vae_folder: Path, sheet: Path) -> dict[str, object]:
    """PSNR of the VAE and of PCA with as many numbers on unseen clips, and the judge on true clips through the VAE."""
    vae = AutoencoderKLWan.from_pretrained(vae_folder, torch_dtype=torch.float32).to(ranks.device)
    codec = ClipCodec(vae)
    mean, basis = principal_components(fresh_clips(901, 24, 8, ranks.device), LATENT_CHANNELS)
    unseen = fresh_clips(902, 16, 4, ranks.device)
    again = through(ranks, codec, unseen)
    blocks = _blocks(unseen).double()
    error = (blocks - mean) - (blocks - mean) @ basis @ basis.T
    exact = unseen.float() / 127.5 - 1
    decoded = again.float() / 127.5 - 1
    joint = -10 * torch.log10((exact[:, :, 1:] - decoded[:, :, 1:]).square().mean() / 4)
    scenes = [p.scene for p in frozen_prompts()[:120]]
    torch.manual_seed(903)
    true = torch.cat([world.render([scene], ranks.device) for scene in scenes])
    passed = through(ranks, codec, true)
    pick = range(0, 64, 6)
    rows = [(f"true {i}", unseen[i]) for i in pick] + [(f"vae {i}", again[i]) for i in pick]
    sheets.contact_sheet([r for pair in zip(rows[: len(pick)], rows[len(pick) :], strict=True) for r in pair], sheet)
    return {
        "psnr_mean": round(float(psnr(exact, decoded).mean()), 2),
        "psnr_worst": round(float(psnr(exact, decoded).min()), 2),
        "psnr_joint": round(float(joint), 2),
        "pca_joint": round(float(-10 * torch.log10(error.square().mean() / 4)), 2),
        "judge_on_true_clips": judge.score_table(judge.Judge(ranks.device)(true, scenes), scenes),
        "judge_through_vae": judge.score_table(judge.Judge(ranks.device)(passed, scenes), scenes),
    }


@torch.no_grad()
def through(ranks: Ranks, codec: ClipCodec, clips: Tensor) -> Tensor:
    """uint8 clips encoded and decoded, uint8."""
    with ranks.autocast():
        return torch.cat([_to_uint8(codec.decode(codec.encode(part.float() / 127.5 - 1))) for part in clips.split(8)])


def _to_uint8(clips: Tensor) -> Tensor:
    return ((clips.float().clamp(-1, 1) + 1) * 127.5 + 0.5).to(torch.uint8)


@torch.no_grad()
def generate(
    ranks: Ranks,
    pipeline: WanPipeline,
    prompts: Sequence[str],
    steps: int,
    guidance: float,
    seed: int,
    batch: int = 50,
    canvas: Canvas = world.CANVAS,
) -> Tensor:
    """One clip per prompt through the stock pipeline (seed + index), decoded over whole clips; uint8."""
    codec = ClipCodec(pipeline.vae)
    clips = []
    for start in range(0, len(prompts), batch):
        part = list(prompts[start : start + batch])
        generators = [torch.Generator().manual_seed(seed + start + i) for i in range(len(part))]
        latents = pipeline(
            prompt=part,
            height=canvas.height,
            width=canvas.width,
            num_frames=canvas.frames,
            num_inference_steps=steps,
            guidance_scale=guidance,
            generator=generators,
            output_type="latent",
            max_sequence_length=TEXT_TOKENS,
        ).frames
        clips.append(decoded(ranks, codec, latents))
    return torch.cat(clips)


@torch.no_grad()
def decoded(ranks: Ranks, codec: ClipCodec, latents: Tensor) -> Tensor:
    """Standardised latents to clips, uint8."""
    with ranks.autocast():
        return torch.cat([_to_uint8(codec.decode(part)) for part in codec.restore(latents.float()).split(8)])


def load(ranks: Ranks, folder: Path) -> WanPipeline:
    """The pipeline as users get it, fp32, quiet."""
    pipeline = WanPipeline.from_pretrained(folder, torch_dtype=torch.float32).to(ranks.device)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def score(ranks: Ranks, folder: Path, out: Path, limit: int | None = None, steps: int = 20) -> dict[str, object]:
    """Score the frozen prompts at guidance 4; scores.json and pictures to look at in ``out``."""
    prompts = frozen_prompts()[:limit]
    clips = generate(ranks, load(ranks, folder), [p.prompt for p in prompts], steps, guidance=4.0, seed=7000)
    return tell_scores(ranks, clips, prompts, out, "scores")


def tell_scores(
    ranks: Ranks, clips: Tensor, prompts: Sequence[JudgedPrompt], out: Path, name: str
) -> dict[str, object]:
    """Judge clips; tables and verdicts to ``name.json``, a contact sheet to ``name.jpg``, thirty clips to ``name/``."""
    scenes = [p.scene for p in prompts]
    verdicts = judge.Judge(ranks.device)(clips, scenes)
    tables: dict[str, object] = {"all": judge.score_table(verdicts, scenes)}
    for kind in sorted({p.kind for p in prompts}):
        chosen = [i for i, p in enumerate(prompts) if p.kind == kind]
        tables[kind] = judge.score_table([verdicts[i] for i in chosen], [scenes[i] for i in chosen])
    for motion in world.MOTIONS:
        chosen = [i for i, s in enumerate(scenes) if s.motion == motion and s.shape2 is None and s.camera == "still"]
        tables[f"motion {motion}"] = judge.score_table([verdicts[i] for i in chosen], [scenes[i] for i in chosen])
    shown = [i for i in range(len(prompts)) if i % max(1, len(prompts) // 30) == 0]
    sheets.contact_sheet([(prompts[i].prompt, clips[i]) for i in shown], out / f"{name}.jpg")
    for i in shown:
        sheets.frames_sheet(clips[i], out / name / f"{i:03}.jpg")
    details = [{"prompt": p.prompt, "kind": p.kind, **asdict(v)} for p, v in zip(prompts, verdicts, strict=True)]
    (out / f"{name}.json").write_text(json.dumps({"tables": tables, "verdicts": details}, indent=1))
    return tables


def sweep(ranks: Ranks, folder: Path, seed: int = 31, count: int = 96) -> dict[str, object]:
    """Steps and guidance on prompts drawn from another seed than the frozen ones, to choose the defaults."""
    drawn = draw_prompts(seed, count)
    scenes, pipeline, judged = [p.scene for p in drawn], load(ranks, folder), judge.Judge(ranks.device)
    tables: dict[str, object] = {}
    for steps, guidance in ((20, 2.0), (20, 3.0), (20, 4.0), (20, 5.5), (20, 7.0), (8, 4.0), (12, 4.0), (30, 4.0)):
        clips = generate(ranks, pipeline, [p.prompt for p in drawn], steps, guidance, seed=9000)
        tables[f"steps {steps} guidance {guidance:g}"] = judge.score_table(judged(clips, scenes), scenes)
    return tables
