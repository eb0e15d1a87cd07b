"""Wan 2.1 and 2.2: text, a picture, or a first and a last picture to video. Apache-2.0, by Alibaba's Wan team.

Defaults of steps, guidance, shift and sizes are those of the configurations in github.com/Wan-Video/Wan2.1 and Wan2.2
(read November 2026); 2.2's A14B models have two transformers, one for the noisy steps and one for the rest, each with
a guidance of its own. Parameters were counted from the published configurations.
"""

from __future__ import annotations

from dataclasses import replace

from app.models.base import Defaults, Family, Figure, Grid, Rules, counted

_TEXT, _PICTURE, _VAE = 5_680_910_336, 630_766_080, 126_892_531
"""Parameters of umT5-XXL's encoder, of CLIP ViT-H's picture encoder, and of the VAE of 2.1."""

_NEGATIVE = (
    "blurry, low quality, compression artefacts, overexposed, washed out, frozen motion, captions, watermark, "
    "misshapen hands, extra fingers, distorted faces"
)

# Sides that were trained go from 480 to 1280. Frames: twice the trained number, so that nobody waits hours by mistake.
_SIDE = Grid(16, 0, 128, 1280)
_RULES = Rules(frames=Grid(4, 1, 5, 161), width=_SIDE, height=_SIDE)
_480P = Defaults(832, 480, 81, 16.0, 50, 5.0, "unipc", 3.0, _NEGATIVE)
_720P = replace(_480P, width=1280, height=720, shift=5.0)

T2V_1_3B = Family(
    name="wan2.1-t2v-1.3b",
    aliases=("wan2.1-1.3b",),
    title="Wan 2.1 T2V 1.3B",
    summary="Small and good for its size: 480p clips of five seconds, from text.",
    licence="Apache-2.0",
    pipeline="WanPipeline",
    defaults=replace(_480P, guidance=6.0, shift=8.0),
    rules=_RULES,
    schedulers=("unipc", "euler"),
    takes=frozenset({"negative_prompt", "shift", "lora"}),
    token_limit=512,
    repos=("Wan-AI/Wan2.1-T2V-1.3B-Diffusers",),
    download=Figure(28_940_000_000, "file listing of the repository, October 2025"),
    memory=counted(1_418_996_800, _TEXT, _VAE),
)

T2V_14B = replace(
    T2V_1_3B,
    name="wan2.1-t2v-14b",
    aliases=("wan2.1-14b",),
    title="Wan 2.1 T2V 14B",
    summary="The large model of 2.1: up to 720p, from text.",
    defaults=_720P,
    repos=("Wan-AI/Wan2.1-T2V-14B-Diffusers",),
    download=Figure(80_400_000_000),
    memory=counted(14_288_491_584, _TEXT, _VAE),
)

I2V_480P = replace(
    T2V_14B,
    name="wan2.1-i2v-14b-480p",
    aliases=("wan2.1-i2v-480p",),
    title="Wan 2.1 I2V 14B 480p",
    summary="Sets a picture in motion, at 480p.",
    pipeline="WanImageToVideoPipeline",
    defaults=replace(_480P, steps=40),
    takes=T2V_14B.takes | {"image"},
    needs=frozenset({"image"}),
    repos=("Wan-AI/Wan2.1-I2V-14B-480P-Diffusers",),
    download=Figure(90_100_000_000),
    memory=counted(16_394_878_784, _TEXT, _PICTURE, _VAE),
)

I2V_720P = replace(
    I2V_480P,
    name="wan2.1-i2v-14b-720p",
    aliases=("wan2.1-i2v-720p",),
    title="Wan 2.1 I2V 14B 720p",
    summary="Sets a picture in motion, at 720p.",
    defaults=replace(_720P, steps=40),
    repos=("Wan-AI/Wan2.1-I2V-14B-720P-Diffusers",),
)

FLF2V = replace(
    I2V_720P,
    name="wan2.1-flf2v-14b-720p",
    aliases=("wan2.1-flf2v",),
    title="Wan 2.1 FLF2V 14B 720p",
    summary="Leads from a first picture to a last one, at 720p.",
    defaults=replace(_720P, shift=16.0),
    takes=I2V_720P.takes | {"last_image"},
    needs=frozenset({"image", "last_image"}),
    repos=("Wan-AI/Wan2.1-FLF2V-14B-720P-diffusers",),
    memory=counted(16_395_536_704, _TEXT, _PICTURE, _VAE),
)

TI2V_5B = replace(
    T2V_1_3B,
    name="wan2.2-ti2v-5b",
    aliases=("wan2.2-5b",),
    title="Wan 2.2 TI2V 5B",
    summary="720p at 24 frames a second, from text or a picture; its VAE makes few tokens of many pixels.",
    defaults=replace(_720P, height=704, frames=121, fps=24.0),
    rules=Rules(frames=Grid(4, 1, 5, 241), width=Grid(32, 0, 128, 1280), height=Grid(32, 0, 128, 1280)),
    takes=T2V_1_3B.takes | {"image"},
    image_pipeline="WanImageToVideoPipeline",
    repos=("Wan-AI/Wan2.2-TI2V-5B-Diffusers",),
    download=Figure(34_200_000_000),
    memory=counted(4_999_787_712, _TEXT, 704_688_668),
)

T2V_A14B = replace(
    T2V_14B,
    name="wan2.2-t2v-a14b",
    aliases=("wan2.2-t2v",),
    title="Wan 2.2 T2V A14B",
    summary="The large model of 2.2, two transformers of 14B in turn: up to 720p, from text.",
    defaults=replace(_720P, steps=40, guidance=4.0, guidance_2=3.0, shift=12.0),
    repos=("Wan-AI/Wan2.2-T2V-A14B-Diffusers",),
    download=Figure(126_200_000_000),
    memory=counted(14_288_491_584, 14_288_491_584, _TEXT, _VAE),
)

I2V_A14B = replace(
    T2V_A14B,
    name="wan2.2-i2v-a14b",
    aliases=("wan2.2-i2v",),
    title="Wan 2.2 I2V A14B",
    summary="Sets a picture in motion, or leads from one to another: up to 720p, two transformers of 14B in turn.",
    pipeline="WanImageToVideoPipeline",
    defaults=replace(_720P, steps=40, guidance=3.5, guidance_2=3.5, shift=5.0),
    takes=T2V_A14B.takes | {"image", "last_image"},
    needs=frozenset({"image"}),
    repos=("Wan-AI/Wan2.2-I2V-A14B-Diffusers",),
    memory=counted(14_288_901_184, 14_288_901_184, _TEXT, _VAE),
)

FAMILIES = (T2V_1_3B, T2V_14B, I2V_480P, I2V_720P, FLF2V, TI2V_5B, T2V_A14B, I2V_A14B)
