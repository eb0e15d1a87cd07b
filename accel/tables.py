"""Tables of a text that the code writes: they stand between two marks, and what is around them stays as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WrittenTable:
    """A Markdown table that `python -m MODULE --write FILE` puts between its marks, or prints without a file.

    make: the table's lines, from the lines that stand there now (none when it is printed).
    """

    title: str
    module: str
    make: Callable[[Sequence[str]], Iterable[str]]

    @property
    def begin(self) -> str:
        return f"<!-- {self.title}: written by `python -m {self.module} --write README.md` -->"

    @property
    def end(self) -> str:
        return f"<!-- {self.title}: end -->"

    def within(self, text: str) -> str:
        """`text` with the table made anew. Raises ValueError when the marks are not there."""
        before, begin, rest = text.partition(self.begin)
        old, end, after = rest.partition(self.end)
        if not (begin and end):
            raise ValueError(f"The file has no place for the table: add the lines {self.begin} and {self.end}.")
        return "\n".join([f"{before}{self.begin}", *self.make(old.strip().splitlines()), f"{self.end}{after}"])

    def main(self, arguments: Sequence[str]) -> int:
        """The command line; returns its exit code."""
        if arguments[:1] == ["--write"] and len(arguments) == 2:
            place = Path(arguments[1])
            place.write_text(self.within(place.read_text(encoding="utf-8")), encoding="utf-8")
            return 0
        if arguments:
            print(f"usage: python -m {self.module} [--write FILE]", file=sys.stderr)
            return 2
        print("\n".join(self.make(())))
        return 0


def lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table, a line a row."""
    return [f"| {' | '.join(row)} |" for row in (heads, ("---",) * len(heads), *rows)]


def cells(line: str) -> list[str]:
    """The cells of one line of such a table."""
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]
