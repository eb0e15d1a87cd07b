"""Small clips for tests: a moment to encode, and every pixel known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from app import video

METADATA = {"kinetile": 1, "request": {"prompt": "walk"}}


def noise(count: int = 3, height: int = 32, width: int = 32, seed: int = 0) -> video.Frames:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), np.uint8)


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
