"""A bar chart of speed-ups with the error beside each bar, as SVG or PNG.

One layout makes rectangles and texts, wide or narrow enough for a phone; two small painters draw them. Colour never
speaks alone: each bar says how fast, how wrong, and the verdict. SVG takes a page's colours where it stands in one (CSS
variables with fallbacks).
"""

from __future__ import annotations

import html
import io
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from accel.readouts import words
from accel.readouts.results import GAIN, Row

Role = Literal["ink", "quiet", "paper", "win", "plain", "bad"]
COLOURS: dict[Role, str] = {
    "ink": "#1b1c20",
    "quiet": "#6b6a66",
    "paper": "#f6f5f1",
    "win": "#1f6f43",
    "plain": "#a9a79f",
    "bad": "#a82a1d",
}
VARIABLES: dict[Role, str] = {
    "ink": "--kt-ink",
    "quiet": "--kt-quiet",
    "paper": "--kt-paper",
    "win": "--kt-good",
    "bad": "--kt-bad",
}
ROW, LINE, BAR, SIZE = 22, 16, 12, 12
"""Height of a row, of a further line in it, of a bar and of letters, in pixels."""


@dataclass(frozen=True)
class Shape:
    """Pixels: the width, where bars begin, and what stays free behind the longest one. letters: most in a line. below:
    what a bar has to say stands under it rather than at its end.
    """

    width: int
    bars_at: int
    free: int
    letters: int
    below: bool = False


WIDE = Shape(960, 190, 330, letters=200)
NARROW = Shape(352, 176, 8, letters=53, below=True)
"""For a window of 390 pixels, nearly at its own size."""


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    role: Role


@dataclass(frozen=True)
class Words:
    x: float
    y: float
    text: str
    role: Role = "ink"
    bold: bool = False


Item = Bar | Words


def layout(rows: Iterable[Row], title: str, shape: Shape = WIDE) -> tuple[float, list[Item]]:
    """Height in pixels, and what is drawn. Rows without a speed-up are told in words."""
    shown = words.groups(row for row in rows)
    longest = max([2.0, *(row.speedup for rows in shown.values() for row in rows if row.speedup)])
    scale = (shape.width - shape.bars_at - shape.free) / longest
    one = shape.bars_at + scale
    items: list[Item] = [Words(16, 28, title, bold=True)]
    items.append(Words(16 if shape.below else one - 3, 52, "1x: plain PyTorch in the plan's precision", "quiet"))
    y = 52.0
    for heading, group in shown.items():
        lines = _lines(Words(16, y + ROW, heading, "quiet"), shape)
        items += lines
        y = lines[-1].y
        plain = _plain(group)
        for row in group:
            y += ROW
            items.append(Words(28, y, f"{row.backend} {words.DTYPES.get(row.dtype, row.dtype)}"))
            length = (row.speedup or 0.0) * scale
            if row.speedup is not None:
                items.append(Bar(shape.bars_at, y - BAR + 2, length, BAR, _role(row)))
            items.append(Bar(one, y - ROW + 6, 1, ROW, "quiet"))
            x, below = (28.0, y + LINE) if shape.below else (max(shape.bars_at + length, one) + 8, y)
            lines = _lines(Words(x, below, _told(row, plain), "bad" if _role(row) == "bad" else "ink"), shape)
            items += lines
            y = lines[-1].y
        y += 8
    return y + 16, items


def _lines(text: Words, shape: Shape) -> list[Words]:
    """A text in as many lines as the shape needs."""
    wrapped = textwrap.wrap(text.text, shape.letters) or [""]
    return [replace(text, y=text.y + LINE * number, text=line) for number, line in enumerate(wrapped)]


def _role(row: Row) -> Role:
    if row.verdict in ("wrong", "failed"):
        return "bad"
    return "win" if row.verdict == "faster" and (row.speedup or 0.0) >= GAIN else "plain"


def _plain(group: Iterable[Row]) -> str:
    """The precision of the plain PyTorch that a group's speed-ups are against: the plan's; "" when it was not
    measured."""
    return next((row.dtype for row in group if row.verdict == "reference" and row.speedup == 1), "")


def _told(row: Row, plain: str) -> str:
    """What stands at a bar's end. plain: the precision of what its speed-up is against; a verdict on how fast the row
    is in another precision is left out, for it is about another number."""
    if row.speedup is None:
        return f"{row.verdict}: {row.note}"[:70]
    ratio = words.ratio(row.speedup)
    base = f"plain {words.DTYPES.get(plain, plain) or 'PyTorch'}"
    speed = f"{ratio} {'of' if ratio[0].isdigit() else 'over'} {base}"
    error = "" if row.error is None else f"error {row.error:.1e}"
    about_speed = row.verdict in ("faster", "slower", "unclear", "no gain")
    told = "" if row.verdict == "no gain" or (about_speed and row.dtype != plain) else words.says(row.verdict)
    return ", ".join(filter(None, (speed, error, told)))


def svg(rows: Iterable[Row], title: str, shape: Shape = WIDE) -> str:
    """The chart as one SVG element, that needs nothing beside it."""
    height, items = layout(rows, title, shape)
    background = f'<rect width="{shape.width}" height="{height:.0f}" fill="{_fill("paper")}"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {shape.width} {height:.0f}" role="img" '
        f'aria-label="{html.escape(title, quote=True)}" font-family="system-ui, sans-serif" font-size="{SIZE}">'
        f"{background}{''.join(map(_element, items))}</svg>"
    )


def _fill(role: Role) -> str:
    return f"var({VARIABLES[role]}, {COLOURS[role]})" if role in VARIABLES else COLOURS[role]


def _element(item: Item) -> str:
    if isinstance(item, Bar):
        size = f'width="{item.width:.1f}" height="{item.height:.1f}"'
        return f'<rect x="{item.x:.1f}" y="{item.y:.1f}" {size} fill="{_fill(item.role)}"/>'
    weight = ' font-weight="600"' if item.bold else ""
    return f'<text x="{item.x:.1f}" y="{item.y:.1f}" fill="{_fill(item.role)}"{weight}>{html.escape(item.text)}</text>'


def png(rows: Iterable[Row], title: str, scale: int = 2) -> bytes:
    """The chart as a picture, `scale` pixels for each of the SVG's."""
    from PIL import Image, ImageDraw, ImageFont

    height, items = layout(rows, title)
    picture = Image.new("RGB", (WIDE.width * scale, round(height) * scale), COLOURS["paper"])
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(SIZE * scale)
    for item in items:
        if isinstance(item, Bar):
            x, y = item.x * scale, item.y * scale
            far = (x + max(1, item.width * scale - 1), y + max(1, item.height * scale - 1))
            draw.rectangle((x, y, *far), COLOURS[item.role])
        else:
            at = (item.x * scale, item.y * scale)
            draw.text(at, item.text, COLOURS[item.role], font, anchor="ls")
    written = io.BytesIO()
    picture.save(written, "PNG")
    return written.getvalue()


def save(rows: Iterable[Row], title: str, path: Path) -> None:
    """Writes the chart as its name's end says: .png or .svg. Raises ValueError for another one, OSError."""
    end = path.suffix.lower()
    if end not in (".svg", ".png"):
        raise ValueError(f"{path.name} must end in .svg or .png")
    path.write_bytes(png(rows, title) if end == ".png" else svg(rows, title).encode())
