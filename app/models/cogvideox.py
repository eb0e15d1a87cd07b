"""CogVideoX by Zhipu AI: text or a picture to video.

Frame counts, sizes, frame rates and token limits are those of the table in github.com/zai-org/CogVideo (read November
2026): 8k+1 frames (its VAE decodes latent frames in pairs after the first), 16k+1 for 1.5, which makes one token of
two latent frames. The first picture model has learnt its positions for 720x480 alone. Parameters were counted from
the published configurations.
"""

from __future__ import annotations

from dataclasses import replace

from app.models.base import Defaults, Family, Figure, Grid, Rules, counted

_TEXT, _VAE = 4_762_310_656, 215_583_907
"""Parameters of T5 1.1 XXL's encoder and of the VAE."""

_SIDE = Grid(16, 0, 128, 1360)
_LICENCE = "CogVideoX License"

T2V_2B = Family(
    name="cogvideox-2b",
    title="CogVideoX 2B",
    summary="Small: six seconds at 8 frames a second, from text. Wants long, detailed prompts in English.",
    licence="Apache-2.0",
    pipeline="CogVideoXPipeline",
    vae_class="AutoencoderKLCogVideoX",
    defaults=Defaults(720, 480, 49, 8.0, 50, 6.0, "ddim", None),
    rules=Rules(frames=Grid(8, 1, 9, 49), width=_SIDE, height=_SIDE),
    schedulers=("ddim", "dpm"),
    takes=frozenset({"negative_prompt", "lora"}),
    token_limit=226,
    repos=("zai-org/CogVideoX-2b", "THUDM/CogVideoX-2b"),
    download=Figure(13_800_000_000),
    memory=counted(1_693_783_872, _TEXT, _VAE),
)

T2V_5B = replace(
    T2V_2B,
    name="cogvideox-5b",
    title="CogVideoX 5B",
    summary="Six seconds at 8 frames a second, from text. Wants long, detailed prompts in English.",
    licence=_LICENCE,
    defaults=replace(T2V_2B.defaults, scheduler="dpm"),
    repos=("zai-org/CogVideoX-5b", "THUDM/CogVideoX-5b"),
    download=Figure(21_500_000_000),
    memory=counted(5_570_283_072, _TEXT, _VAE),
)

I2V_5B = replace(
    T2V_5B,
    name="cogvideox-5b-i2v",
    title="CogVideoX 5B I2V",
    summary="Sets a picture in motion: six seconds at 8 frames a second, 720x480 only.",
    pipeline="CogVideoXImageToVideoPipeline",
    rules=Rules(frames=Grid(8, 1, 9, 49), width=Grid(16, 0, 720, 720), height=Grid(16, 0, 480, 480)),
    takes=T2V_5B.takes | {"image"},
    needs=frozenset({"image"}),
    repos=("zai-org/CogVideoX-5b-I2V", "THUDM/CogVideoX-5b-I2V"),
    memory=counted(5_570_479_680, _TEXT, _VAE),
)

T2V_15 = replace(
    T2V_5B,
    name="cogvideox-1.5-5b",
    aliases=("cogvideox-1.5",),
    title="CogVideoX 1.5 5B",
    summary="Five or ten seconds at 16 frames a second, 1360x768, from text.",
    defaults=replace(T2V_5B.defaults, width=1360, height=768, frames=81, fps=16.0),
    rules=Rules(frames=Grid(16, 1, 17, 161), width=_SIDE, height=_SIDE),
    token_limit=224,
    repos=("zai-org/CogVideoX1.5-5B", "THUDM/CogVideoX1.5-5B"),
    memory=counted(5_570_676_352, _TEXT, _VAE),
)

I2V_15 = replace(
    T2V_15,
    name="cogvideox-1.5-5b-i2v",
    aliases=("cogvideox-1.5-i2v",),
    title="CogVideoX 1.5 5B I2V",
    summary="Sets a picture in motion: five or ten seconds at 16 frames a second, best with a shorter side of 768.",
    pipeline="CogVideoXImageToVideoPipeline",
    takes=T2V_15.takes | {"image"},
    needs=frozenset({"image"}),
    repos=("zai-org/CogVideoX1.5-5B-I2V", "THUDM/CogVideoX1.5-5B-I2V"),
    memory=counted(5_571_594_880, _TEXT, _VAE),
)

FAMILIES = (T2V_2B, T2V_5B, I2V_5B, T2V_15, I2V_15)
