"""Contenders in turn: one that fails says why and the others go on; time that is up ends the rounds."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel.benching import processes
from accel.benching.processes import plain_environment
from accel.benching.race import Race, errors, summed_up
from accel.probing.overrides import APPLIED

STAND_IN = """
import json, os, signal, sys, time
job = json.loads(next(sys.stdin))
how = job["how"]
print("a library's chatter")
if how == "refuses":
    print('@bench {"failed": "it would not"}', flush=True)
    sys.exit(1)
print('@bench {"built": 0.1, "plan": null, "threads": 1}', flush=True)
for number, line in enumerate(sys.stdin):
    if how == "dies" and number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs" and number == 1:
        time.sleep(60)
    print('@bench ' + json.dumps({"seconds": {"total": job["takes"], "cpu": 0.1}}), flush=True)
"""


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BOOT", STAND_IN)


def job(how: str = "works", takes: float = 1.0) -> tuple[dict[str, Any], dict[str, str]]:
    return {"how": how, "takes": takes}, dict(os.environ)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_who_fails_says_why_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {"good": job(), "refuses": job("refuses"), "dies": job("dies"), "hangs": job("hangs")}
    with Race(jobs, time.monotonic() + 100) as race:
        assert set(race.built) == {"good", "dies", "hangs"}
        monkeypatch.setattr(Race, "_patience", lambda self: 1.0)
        runs = race.rounds(3)
    assert [len(runs[name]) for name in ("good", "dies", "hangs")] == [3, 1, 1]
    assert race.failures == {
        "refuses": "it would not",
        "dies": "its process ended with signal 9",
        "hangs": "it took more than 1 s",
    }


def test_a_first_run_counts_only_when_time_allows_no_other() -> None:
    warm = {"good": {"total": 9.0, "cpu": 9.0}}
    with Race({"good": job()}, time.monotonic() + 100) as race:
        assert race.rounds(2, warm={"good": {"total": 0.0}})["good"] == [{"total": 1.0, "cpu": 0.1}] * 2
        race.end = time.monotonic() - 1
        assert race.rounds(2, warm)["good"] == [warm["good"]]
        assert race.rounds(2) == {"good": [{"total": 1.0, "cpu": 0.1}]}, "without one, a round is run in any case"


def test_a_first_run_that_compiled_leaves_the_others_their_rounds() -> None:
    warm = {"good": {"total": 1.0}, "fine": {"total": 1.0}, "compiled": {"total": 900.0}}
    with Race(dict.fromkeys(warm, job()), time.monotonic() + 100) as race:
        assert [len(runs) for runs in race.rounds(2, warm).values()] == [2, 2, 2]


def test_results_are_compared_with_the_reference(tmp_path: Path) -> None:
    np.save(tmp_path / "plain.npy", np.array([3.0, 4.0]))
    np.save(tmp_path / "other.npy", np.array([3.0, 4.5]))
    assert errors(tmp_path, "plain") == {"other": pytest.approx(0.1)}
    assert errors(tmp_path, "missing") == {}


def test_medians_and_spread() -> None:
    runs = [{"total": 2.0}, {"total": 1.0}, {"total": 7.0}]
    assert summed_up(runs) == {"total": {"median": 2.0, "least": 1.0, "most": 7.0}}
    assert summed_up([]) == {}


def test_plain_contenders_see_nothing_that_accel_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv(APPLIED, "OMP_WAIT_POLICY")
    seen = plain_environment()
    assert "OMP_WAIT_POLICY" not in seen
    assert APPLIED not in seen
    assert seen["OMP_NUM_THREADS"] == "3", "what the person set stays"
    assert json.dumps(seen)
