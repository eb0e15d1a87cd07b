"""The table of models: one line each, and the README has the very same."""

from __future__ import annotations

from pathlib import Path

from app.models import all_families
from app.models.__main__ import TABLE, make

README = Path(__file__).parents[3] / "README.md"


def test_the_readme_holds_the_table_that_the_code_gives() -> None:
    text = README.read_text(encoding="utf-8")
    assert TABLE.within(text) == text, "run `python -m app.models --write README.md`"


def test_every_model_has_a_line_with_its_facts() -> None:
    lines = make()
    assert len(lines) == len(all_families()) + 2
    assert len({line.count(" | ") for line in lines}) == 1
    for family, line in zip(all_families(), lines[2:], strict=True):
        assert f"`{family.name}`" in line
        assert family.licence in line
        assert f"{family.defaults.width}x{family.defaults.height}, {family.defaults.frames} frames" in line
        assert (family.repo or "") in line


def test_figures_that_nobody_has_looked_up_say_so() -> None:
    lines = dict(zip([family.name for family in all_families()], make()[2:], strict=True))
    for family in all_families():
        unsure = family.download.value is None or (family.download.value and family.download.source == "unverified")
        assert ("| unverified |" in lines[family.name] or "| about " in lines[family.name]) == bool(
            unsure or not family.memory
        )
