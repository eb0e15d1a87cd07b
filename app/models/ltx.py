"""LTX-Video by Lightricks: fast, because its VAE makes one token of 32x32 pixels in eight frames.

Versions since 0.9.5 take pictures for any frame, through diffusers' condition pipeline. The schedule's shift follows
the clip's size, or is a fixed curve; nobody chooses it. Arguments and limits are those that Lightricks and diffusers
document (read November 2026): best up to 257 frames and 1280x720; the decoder takes a timestep since 0.9.1. Parameters
were counted from the published configurations.
"""

from __future__ import annotations

from dataclasses import replace

from app.models.base import Defaults, Family, Figure, Grid, Rules, counted

_TEXT = 4_762_310_656
"""Parameters of T5 1.1 XXL's encoder."""
_2B, _13B = 1_923_385_472, 13_042_569_344

_SIDE = Grid(32, 0, 128, 1280)
_DECODER = {"decode_timestep": 0.05, "decode_noise_scale": 0.025}
_LICENCE = "LTX-Video Open Weights License 0.X"

V090 = Family(
    name="ltx-2b-0.9",
    title="LTX-Video 2B 0.9",
    summary="The first LTX-Video: fast clips of five seconds, from text or a first picture.",
    licence="LTX-Video 2B v0.9 licence",
    pipeline="LTXPipeline",
    image_pipeline="LTXImageToVideoPipeline",
    vae_class="AutoencoderKLLTXVideo",
    defaults=Defaults(
        width=768,
        height=512,
        frames=121,
        fps=24.0,
        steps=40,
        guidance=3.0,
        scheduler="euler",
        shift=None,
        negative_prompt="low quality, blurry, jitter, distortion, uneven motion",
    ),
    # Its schedule is stretched between the first step and the last: a single one comes out as no number at all.
    rules=Rules(frames=Grid(8, 1, 9, 257), width=_SIDE, height=_SIDE, min_steps=2),
    schedulers=("euler",),
    takes=frozenset({"negative_prompt", "image", "lora"}),
    token_limit=128,
    repos=("Lightricks/LTX-Video",),
    download=Figure(28_400_000_000),
    memory=counted(_2B, _TEXT, 419_193_649),
)

V091 = replace(
    V090,
    name="ltx-2b-0.9.1",
    title="LTX-Video 2B 0.9.1",
    summary="Fast clips of five seconds, from text or a first picture.",
    licence="LTX-Video 2B v0.9.1 licence",
    arguments=_DECODER,
    repos=("Lightricks/LTX-Video-0.9.1",),
    download=Figure(25_000_000_000, "file listing of the repository, 2026"),
    memory=counted(_2B, _TEXT, 934_991_538),
)

V095 = replace(
    V091,
    name="ltx-2b-0.9.5",
    aliases=("ltx-2b", "ltx"),
    title="LTX-Video 2B 0.9.5",
    summary="Fast clips of five seconds, from text, a first picture, or a first and a last one.",
    licence=_LICENCE,
    pipeline="LTXConditionPipeline",
    image_pipeline="",
    takes=V091.takes | {"last_image"},
    token_limit=256,
    repos=("Lightricks/LTX-Video-0.9.5",),
    download=Figure(None),
    memory=counted(_2B, _TEXT, 1_246_913_522),
)

V097 = replace(
    V095,
    name="ltx-13b-0.9.7",
    aliases=("ltx-13b",),
    title="LTX-Video 13B 0.9.7",
    summary="The large LTX-Video: finer than 2B and still quick, from text or pictures.",
    defaults=replace(V095.defaults, steps=30, guidance=5.0),
    arguments={**_DECODER, "guidance_rescale": 0.7, "image_cond_noise_scale": 0.0},
    repos=("Lightricks/LTX-Video-0.9.7-dev",),
    memory=counted(_13B, _TEXT, 1_246_913_522),
)

V098_DISTILLED = replace(
    V097,
    name="ltx-13b-0.9.8-distilled",
    aliases=("ltx-13b-distilled",),
    title="LTX-Video 13B 0.9.8 distilled",
    summary="The large LTX-Video in eight steps without guidance, from text or pictures.",
    defaults=replace(V097.defaults, steps=8, guidance=1.0, negative_prompt=""),
    arguments={**_DECODER, "image_cond_noise_scale": 0.0},
    timesteps=(1000, 993, 987, 981, 975, 909, 725, 0.03),
    repos=("Lightricks/LTX-Video-0.9.8-13B-distilled",),
)

FAMILIES = (V090, V091, V095, V097, V098_DISTILLED)
