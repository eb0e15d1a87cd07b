"""Turns, warm-ups, budgets and spreads, by a clock that a test moves."""

from __future__ import annotations

import pytest

from accel.measuring import timing
from accel.measuring.timing import LEAST, MOST, Stopped, gain, interleave, spread


class Clock:
    """Stands still but for what calls take."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def call(self, name: str, *seconds: float) -> object:
        times = iter(seconds)
        last = [seconds[-1]]

        def run() -> None:
            last[0] = next(times, last[0])
            self.now += last[0]
            self.order.append(name)

        return run


def test_a_first_run_is_not_counted_and_rounds_take_turns() -> None:
    clock = Clock()
    calls = {"a": clock.call("a", 0.9, 0.1), "b": clock.call("b", 0.5, 0.2)}
    samples = interleave(calls, 0.0, clock=clock)  # type: ignore[arg-type]
    assert samples == {"a": pytest.approx([0.1] * LEAST), "b": pytest.approx([0.2] * LEAST)}
    assert clock.order[:8] == ["a", "b", "a", "b", "b", "a", "a", "b"]


def test_a_short_call_is_repeated_inside_a_sample() -> None:
    clock = Clock()
    samples = interleave({"a": clock.call("a", 1e-4)}, 0.0, clock=clock)  # type: ignore[dict-item]
    assert samples["a"] == pytest.approx([1e-4] * LEAST)
    assert len(clock.order) == 1 + LEAST * round(timing.SAMPLE / 1e-4)


def test_the_time_ends_the_rounds_and_calm_samples_end_them_sooner() -> None:
    clock = Clock()
    uneven = [1.0, 1.0, 2.0] * 100
    samples = interleave({"a": clock.call("a", *uneven)}, 20.0, clock=clock)  # type: ignore[dict-item]
    assert LEAST < len(samples["a"]) < 20
    calm = interleave({"a": Clock().call("a", 1.0)}, 1e9, clock=Clock())  # type: ignore[dict-item]
    assert len(calm["a"]) == timing.ENOUGH
    long = interleave({"a": clock.call("a", *uneven)}, 1e9, clock=clock)  # type: ignore[dict-item]
    assert len(long["a"]) == MOST


def test_few_samples_of_long_calls_have_to_do() -> None:
    clock = Clock()
    samples = interleave({"a": clock.call("a", 9.0)}, 0.0, clock=clock)  # type: ignore[dict-item]
    assert samples == {"a": [9.0] * timing.LEAST_OF_LONG}


def test_it_stops_when_told() -> None:
    clock = Clock()
    with pytest.raises(Stopped):
        interleave(
            {"a": clock.call("a", 1.0)},  # type: ignore[dict-item]
            99.0,
            clock=clock,
            should_stop=lambda: len(clock.order) > 3,
        )
    assert len(clock.order) == 4


def test_what_slows_a_round_down_spoils_no_gain() -> None:
    slow_rounds = [1.0, 7.0, 1.0, 3.0, 1.0]
    over = gain([0.5 * load for load in slow_rounds], slow_rounds)
    assert (over.median, over.low, over.high, over.repeats) == (2.0, 2.0, 2.0, 5)


def test_quartiles() -> None:
    found = spread([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found.low, found.median, found.high) == (2.0, 3.0, 4.0)
    assert found.width == pytest.approx(2 / 3)
    assert spread([5.0]).width == 0
