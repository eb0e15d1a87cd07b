"""`python -m accel.backends` prints every accelerator and whether it runs on this machine; `--write README.md` puts the
README's table there. Its last column, what was measured, is written by hand and kept, and it leaves out PyTorch's own,
the references."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from accel.advice import PYTHON
from accel.backends import backends
from accel.contract import Backend
from accel.errors import PlanError
from accel.plan import ANY_MODEL, make_plan
from accel.probe import probe
from accel.tables import WrittenTable, cells, lines
from accel.types import Kind, Machine, Preferences

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


def here(machine: Machine) -> list[str]:
    """A line for every accelerator: what is typed after `--accel`, its title, and "usable" or the first reason why it
    does not run on this machine."""
    items = [item for kind in KINDS for item in backends(kind)]
    rows = [(f"{item.kind}={item.name}", item.title, _state(machine, item)) for item in items]
    name, title = (max(len(row[at]) for row in rows) for at in (0, 1))
    return [f"{row[0]:{name}}  {row[1]:{title}}  {row[2]}" for row in rows]


def _state(machine: Machine, item: Backend) -> str:
    wish = Preferences(**{item.kind: item.name})
    try:
        make_plan(machine, ANY_MODEL, wish)
    except PlanError as error:
        return error.reasons[0].removeprefix(f"{item.kind}={item.name} can't be used here: ")
    return "usable"


def main(arguments: Sequence[str]) -> int:
    """The command line; returns its exit code."""
    if arguments:
        return TABLE.main(arguments)
    if importlib.util.find_spec("torch") is None:
        print(
            f"{PYTHON} has no torch, so it can't say what runs here: use the Python that Kinetile runs with, "
            f"{READERS_PYTHON} in its folder.",
            file=sys.stderr,
        )
        return 3
    print("\n".join(here(probe())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
