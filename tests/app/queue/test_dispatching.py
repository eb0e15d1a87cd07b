"""What is remembered of a clip that was made, and the estimate that it leads to in the next worker."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.engine import loading
from app.job_types import JobResult
from app.paths import Home
from app.queue.dispatching import took
from app.queue.service import open_service
from tests.app.services import QUICK, ended, spec
from tests.app.standin import StandIn
from tests.app.workers import in_thread


def test_an_import_is_no_part_of_loading_and_a_model_that_stayed_says_nothing_of_it(tmp_path: Path) -> None:
    timings = {"load": 5.0, "text": 0.1, "denoise": 2.0, "decode": 1.0, "save": 0.2, "total": 8.3}
    result = JobResult(tmp_path / "a.mp4", tmp_path / "a.png", {}, {}, timings)
    request = spec(tmp_path).request
    within = took(request, result, {"memory": 7, "imported": 4.0, "importing": 4.0}, kept=False)
    assert (within.timings["load"], within.timings["import"], within.memory) == (1.0, 4.0, 7)
    before = took(request, result, {"imported": 4.0, "importing": 0.0}, kept=False)
    assert (before.timings["load"], before.timings["import"]) == (5.0, 4.0)
    assert "load" not in took(request, result, {"imported": 4.0}, kept=True).timings


def test_an_import_counts_until_a_worker_has_done_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "imported_in", lambda: 40.0)
    asked = spec(home.outputs, seed=1)
    first = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    try:
        assert ended(first, first.submit([asked]))[0].state == "done"
    finally:
        first.stop()
    monkeypatch.setattr(loading, "imported_in", lambda: 0.0)
    second = open_service(home, launch=in_thread(StandIn), patience=QUICK, warm=True)
    try:
        assert second.estimate(asked.request).stages["load"] >= 40
        monkeypatch.setattr(loading, "imported_in", lambda: 40.0)
        other = replace(asked, request=asked.request.model_copy(update={"frames": 9})).request
        assert second.estimate(other).stages["load"] < 40
        assert second.estimate(asked.request).basis == "from 1 clip made here"
    finally:
        second.stop()
    alone = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    try:
        assert alone.estimate(asked.request).stages["load"] >= 40, (
            "what a dry run imported is of no use to the next run"
        )
    finally:
        alone.stop()
