"""Contact sheets: rows of labelled clips as one picture, to look at what was drawn or generated."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw
from torch import Tensor

_LABEL_WIDTH = 190
_GAP = 2


def contact_sheet(rows: Sequence[tuple[str, Tensor]], path: str | Path, columns: int = 6) -> Path:
    """Saves one row per clip: its label, then ``columns`` frames spread evenly from the first to the last.

    rows: (label, video uint8 (3, frames, height, width)), all of one size. Returns the path; ValueError without rows.
    """
    if not rows or columns < 1:
        raise ValueError("A contact sheet needs at least one row and one column.")
    _, frames, height, width = rows[0][1].shape
    step = (frames - 1) / max(1, columns - 1)
    size = (_LABEL_WIDTH + columns * (width + _GAP), len(rows) * (height + _GAP))
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for row, (label, video) in enumerate(rows):
        top = row * (height + _GAP)
        pen.multiline_text((4, top + 4), "\n".join(textwrap.wrap(label, 28)), fill="black")
        pictures = video.permute(1, 2, 3, 0).cpu().numpy()
        for column in range(columns):
            picture = Image.fromarray(pictures[round(column * step)])
            sheet.paste(picture, (_LABEL_WIDTH + column * (width + _GAP), top))
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(target)
    return target


def frames_sheet(video: Tensor, path: str | Path, columns: int = 5) -> Path:
    """Saves every frame of one clip, uint8 (3, frames, height, width), in rows, as a JPEG. Returns the path."""
    _, frames, height, width = video.shape
    sheet = Image.new("RGB", (columns * width, -(-frames // columns) * height), "white")
    for index, picture in enumerate(video.permute(1, 2, 3, 0).cpu().numpy()):
        sheet.paste(Image.fromarray(picture), (index % columns * width, index // columns * height))
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(target, quality=88)
    return target
