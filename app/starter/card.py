"""The model card's score table, from what the judge wrote in a run's folder.

``python -m app.starter.card RUN --write app/starter/README.md`` puts it there; without --write it is printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from accel.tables import WrittenTable, lines
from app.starter.score_more import FEW

_ROWS = (
    ("all", "background", "background"),
    ("all", "color", "colour"),
    ("all", "motion", "motion"),
    ("all", "camera", "camera (still left out)"),
    ("all", "size", "size"),
    ("all", "object", "object"),
    ("held_color_shape", "object", "object, colour and object never trained together"),
    ("held_shape_motion", "object", "object, object and motion never trained together"),
    ("motion spin", "object", "object, where it spins"),
    ("two", "two_colors", "two objects: both colours there"),
    ("two", "two_binding", "two objects: colours on the right objects"),
    ("two", "two_sides", "two objects: on the sides asked for"),
)
"""Table of the judge's, class in it, and what the card calls it."""

_COLUMNS = (("scores", "20 steps, guidance 4"), *((f"fast{steps}", f"LoRA, {steps} steps") for steps in FEW))
"""Report of a run, and what the card calls it."""


def table(run: Path) -> list[str]:
    """The Markdown table of the reports in ``run``, a line a row.

    Raises FileNotFoundError where the run was not scored at all; reports of few steps may be missing.
    """
    tables = {}
    for report, title in _COLUMNS:
        file = run / f"{report}.json"
        if file.exists() or report == "scores":
            tables[title] = json.loads(file.read_text(encoding="utf-8"))["tables"]
    rows = [(name, *(_cell(found, kind, key) for found in tables.values())) for kind, key, name in _ROWS]
    return lines(("class", *tables), rows)


def _cell(tables: Mapping[str, Mapping[str, Sequence[float]]], kind: str, key: str) -> str:
    if key not in tables.get(kind, {}):
        return "not judged"
    right, judged, percent = tables[kind][key]
    return f"{right} of {judged}, {percent:g} %"


def main(arguments: Sequence[str]) -> int:
    """``RUN [--write FILE]``; returns the exit code."""
    if not arguments or arguments[0].startswith("-"):
        print(
            "Name the folder of a run that was scored: python -m app.starter.card RUN [--write FILE]", file=sys.stderr
        )
        return 2
    run = Path(arguments[0])
    if not (run / "scores.json").exists():
        print(f"{run}: no scores.json in it; run app.starter.train with --stages score first.", file=sys.stderr)
        return 1
    return WrittenTable("scores", "app.starter.card RUN", lambda old: table(run)).main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
