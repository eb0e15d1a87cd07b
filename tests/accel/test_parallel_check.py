"""The check of several GPUs, on two processes of this CPU: what it finds in order, and that it finds what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accel import parallel_check
from accel.errors import AccelError


@pytest.mark.parametrize("case", ["killed", pytest.param("failed", marks=pytest.mark.long)])
def test_the_others_end_with_a_rank_that_ends(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parallel_check.main(["--gpus", "2", "--only", case]) == 0
    assert capsys.readouterr().out.startswith(f"{case}: as it should be (")


@pytest.mark.long
def test_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert parallel_check.main(["--gpus", "2", "--contenders", "fp32"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in told] == ["alike", *parallel_check.ENDS]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (None, "nobody noticed"),
        ("rank 0 of 2 ended with status 1", "it was said that rank 0 of 2 ended with status 1"),
    ],
)
def test_what_is_not_as_it_should_be_is_told(
    said: str | None, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*given: Any) -> None:
        if said is not None:
            raise AccelError(said)

    monkeypatch.setattr(parallel_check, "run_ranks", run)
    assert parallel_check.main(["--only", "killed"]) == 1
    assert problem in capsys.readouterr().out


def test_outputs_that_differ_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(command: list[str], *others: Any) -> None:
        rows = '{"one forward on 2 processes": {"difference": 0.5}}'
        Path(command[command.index("--json") + 1]).write_text(
            f'{{"device": "CPU", "contenders": {{"fp32": {{"rows": {rows}}}}}}}'
        )

    monkeypatch.setattr(parallel_check, "run_ranks", run)
    assert parallel_check.main(["--only", "alike"]) == 1
    assert "fp32, one forward on 2 processes: the outputs differ by 5.0e-01" in capsys.readouterr().out


def test_what_there_is_not_is_refused() -> None:
    with pytest.raises(SystemExit) as ended:
        parallel_check.main(["--only", "burnt"])
    assert ended.value.code == 2
