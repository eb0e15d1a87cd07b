"""`python -m app.models` prints the table of models that stands in the README; `--write README.md` puts it there."""

from __future__ import annotations

import sys
from pathlib import Path

from app.errors import UsageError
from app.models import all_families
from app.models.base import Family, Figure, Grid
from app.video.outputs import size_text

BEGIN = "<!-- models: written by `python -m app.models --write README.md` -->"
END = "<!-- models: end -->"

_HEADS = ("`model`", "makes clips from", "by default", "what it can make", "licence", "download", "weights")


def table() -> str:
    """The models as a Markdown table, one a line, in the catalogue's order."""
    rows = [_HEADS, ("---",) * len(_HEADS), *map(_row, all_families())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def within(text: str) -> str:
    """`text` with the table between its two marks made anew. Raises UsageError when the marks are not there."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UsageError(f"The file has no place for the table: add the lines {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


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


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--write"] and len(arguments) == 2:
        place = Path(arguments[1])
        place.write_text(within(place.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    if arguments:
        print("usage: python -m app.models [--write FILE]", file=sys.stderr)
        return 2
    print(table())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
