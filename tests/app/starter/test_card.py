"""The card's table is what the judge wrote, and nothing around it changes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from app.starter import card
from app.starter.judge import Verdict, score_table
from app.starter.prompts import draw_prompts


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with a report of 40 prompts, every third object wrong, and one of the LoRA's eight steps."""
    prompts = draw_prompts(5, 40)
    scenes = [prompt.scene for prompt in prompts]
    for report, every in (("scores", 3), ("fast8", 2)):
        verdicts = [
            Verdict(object=number % every > 0, background=True) if scene.shape2 is None else Verdict(two_binding=True)
            for number, scene in enumerate(scenes)
        ]
        tables = {"all": score_table(verdicts, scenes), "two": score_table(verdicts, scenes)}
        details = [asdict(verdict) for verdict in verdicts]
        (tmp_path / f"{report}.json").write_text(json.dumps({"tables": tables, "verdicts": details}))
    return tmp_path


def test_the_table_tells_what_the_judge_counted(run: Path) -> None:
    found = card.table(run)
    verdicts = json.loads((run / "fast8.json").read_text())["verdicts"]
    objects = [verdict["object"] for verdict in verdicts if verdict["object"] is not None]
    assert found[0] == "| class | 20 steps, guidance 4 | LoRA, 8 steps |"
    (row,) = [line for line in found if line.startswith("| object |")]
    share = f"{round(100 * sum(objects) / len(objects), 1):g}"
    assert row.endswith(f"| {sum(objects)} of {len(objects)}, {share} % |")
    assert any(line.startswith("| size | not judged") for line in found)


def test_it_is_written_between_its_marks(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run / "README.md"
    text.write_text("Before.\n<!-- scores: written by `python -m app.starter.card RUN --write README.md` -->\nold\n"
                    "<!-- scores: end -->\nAfter.\n")  # fmt: skip
    assert card.main([str(run), "--write", str(text)]) == 0
    written = text.read_text()
    assert written.startswith("Before.\n")
    assert written.endswith("After.\n")
    assert "old" not in written
    assert "\n".join(card.table(run)) in written
    assert card.main([str(run)]) == 0
    assert capsys.readouterr().out.strip() == "\n".join(card.table(run))


def test_a_run_that_was_not_scored_is_told_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert card.main([str(tmp_path)]) == 1
    assert "run app.starter.train with --stages score first" in capsys.readouterr().err
    assert card.main([]) == 2
