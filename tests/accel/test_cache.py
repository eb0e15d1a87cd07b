"""What the child runs said is remembered, and asked again whenever it could have changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from accel import cache
from accel.probe import probe
from accel.probing.host import Recorded
from tests.accel.recorded import record


def test_a_second_probe_starts_no_child(tmp_path: Path) -> None:
    first = Recorded(record("zen5"))
    once = probe(host=first, cache_folder=tmp_path)
    second = Recorded(record("zen5"))
    assert probe(host=second, cache_folder=tmp_path) == once
    assert first.tried
    assert not second.tried
    assert probe(host=second, cache_folder=tmp_path, prove=False) == once


@pytest.mark.parametrize(
    "changes",
    [
        {"distributions": {"torch": {"version": "2.14.1+cpu", "torch": ""}}},
        {"environ": {"ONEDNN_MAX_CPU_ISA": "AVX2"}},
        {"files": {"/proc/sys/kernel/osrelease": "6.9.0\n"}},
        {"numbers": {"affinity": 1}},
    ],
)
def test_whatever_could_change_an_answer_asks_again(changes: dict[str, Any], tmp_path: Path) -> None:
    probe(host=Recorded(record("zen5")), cache_folder=tmp_path)
    host = Recorded(record("zen5", **changes))
    probe(host=host, cache_folder=tmp_path)
    assert host.tried


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"fp32": 3}', '{"fp32": {"ok": "yes", "reason": 1}}', "\udcff"])
def test_a_broken_record_is_no_record(content: str, tmp_path: Path) -> None:
    probe(host=Recorded(record("zen5")), cache_folder=tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert probe(host=Recorded(record("zen5")), cache_folder=tmp_path).proofs["fp32"].ok


def test_a_folder_that_can_not_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    found = probe(host=Recorded(record("zen5")), cache_folder=blocked)
    assert found.proofs["fp32"].ok
    assert len(found.problems) == 1
    assert "could not be kept" in found.problems[0]


def test_a_new_record_stays_although_the_clock_was_set_back(tmp_path: Path) -> None:
    for number in range(cache.KEPT + 1):
        cache.save(f"{number:02}", {"fp32": {"ok": True, "reason": "fine"}}, tmp_path)
        os.utime(tmp_path / f"{number:02}.json", (4e9 + number, 4e9 + number))
    cache.save("new", {"fp32": {"ok": True, "reason": "fine"}}, tmp_path)
    assert cache.load("new", tmp_path)
    assert len(list(tmp_path.glob("*"))) == cache.KEPT


def test_old_records_go(tmp_path: Path) -> None:
    for number in range(cache.KEPT + 3):
        assert cache.save(f"{number:02}", {"fp32": {"ok": True, "reason": "fine"}}, tmp_path) == ""
        os.utime(tmp_path / f"{number:02}.json", (number, number))
    cache.save("new", {"fp32": {"ok": True, "reason": "fine"}}, tmp_path)
    left = sorted(path.stem for path in tmp_path.glob("*"))
    assert len(left) == cache.KEPT
    assert "new" in left
    assert "00" not in left
