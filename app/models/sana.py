"""SANA-Video by NVIDIA: text or a picture to video, fast because attention between pixels costs no more than linearly.

Its pipeline would put a size into one of eleven and scale the clip back; here a clip is made at the size asked for.
Settings are those of diffusers' conversion script and documentation (read November 2026); parameters were counted from
the published configurations.
"""

from __future__ import annotations

from app.models.base import Defaults, Family, Grid, Rules, counted

# Its pipeline asks for multiples of 32, though one token is 16 pixels.
_SIDE = Grid(32, 0, 128, 1280)

SANA_480P = Family(
    name="sana-video-2b-480p",
    aliases=("sana-video",),
    title="SANA-Video 2B 480p",
    summary="Small and very fast for its size: 480p clips of five seconds, from text or a first picture.",
    licence="NVIDIA Open Model License",
    pipeline="SanaVideoPipeline",
    image_pipeline="SanaImageToVideoPipeline",
    defaults=Defaults(
        width=832,
        height=480,
        frames=81,
        fps=16.0,
        steps=50,
        guidance=6.0,
        scheduler="dpm++",
        shift=8.0,
        negative_prompt="misshapen limbs, motion blur, jump cuts, jitter, ghosting, low quality, captions, watermark",
    ),
    rules=Rules(frames=Grid(4, 1, 5, 161), width=_SIDE, height=_SIDE),
    schedulers=("dpm++", "unipc", "euler"),
    takes=frozenset({"negative_prompt", "shift", "lora", "image"}),
    token_limit=300,
    frames_keyword="frames",
    arguments={"use_resolution_binning": False},
    repos=("Efficient-Large-Model/SANA-Video_2B_480p_diffusers",),
    memory=counted(2_056_862_144, 2_614_341_888, 126_892_531),
)

FAMILIES = (SANA_480P,)
