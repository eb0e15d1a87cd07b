"""Scores beside the main table: few steps with the LoRA, clips that go on from a picture, other sizes and lengths."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import WanImageToVideoPipeline
from PIL import Image
from torch import Tensor

from app.starter import judge, sheets, world
from app.starter.canvas import Canvas
from app.starter.codec import ClipCodec
from app.starter.model import TEXT_TOKENS
from app.starter.prompts import draw_prompts, frozen_prompts
from app.starter.score import decoded, generate, load, psnr, tell_scores
from app.starter.training import Ranks

FEW = (8, 6, 4)
"""Numbers of steps that the LoRA is scored with."""

CANVASES = (
    Canvas(256, 160, 25),
    Canvas(192, 192, 25),
    Canvas(256, 256, 25),
    Canvas(160, 256, 13),
    Canvas(160, 256, 37),
    Canvas(160, 256, 49),
    Canvas(256, 160, 49),
)
"""Sizes and lengths that are scored; the third, fifth and last were never trained."""


def score_fast(ranks: Ranks, folder: Path, lora: Path, out: Path, limit: int | None = None) -> dict[str, object]:
    """The frozen prompts with the LoRA, without guidance, at `FEW` steps."""
    prompts, pipeline = frozen_prompts()[:limit], load(ranks, folder)
    pipeline.load_lora_weights(lora)
    tables: dict[str, object] = {}
    for steps in FEW:
        clips = generate(ranks, pipeline, [p.prompt for p in prompts], steps, guidance=1.0, seed=7000)
        tables[f"steps {steps}"] = tell_scores(ranks, clips, prompts, out, f"fast{steps}")
    return tables


def load_image_to_video(ranks: Ranks, folder: Path) -> WanImageToVideoPipeline:
    """The stock picture-to-video pipeline on the same weights, fp32."""
    pipeline = WanImageToVideoPipeline(**load(ranks, folder).components, expand_timesteps=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def score_image(ranks: Ranks, folder: Path, out: Path, count: int, steps: int = 20) -> dict[str, object]:
    """Clips from the first frame of true clips (prompts of a list of their own), and how well that frame is kept."""
    prompts, pipeline = draw_prompts(61, count), load_image_to_video(ranks, folder)
    codec = ClipCodec(pipeline.vae)
    true = _rendered(ranks, [p.scene for p in prompts])
    clips = []
    for index, prompt in enumerate(prompts):
        latents = pipeline(
            image=Image.fromarray(true[index, :, 0].permute(1, 2, 0).cpu().numpy()),
            prompt=prompt.prompt,
            height=world.HEIGHT,
            width=world.WIDTH,
            num_frames=world.FRAMES,
            num_inference_steps=steps,
            guidance_scale=4.0,
            generator=torch.Generator().manual_seed(8000 + index),
            output_type="latent",
            max_sequence_length=TEXT_TOKENS,
        ).frames
        clips.append(decoded(ranks, codec, latents))
    made = torch.cat(clips)
    tables = tell_scores(ranks, made, prompts, out, "image")
    kept = psnr(true[:, :, :1].float() / 127.5 - 1, made[:, :, :1].float() / 127.5 - 1)
    return {**tables, "first frame kept, dB": [round(float(kept.mean()), 2), round(float(kept.min()), 2)]}


def score_shapes(ranks: Ranks, folder: Path, out: Path, count: int, steps: int = 20) -> dict[str, object]:
    """Prompts of a list of their own on `CANVASES`, one contact sheet each."""
    prompts, pipeline, judged = draw_prompts(31, count), load(ranks, folder), judge.Judge(ranks.device)
    scenes, tables = [p.scene for p in prompts], {}
    for canvas in CANVASES:
        name = f"{canvas.width}x{canvas.height}x{canvas.frames}"
        batch = max(1, 24 * world.FRAMES // canvas.frames)
        clips = generate(ranks, pipeline, [p.prompt for p in prompts], steps, 4.0, 9000, batch, canvas)
        tables[name] = judge.score_table(judged(clips, scenes), scenes)
        shown = [(p.prompt, clip) for p, clip in zip(prompts, clips, strict=True)]
        sheets.contact_sheet(shown[:12], out / f"shape_{name}.jpg")
    return dict(tables)


def _rendered(ranks: Ranks, scenes: list[world.Scene]) -> Tensor:
    """True clips of scenes that need not be alike."""
    dice = torch.Generator(ranks.device).manual_seed(62)
    return torch.cat([world.render([scene], ranks.device, dice) for scene in scenes])
