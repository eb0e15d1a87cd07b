"""The table of models: one line each, and the README has the very same."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.errors import UsageError
from app.models import all_families
from app.models.__main__ import BEGIN, END, main, table, within

README = Path(__file__).parents[3] / "README.md"


def test_the_readme_holds_the_table_that_the_code_gives() -> None:
    text = README.read_text(encoding="utf-8")
    assert within(text) == text, "run `python -m app.models --write README.md`"


def test_every_model_has_a_line_with_its_facts() -> None:
    lines = table().splitlines()
    assert len(lines) == len(all_families()) + 2
    assert len({line.count(" | ") for line in lines}) == 1
    for family, line in zip(all_families(), lines[2:], strict=True):
        assert f"`{family.name}`" in line
        assert family.licence in line
        assert f"{family.defaults.width}x{family.defaults.height}, {family.defaults.frames} frames" in line
        assert (family.repo or "") in line


def test_figures_that_nobody_has_looked_up_say_so() -> None:
    lines = dict(zip([family.name for family in all_families()], table().splitlines()[2:], strict=True))
    for family in all_families():
        unsure = family.download.value is None or (family.download.value and family.download.source == "unverified")
        assert ("| unverified |" in lines[family.name] or "| about " in lines[family.name]) == bool(
            unsure or not family.memory
        )


def test_writing_puts_it_between_the_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "text.md"
    file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    assert main(["--write", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == f"before\n{BEGIN}\n{table()}\n{END}\nafter\n"
    assert main([]) == 0
    assert capsys.readouterr().out.strip() == table()
    assert main(["--other"]) == 2
    with pytest.raises(UsageError, match="no place for the table"):
        within("nothing here")
