"""Pictures drawn for tests, as the content of files."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image


def drawn(width: int = 96, height: int = 64) -> Image.Image:
    """A red upper left quarter on green, so that turns and cuts are seen."""
    image = Image.new("RGB", (width, height), (20, 160, 60))
    image.paste((220, 30, 30), (0, 0, width // 2, height // 2))
    return image


def saved(image: Image.Image | None = None, kind: str = "PNG", **options: Any) -> bytes:
    """A picture as the content of a file."""
    stream = io.BytesIO()
    (drawn() if image is None else image).save(stream, format=kind, **options)
    return stream.getvalue()
