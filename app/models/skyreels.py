"""SkyReels V2 by Skywork: text or a picture to video, at 24 frames a second; built on Wan 2.1.

The DF models were trained by diffusion forcing, where each frame may be as noisy as it likes; here all frames go step
by step together, for as many frames as one window holds. Sizes and frames are those of the table in
github.com/SkyworkAI/SkyReels-V2; shift, guidance and steps those of diffusers' documentation (read November 2026);
parameters were counted from the published configurations.
"""

from __future__ import annotations

from dataclasses import replace

from app.models.base import Defaults, Family, Grid, Rules, counted

_TEXT, _PICTURE, _VAE = 5_680_910_336, 632_076_800, 126_892_531
"""Parameters of umT5-XXL's encoder, of CLIP ViT-H's picture encoder, and of Wan 2.1's VAE."""

_NEGATIVE = "blurry, low quality, compression artefacts, overexposed, static, captions, watermark, distorted faces"
_SIDE = Grid(16, 0, 128, 1280)
_RULES = Rules(frames=Grid(4, 1, 5, 193), width=_SIDE, height=_SIDE)
_540P = Defaults(960, 544, 97, 24.0, 50, 6.0, "unipc", 8.0, _NEGATIVE)
_720P = replace(_540P, width=1280, height=720, frames=121)

DF_1_3B = Family(
    name="skyreels-v2-df-1.3b",
    aliases=("skyreels-v2",),
    title="SkyReels V2 DF 1.3B",
    summary="Small, for film-like scenes: 540p clips of four seconds, from text.",
    licence="Skywork License",
    pipeline="SkyReelsV2DiffusionForcingPipeline",
    defaults=replace(_540P, steps=30),
    rules=replace(_RULES, frames=Grid(4, 1, 5, 97)),
    schedulers=("unipc",),
    takes=frozenset({"negative_prompt", "shift", "lora"}),
    token_limit=512,
    repos=("Skywork/SkyReels-V2-DF-1.3B-540P-Diffusers",),
    memory=counted(1_435_525_696, _TEXT, _VAE),
)

DF_14B = replace(
    DF_1_3B,
    name="skyreels-v2-df-14b",
    aliases=(),
    title="SkyReels V2 DF 14B",
    summary="The large diffusion-forcing model: 540p clips of four seconds, from text.",
    repos=("Skywork/SkyReels-V2-DF-14B-540P-Diffusers",),
    memory=counted(14_288_491_584, _TEXT, _VAE),
)

T2V_540P = replace(
    DF_14B,
    name="skyreels-v2-t2v-14b-540p",
    title="SkyReels V2 T2V 14B 540p",
    summary="Film-like scenes at 540p, from text.",
    pipeline="SkyReelsV2Pipeline",
    defaults=_540P,
    rules=_RULES,
    repos=("Skywork/SkyReels-V2-T2V-14B-540P-Diffusers",),
)

T2V_720P = replace(
    T2V_540P,
    name="skyreels-v2-t2v-14b-720p",
    title="SkyReels V2 T2V 14B 720p",
    summary="Film-like scenes at 720p, from text.",
    defaults=_720P,
    repos=("Skywork/SkyReels-V2-T2V-14B-720P-Diffusers",),
)

I2V_1_3B = replace(
    T2V_540P,
    name="skyreels-v2-i2v-1.3b",
    title="SkyReels V2 I2V 1.3B",
    summary="Small: sets a picture in motion, at 540p.",
    pipeline="SkyReelsV2ImageToVideoPipeline",
    defaults=replace(_540P, guidance=5.0, shift=5.0),
    takes=T2V_540P.takes | {"image"},
    needs=frozenset({"image"}),
    repos=("Skywork/SkyReels-V2-I2V-1.3B-540P-Diffusers",),
    memory=counted(1_564_428_608, _TEXT, _PICTURE, _VAE),
)

I2V_540P = replace(
    I2V_1_3B,
    name="skyreels-v2-i2v-14b-540p",
    title="SkyReels V2 I2V 14B 540p",
    summary="Sets a picture in motion, at 540p.",
    repos=("Skywork/SkyReels-V2-I2V-14B-540P-Diffusers",),
    memory=counted(16_394_878_784, _TEXT, _PICTURE, _VAE),
)

I2V_720P = replace(
    I2V_540P,
    name="skyreels-v2-i2v-14b-720p",
    title="SkyReels V2 I2V 14B 720p",
    summary="Sets a picture in motion, at 720p.",
    defaults=replace(_720P, guidance=5.0, shift=5.0),
    repos=("Skywork/SkyReels-V2-I2V-14B-720P-Diffusers",),
)

FAMILIES = (DF_1_3B, DF_14B, T2V_540P, T2V_720P, I2V_1_3B, I2V_540P, I2V_720P)
