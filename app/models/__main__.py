"""`python -m app.models` prints the table of models that stands in the README; `--write README.md` puts it there."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from accel.tables import WrittenTable, lines
from app.models import all_families
from app.models.base import Family, Figure, Grid
from app.video.outputs import size_text

_HEADS = ("`model`", "makes clips from", "by default", "what it can make", "licence", "download", "weights")


def make(old: Sequence[str] = ()) -> list[str]:
    """The models as a Markdown table, one a line, in the catalogue's order."""
    return lines(_HEADS, map(_row, all_families()))


def _row(family: Family) -> tuple[str, ...]:
    made, rules = family.defaults, family.rules
    clip = f"{made.width}x{made.height}, {made.frames} frames at {made.fps:g}/s, {made.steps} steps"
    sides = _spans(rules.width) if rules.width == rules.height else f"{_spans(rules.width)} by {_spans(rules.height)}"
    possible = f"sides {sides}; {rules.frames.step}k+{rules.frames.offset} frames up to {rules.frames.most}"
    name = f"`{family.name}`"
    if family.repo:
        name = f"[{name}](https://huggingface.co/{family.repo})"
    memory = family.memory.get("bfloat16", Figure(None))
    return (name, _inputs(family), clip, possible, family.licence, _bytes(family.download), _bytes(memory))


def _spans(grid: Grid) -> str:
    """ "128 to 1280 by 16s", or the one value there is."""
    return str(grid.least) if grid.least == grid.most else f"{grid.least} to {grid.most} by {grid.step}s"


def _inputs(family: Family) -> str:
    """What clips can begin from: "text", "text or a picture", "two pictures"."""
    if "last_image" in family.needs:
        return "first and last picture"
    pictures = "a picture, or first and last" if "last_image" in family.takes else "a picture"
    if "image" in family.needs:
        return pictures
    return f"text, {pictures}" if "image" in family.takes else "text"


def _bytes(figure: Figure) -> str:
    if figure.value is None:
        return "unverified"
    return "none" if figure.value == 0 else f"{'about ' * (figure.source == 'unverified')}{size_text(figure.value)}"


TABLE = WrittenTable("models", "app.models", make)

if __name__ == "__main__":
    raise SystemExit(TABLE.main(sys.argv[1:]))
