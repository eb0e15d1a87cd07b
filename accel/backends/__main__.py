"""`python -m accel.backends` prints the table of accelerators that stands in the README; `--write README.md` puts it
there. Its last column, what was measured, is written by hand and kept. PyTorch's own, the references, are left out."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from accel.advice import PYTHON
from accel.backends import backends
from accel.contract import Backend
from accel.tables import WrittenTable, cells, lines
from accel.types import Kind

KINDS: tuple[Kind, ...] = ("attention", "linear", "vae")
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
HEADS = ("`--accel`", "what it is", "result", "runs on", "comes with, or how to get it", "what it gave us")
NOTHING = "not measured by us"
READERS_PYTHON = ".venv/bin/python"
"""What a reader of the README runs Kinetile with."""


def make(old: Sequence[str] = ()) -> list[str]:
    """The table's lines; what `old` ones say of measurements stays."""
    measured = {row[0]: row[-1] for row in map(cells, old) if len(row) == len(HEADS)}
    items = [item for kind in KINDS for item in backends(kind) if not item.reference]
    return lines(HEADS, [_row(item, measured) for item in items])


def _row(item: Backend, measured: dict[str, str]) -> tuple[str, ...]:
    name = f"`{item.kind}={item.name}`"
    exact = f"{'exact' if item.exact else 'approximate'}, {', '.join(DTYPES[dtype] for dtype in item.dtypes)}"
    title = item.title.removesuffix(" (approximate)")
    comes_with = item.comes_with.replace(PYTHON, READERS_PYTHON)
    return (name, title, exact, item.runs_on, comes_with, measured.get(name, NOTHING))


TABLE = WrittenTable("accelerators", "accel.backends", make)

if __name__ == "__main__":
    raise SystemExit(TABLE.main(sys.argv[1:]))
