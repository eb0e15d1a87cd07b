"""The starter: the tiny text-to-video model that comes with Kinetile, trained by us on a procedural world."""

from __future__ import annotations

from pathlib import Path

from app.models.base import Defaults, Family, Figure, Grid, Rules, counted

WEIGHTS = Path(__file__).resolve().parent.parent / "starter" / "weights"

STARTER = Family(
    name="starter",
    title="Starter",
    called="The starter",
    summary="Small colourful scenes of one or two objects; comes with Kinetile, runs on any machine in seconds.",
    licence="Apache-2.0",
    pipeline="WanPipeline",
    defaults=Defaults(width=256, height=160, frames=25, fps=8.0, steps=20, guidance=4.0, scheduler="unipc", shift=3.0),
    # 49 frames of 512 x 512 are ten times the clip it was trained on most: beyond that nothing recognisable comes.
    rules=Rules(frames=Grid(4, 1, 5, 49), width=Grid(32, 0, 64, 512), height=Grid(32, 0, 64, 512)),
    schedulers=("unipc",),
    takes=frozenset({"negative_prompt", "shift", "image", "lora"}),
    token_limit=64,
    knows=("ball", "box", "star", "heart", "fish", "car", "boat", "rocket", "balloon", "bird", "tree", "house"),
    folder=WEIGHTS,
    loras={"fast": "fast/pytorch_lora_weights.safetensors"},
    image_pipeline="WanImageToVideoPipeline",
    image_settings={"expand_timesteps": True},
    download=Figure(0, "part of the repository"),
    memory=counted(11_506_944, 4_849_908, 823_040),
)

FAMILIES = (STARTER,)
