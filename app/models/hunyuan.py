"""HunyuanVideo and HunyuanVideo 1.5 by Tencent: text to video.

HunyuanVideo was taught to read its guidance as a number, so that a step is one forward, and has no use for a negative
prompt. 1.5 is guided by a second forward, through the guider that its pipeline holds; that pipeline tells nothing
after its steps. Shifts, guidance and sizes are those of diffusers' conversion scripts, pipelines and documentation
(read November 2026); parameters were counted from the published configurations.
"""

from __future__ import annotations

from dataclasses import replace

from app.models.base import Defaults, Family, Figure, Grid, Rules, counted

_SIDE = Grid(16, 0, 128, 1280)

HUNYUAN = Family(
    name="hunyuanvideo",
    aliases=("hunyuan",),
    title="HunyuanVideo",
    summary="13B, good at people and camera moves: up to 720p at 24 frames a second, from text.",
    licence="Tencent Hunyuan Community License",
    pipeline="HunyuanVideoPipeline",
    vae_class="AutoencoderKLHunyuanVideo",
    defaults=Defaults(960, 544, 129, 24.0, 50, 6.0, "euler", 7.0),
    rules=Rules(frames=Grid(4, 1, 5, 129), width=_SIDE, height=_SIDE),
    schedulers=("euler",),
    takes=frozenset({"shift", "lora"}),
    token_limit=256,
    guidance_kind="embedded",
    repos=("hunyuanvideo-community/HunyuanVideo",),
    download=Figure(41_900_000_000),
    memory=counted(12_821_012_544, 7_505_186_816, 123_060_480, 246_478_803),
)

V15_480P = Family(
    name="hunyuanvideo-1.5-480p",
    aliases=("hunyuanvideo-1.5", "hunyuan-1.5"),
    title="HunyuanVideo 1.5 480p",
    summary="8B, lighter than its forerunner: 480p at 24 frames a second, from text; writes what stands in quotes.",
    licence="Tencent Hunyuan Community License",
    pipeline="HunyuanVideo15Pipeline",
    vae_class="AutoencoderKLHunyuanVideo15",
    defaults=Defaults(848, 480, 121, 24.0, 50, 6.0, "euler", 5.0),
    rules=Rules(frames=Grid(4, 1, 5, 241), width=_SIDE, height=_SIDE),
    schedulers=("euler",),
    takes=frozenset({"negative_prompt", "shift"}),
    token_limit=1000,
    guidance_kind="guider",
    callback=False,
    repos=("hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-480p_t2v",),
    memory=counted(8_326_608_160, 7_070_619_136, 219_314_944, 1_260_634_115),
)

V15_720P = replace(
    V15_480P,
    name="hunyuanvideo-1.5-720p",
    aliases=(),
    title="HunyuanVideo 1.5 720p",
    summary="8B, lighter than its forerunner: 720p at 24 frames a second, from text; writes what stands in quotes.",
    defaults=replace(V15_480P.defaults, width=1280, height=720, shift=9.0),
    repos=("hunyuanvideo-community/HunyuanVideo-1.5-Diffusers-720p_t2v",),
)

FAMILIES = (HUNYUAN, V15_480P, V15_720P)
