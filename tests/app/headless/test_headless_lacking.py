"""Lines of a batch whose model is not on this machine, beside others."""

from __future__ import annotations

import json
from typing import Any

from tests.app.headless.batches import SMALL, Batch

ABSENT = "wan2.1-t2v-1.3b"


def lines(runs: Batch, *changes: dict[str, Any]) -> str:
    path = runs.folder / "many.jsonl"
    path.write_text("".join(json.dumps(SMALL | one) + "\n" for one in changes), encoding="utf-8")
    return str(path)


def test_a_line_whose_model_is_not_here_fails_alone(runs: Batch) -> None:
    source = lines(runs, {"seed": 1}, {"model": ABSENT}, {"seed": 2})
    assert runs.run(source, dry_run=True) == 1
    assert "Would make 2 clips" in runs.stdout
    assert "Estimate: " in runs.stdout
    assert "many.jsonl:2: " in runs.stderr
    assert "is not on this machine" in runs.stderr
    assert runs.run(source) == 1
    assert runs.names == ["many-1-1.mp4", "many-3-2.mp4"]
    assert "many.jsonl:2: " in runs.stderr
    assert "2 of 3 made, 1 failed" in runs.stdout
    assert runs.run(source, resume=True) == 1, "the two are there, and it still fails"
    assert "2 of 3 made, 1 failed" in runs.stdout
    assert "many.jsonl:2: " in runs.stderr


def test_nothing_begins_where_no_clip_has_its_model(runs: Batch) -> None:
    source = lines(runs, {"model": ABSENT}, {"model": ABSENT, "seed": 4})
    for dry_run in (False, True):
        assert runs.run(source, dry_run=dry_run) == 3
        assert "many.jsonl:1, " in runs.stderr
        assert "many.jsonl:2: " in runs.stderr
        assert "Making" not in runs.stdout
    assert runs.run(runs.preset("ball"), assignments=[f"model={ABSENT}"]) == 3
    assert runs.stderr.startswith(f"--set model={ABSENT}: ")


def test_a_forced_accelerator_still_stops_the_lines_beside_it(runs: Batch) -> None:
    """Case 7: before anything is made, and by its file and line."""
    source = lines(runs, {"seed": 1}, {"model": ABSENT}, {"accel": {"dtype": "float16"}})
    assert runs.run(source) == 3
    assert "many.jsonl:3: " in runs.stderr
    assert "float16" in runs.stderr
    assert "Making" not in runs.stdout
    assert not runs.names
