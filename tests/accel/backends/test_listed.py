"""`python -m accel.backends` for a terminal: every accelerator, and whether it runs on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel.backends import REGISTRY, __main__
from tests.accel.recorded import machine


def test_every_backend_is_listed_with_its_state_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "probe", lambda: machine("zen5", tmp_path))
    assert __main__.main([]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert {row.split()[0] for row in rows} == {f"{item.kind}={item.name}" for item in REGISTRY}
    found = {row.split()[0]: row for row in rows}
    assert found["attention=sdpa"].split("  ")[-1] == "usable"
    assert found["attention=sgl_amx"].endswith("  this CPU has no amx_tile")
    assert found["linear=dynamic_int8"].endswith("  usable")
    assert all(item.title in found[f"{item.kind}={item.name}"] for item in REGISTRY)
    assert "measured" not in "".join(rows)


def test_a_python_without_torch_says_that_it_can_not_tell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert __main__.main([]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert "has no torch" in told.err
    assert ".venv/bin/python" in told.err


def test_the_readme_s_table_is_written_as_before(tmp_path: Path) -> None:
    file = tmp_path / "text.md"
    file.write_text(f"{__main__.TABLE.begin}\n{__main__.TABLE.end}\n", encoding="utf-8")
    assert __main__.main(["--write", str(file)]) == 0
    assert file.read_text(encoding="utf-8").splitlines()[1:-1] == __main__.make()
