"""The ladder takes the fastest of all products and climbs only as long as there is time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accel.measuring import peak
from accel.measuring.timing import Stopped


def planted(seconds_of: Callable[[int, str], float]) -> Any:
    """Two ways to multiply that take as long as `seconds_of` says."""
    asked: list[int] = []

    def ways(device: str, dtype: str, size: int) -> Iterator[tuple[str, Callable[[], Any]]]:
        asked.append(size)
        for how in ("one way", "another"):
            yield how, lambda how=how: time.sleep(seconds_of(size, how))  # type: ignore[misc]

    ways.asked = asked  # type: ignore[attr-defined]
    return ways


def test_the_fastest_way_and_size_are_the_peak() -> None:
    ways = planted(lambda size, how: 0.004 if (size, how) == (1024, "another") else 0.02 if size < 1024 else 0.05)
    (found,), notes = peak.measure("cpu", ["float32"], 1.0, ways=ways)
    assert found.how == "1024 x 1024 x 1024 by another"
    assert found.teraflops == pytest.approx(2 * 1024**3 / 0.004 / 1e12, rel=0.5)
    assert notes == ()


def test_no_product_is_begun_that_would_not_fit() -> None:
    ways = planted(lambda size, how: 0.02)
    peak.measure("cpu", ["bfloat16"], 0.3, ways=ways)
    assert ways.asked == [256], "eight times 0.02 s twice do not fit into what is left"


def test_what_can_not_be_multiplied_says_why_and_the_others_go_on() -> None:
    peaks, notes = peak.measure("cpu", ["float8", "float32"], 0.05)
    assert [one.dtype for one in peaks] == ["float32"]
    assert notes == ("no peak in float8: FP8 products are for GPUs",)


def test_it_stops_when_told() -> None:
    with pytest.raises(Stopped):
        peak.measure("cpu", ["float32"], 9.0, should_stop=lambda: True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_every_way_here_multiplies_and_gives_a_figure(dtype: str) -> None:
    ways = list(peak.products("cpu", dtype, 64))
    assert len(ways) >= 2
    for how, call in ways:
        assert call().shape == (64, 64), how
    (found,), _ = peak.measure("cpu", [dtype], 0.1)
    print(f"{dtype}: {found.teraflops:.3f} TFLOP/s, {found.how}")
    assert 1e-4 < found.teraflops < 1000
