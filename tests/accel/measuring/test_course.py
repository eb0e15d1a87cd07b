"""How far a benchmark is: parts of very different length, and a reckoning that what was seen puts right."""

from __future__ import annotations

import pytest

from accel.measuring.course import Course


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def told_of(expected: dict[str, list[float]], real: dict[str, list[float]]) -> list[tuple[float, float, float]]:
    """(fraction, told to be left, truly left) at each step, where steps of `expected` really take what `real` says."""
    clock, told = Clock(), []

    def tell(done: float, text: str, left: float | None = None) -> None:
        assert left is not None
        told.append((done, left, 100 + sum(map(sum, real.values())) - clock.now))

    course = Course(tell, clock)
    for part, seconds in expected.items():
        course.expect(part, seconds)
    for part, seconds in real.items():
        for step, took in enumerate(seconds):
            course.begin(part, step, f"{part} {step}")
            clock.now += took
    course.finish()
    return told


def test_what_was_reckoned_right_is_told_right() -> None:
    parts = {"calls": [1.0] * 10, "clips": [5.0] * 4}
    told = told_of(parts, parts)
    for done, left, truly in told:
        assert left == pytest.approx(truly)
        assert done == pytest.approx(1 - truly / 30)
    assert told[-1] == (1.0, 0.0, 0.0)


def test_many_short_steps_do_not_hide_the_long_ones_behind_them() -> None:
    """By its steps alone the first part would be two thirds of the whole."""
    told = told_of({"calls": [0.5] * 10, "clips": [6.0] * 5}, {"calls": [0.5] * 10, "clips": [6.0] * 5})
    done, left, _ = told[10]
    assert done == pytest.approx(5 / 35)
    assert left == pytest.approx(30.0)


@pytest.mark.parametrize("factor", [0.4, 3.0])
def test_a_reckoning_that_misses_is_put_right_by_what_was_seen(factor: float) -> None:
    told = told_of({"calls": [2.0] * 20}, {"calls": [2.0 * factor] * 20})
    assert told[0][1] == pytest.approx(40)
    for _, left, truly in told[5:-1]:
        assert left == pytest.approx(truly, rel=0.25)


def test_the_part_that_is_done_never_shrinks() -> None:
    clock, told = Clock(), []
    course = Course(lambda done, text, left=None: told.append((done, left)), clock)
    course.expect("calls", [4.0, 4.0])
    course.begin("calls", 0, "a call")
    clock.now += 4
    course.begin("calls", 1, "a call")
    course.expect("clips", [90.0])
    clock.now += 4
    course.begin("clips", 0, "a clip")
    assert told == [(0.0, pytest.approx(8.0)), (0.5, pytest.approx(4.0)), (0.5, pytest.approx(90.0))]


def test_what_is_said_anew_counts() -> None:
    clock, told = Clock(), []
    course = Course(lambda done, text, left=None: told.append(left), clock)
    course.expect("calls", [4.0])
    course.expect("clips", [100.0])
    course.begin("calls", 0, "a call")
    clock.now += 4
    course.expect("clips", [6.0, 6.0])
    course.begin("clips", 0, "a clip")
    assert told == [pytest.approx(104.0), pytest.approx(12.0)]
