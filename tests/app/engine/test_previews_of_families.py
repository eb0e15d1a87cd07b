"""Previews of every kind of model: pictures of the right size from the clip's own latents, and the clip is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from app.engine import Engine
from app.models import cogvideox, hunyuan, ltx, mochi, sana, skyreels, wan
from app.models.base import Family
from app.paths import Home
from app.progress import Progress
from tests.app.models.families import as_folder, picture, request_for

# By family: its tiny pipeline, latent frames of its smallest clip, and steps after which the schedule tells nothing.
KINDS: list[tuple[Family, str, int, int]] = [
    (wan.TI2V_5B, "wan-ti2v", 2, 0),
    (ltx.V095, "ltx-condition", 2, 1),
    (hunyuan.V15_480P, "hunyuan-15", 2, 1),
    (cogvideox.T2V_2B, "cogvideox-2b", 3, 1),
    (cogvideox.T2V_15, "cogvideox-15", 5, 0),
    (mochi.MOCHI, "mochi", 2, 1),
    (skyreels.DF_1_3B, "skyreels-forcing", 2, 1),
    (sana.SANA_480P, "sana", 2, 0),
]


@pytest.mark.parametrize(("family", "name", "latent_frames", "silent"), KINDS, ids=[kind[1] for kind in KINDS])
def test_previews_are_pictures_of_the_clip_and_change_nothing(
    family: Family,
    name: str,
    latent_frames: int,
    silent: int,
    tiny_models: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.engine.watcher._PREVIEW_SECONDS", 0.0)
    home = Home(tmp_path / "home")
    with as_folder(family, tiny_models(name)) as here, Engine(home) as engine:
        request = request_for(here, home, steps=3)
        pictures = {"image": picture(here, home)} if "image" in family.takes else {}
        request = request.model_copy(update=pictures)
        plain = engine.generate(request).frames
        seen: list[Progress] = []
        assert np.array_equal(engine.generate(request, seen.append, previews=True).frames, plain)
    shown = [one.preview for one in seen if one.preview is not None]
    assert len(shown) == 3 - silent
    height, width = plain.shape[1] // 4, plain.shape[2] // 4
    assert all(one.shape == (latent_frames, height, width, 3) and one.dtype == np.uint8 for one in shown)
