"""Figures for people: three digits that count, no powers of ten, and no unit that has grown too small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.figures import duration, figure, gib, milliseconds

KINETILE = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("value", "text"),
    [(2213.4, "2,210"), (126.4, "126"), (12.345, "12.3"), (0.012345, "0.0123"), (0.0000123, "0.0000123"), (0, "0")],
)
def test_three_digits_count(value: float, text: str) -> None:
    assert figure(value) == text
    assert milliseconds(value) == f"{text} ms"


def test_fewer_digits_on_request() -> None:
    assert figure(0.01234, 2) == "0.012"


@given(st.floats(min_value=1e-9, max_value=1e12))
def test_no_figure_is_a_power_of_ten(value: float) -> None:
    text = figure(value)
    assert re.fullmatch(r"[\d,]+(\.\d+)?", text)
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.23e-5, "12.3 µs"),
        (0.99999e-3, "1 ms"),
        (3.4567e-3, "3.46 ms"),
        (0.9999, "1.0 s"),
        (1.234, "1.2 s"),
        (59.97, "1:00 min"),
        (185, "3:05 min"),
        (7300, "2.0 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(5.94, "5.94 GiB"), (999.9, "0.976 TiB"), (2048, "2 TiB")])
def test_sizes(size: float, text: str) -> None:
    assert gib(size * 2**30) == text


def test_nothing_that_a_person_reads_rounds_by_itself() -> None:
    """A format such as .3g writes 2.21e+03."""
    found = [
        f"{path.relative_to(KINETILE)}: {line.strip()}"
        for folder in ("accel", "app")
        for path in sorted((KINETILE / folder).rglob("*.py"))
        if path.name != "figures.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\{[^{}]*:[.]\d+g\}", line)
    ]
    assert found == []
