"""The measuring of several GPUs from end to end, on two processes and a work so small that its figures mean nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from accel import parallel_bench
from accel.parallel.launching import run_ranks

ROOT = Path(__file__).parents[2]


def test_two_processes_are_measured_against_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    line = f"-m accel.parallel_bench --scale tiny --rounds 1 --contenders plain-fp32,fp32 --limit 250 --json {out}"
    run_ranks([sys.executable, *line.split()], 2, 280, cwd=ROOT)
    found, text = json.loads(out.read_text()), capfd.readouterr().out
    assert (found["ranks"], found["layers"], list(found["contenders"])) == (2, 2, ["plain-fp32", "fp32"])
    for one in found["contenders"].values():
        assert list(one["rows"]) == [
            f"{calls} on {where}" for calls in ("one forward", "two forwards") for where in ("1", "2 processes")
        ]
        for name, row in one["rows"].items():
            assert row["seconds"]["median"] > 0
            if name.endswith("processes"):
                assert row["ratio"] > 0
                assert row["alike"]
                assert row["difference"] < 1e-5
    report = found["contenders"]["fp32"]["report"]["attention"]["transformer"]
    assert report["served"] == report["calls"] > 0
    assert text.count("two forwards on 2 processes") == 2


@pytest.mark.parametrize("line", ["--contenders nobody", "--work decode", "--scale huge"])
def test_what_can_not_be_measured_is_refused(line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        parallel_bench.main(line.split())
    assert ended.value.code == 2
