"""Readouts as a program: what it prints reaches every console and log."""

from __future__ import annotations

import io
import sys
from unittest.mock import Mock

import pytest

from accel.readouts import __main__ as program


@pytest.mark.parametrize(
    ("coding", "shown"), [("utf-8", "12 µs ±3% –"), ("cp932", "\\xb5s ±3%"), ("ascii", "12 \\xb5s")]
)
def test_a_log_that_lacks_a_letter_shows_its_escape(monkeypatch: pytest.MonkeyPatch, coding: str, shown: str) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, coding))
    monkeypatch.setattr("accel.measuring.run.Benchmark", lambda *_, **__: Mock(run=lambda: (Mock(), Mock(rows=()))))
    monkeypatch.setattr("accel.readouts.words.text", lambda *_: "12 µs ±3% –")
    monkeypatch.setattr("accel.threads.apply", lambda _: None)
    monkeypatch.setattr(program, "probe", lambda **_: Mock())
    assert program.main(["step-1.3b"]) == 0
    assert shown in written.getvalue().decode(coding)
