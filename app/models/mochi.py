"""Mochi 1 by Genmo: text to video, 480p at 30 frames a second.

Its VAE makes one latent frame of six, and its pipeline runs a schedule of its own (linear, then quadratic), which
nobody shifts and which needs two steps at least. Defaults are those of diffusers' pipeline and documentation (read
November 2026); parameters were counted from the published configurations.
"""

from __future__ import annotations

from app.models.base import Defaults, Family, Figure, Grid, Rules, counted

_SIDE = Grid(16, 0, 128, 1280)

MOCHI = Family(
    name="mochi-1",
    aliases=("mochi",),
    title="Mochi 1",
    summary="Smooth motion: up to five seconds of 480p at 30 frames a second, from text.",
    licence="Apache-2.0",
    pipeline="MochiPipeline",
    vae_class="AutoencoderKLMochi",
    defaults=Defaults(848, 480, 85, 30.0, 64, 4.5, "euler", None),
    rules=Rules(frames=Grid(6, 1, 7, 163), width=_SIDE, height=_SIDE, min_steps=2),
    schedulers=("euler",),
    takes=frozenset({"negative_prompt", "lora"}),
    token_limit=256,
    repos=("genmo/mochi-1-preview",),
    download=Figure(60_000_000_000),
    memory=counted(10_027_677_744, 4_762_310_656, 459_748_611),
)

FAMILIES = (MOCHI,)
