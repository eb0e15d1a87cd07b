"""Tables that the code writes into a text: between their marks, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from accel.tables import WrittenTable, cells, lines


def counted(old: Sequence[str]) -> Iterable[str]:
    return lines(("name", "number"), [("lines before", str(len(old)))])


TABLE = WrittenTable("numbers", "tests.numbers", counted)


def test_writing_puts_it_between_the_marks(tmp_path: Path) -> None:
    file = tmp_path / "text.md"
    file.write_text(f"before\n{TABLE.begin}\nold\n{TABLE.end}\nafter\n", encoding="utf-8")
    for count in (1, 3):
        assert TABLE.main(["--write", str(file)]) == 0
        rows = f"| name | number |\n| --- | --- |\n| lines before | {count} |"
        assert file.read_text(encoding="utf-8") == f"before\n{TABLE.begin}\n{rows}\n{TABLE.end}\nafter\n"


def test_without_a_file_it_is_printed_and_anything_else_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert TABLE.main([]) == 0
    assert capsys.readouterr().out == "| name | number |\n| --- | --- |\n| lines before | 0 |\n"
    assert TABLE.main(["--other"]) == 2
    assert "usage: python -m tests.numbers [--write FILE]" in capsys.readouterr().err


def test_a_text_without_marks_is_told_which_to_add() -> None:
    with pytest.raises(ValueError, match="no place for the table: add the lines <!-- numbers: written by"):
        TABLE.within("nothing here")


def test_cells_are_what_a_line_was_made_of() -> None:
    rows = [("`a=b`", "two words"), ("c", "")]
    assert [tuple(cells(line)) for line in lines(("x", "y"), rows)[2:]] == rows
