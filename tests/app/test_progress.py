"""The clock of a clip: stage times, a fraction that never falls, an estimate that is arithmetic on measured times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.progress import STAGES, Stage, StageClock


class Now:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_timings_hold_finished_stages_and_their_sum() -> None:
    now = Now()
    clock = StageClock(now=now)
    for stage, seconds in (("loading", 2.0), ("text", 0.5), ("denoising", 8.0), ("decoding", 1.5)):
        clock.enter(stage)  # type: ignore[arg-type]
        now.seconds += seconds
    clock.leave()
    assert clock.timings() == {"load": 2.0, "text": 0.5, "denoise": 8.0, "decode": 1.5, "total": 12.0}


def test_a_stage_entered_twice_adds_up() -> None:
    now = Now()
    clock = StageClock(now=now)
    for stage in ("denoising", "decoding", "denoising"):
        clock.enter(stage)
        now.seconds += 3.0
    clock.leave()
    assert clock.timings() == {"denoise": 6.0, "decode": 3.0, "total": 9.0}


def test_no_estimate_before_anything_was_measured() -> None:
    clock = StageClock(now=Now())
    clock.enter("loading", 5)
    assert clock.progress().eta_seconds is None


def test_estimate_from_the_pace_of_denoising() -> None:
    now = Now()
    clock = StageClock(now=now)
    clock.enter("denoising", 20)
    now.seconds += 4.0
    clock.advance(5)
    eta = clock.progress().eta_seconds
    assert eta is not None
    # 15 steps of 0.8 s, and decoding and saving by their shares of 0.18 and 0.02 to 0.68 of the 16 s of denoising
    assert eta == pytest.approx(12.0 + 16.0 * (0.18 + 0.02) / 0.68)


def test_estimate_from_an_earlier_clip() -> None:
    now = Now()
    clock = StageClock({"load": 3.0, "text": 1.0, "denoise": 10.0, "decode": 2.0, "save": 0.5}, now=now)
    clock.enter("loading", 5)
    now.seconds += 1.0
    assert clock.progress().eta_seconds == pytest.approx(2.0 + 1.0 + 10.0 + 2.0 + 0.5)
    clock.enter("decoding")
    now.seconds += 5.0
    assert clock.progress().eta_seconds == pytest.approx(0.5), "a stage that takes longer than before is not negative"


def test_fraction_weighs_stages_by_an_earlier_clip() -> None:
    clock = StageClock({"load": 0.0, "text": 0.0, "denoise": 9.0, "decode": 1.0}, now=Now())
    clock.enter("denoising", 4)
    clock.advance(2)
    assert clock.progress().fraction == pytest.approx(0.45)


@given(
    earlier=st.dictionaries(st.sampled_from(["load", "text", "denoise", "decode", "save"]), st.floats(0, 1e4)),
    moves=st.lists(st.tuples(st.sampled_from(STAGES), st.integers(0, 30), st.integers(1, 30), st.floats(0, 100))),
)
def test_fraction_never_falls_and_nothing_is_negative(
    earlier: dict[str, float], moves: list[tuple[Stage, int, int, float]]
) -> None:
    now = Now()
    clock = StageClock(earlier, now=now)
    last = 0.0
    for stage, step, steps, seconds in moves:
        clock.enter(stage, steps)
        now.seconds += seconds
        clock.advance(step)
        progress = clock.progress()
        assert last <= progress.fraction <= 1.0
        assert 0 <= progress.step <= progress.steps
        assert progress.eta_seconds is None or progress.eta_seconds >= 0
        last = progress.fraction
    clock.leave()
    timings = clock.timings()
    assert timings["total"] == pytest.approx(sum(seconds for *_, seconds in moves), abs=1e-6)


def test_progress_is_json_able_without_its_picture() -> None:
    clock = StageClock(now=Now())
    clock.enter("text")
    assert clock.progress().without_preview() == {
        "stage": "text",
        "step": 0,
        "steps": 1,
        "fraction": 0.0,
        "eta_seconds": None,
    }
