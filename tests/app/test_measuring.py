"""A measurement in words: how much longer it goes on."""

from __future__ import annotations

import pytest

from app.measuring import Measuring


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (Measuring(1, "bench", "running", 0.5, "fp8 at a linear", 20.0), "fp8 at a linear, about 20.0 s left"),
        (Measuring(1, "bench", "running", 0.2, "fp8 at a linear", 60.0), "fp8 at a linear, about 4:00 min left"),
        (Measuring(1, "bench", "running", 0.1, "the machine's peak", 20.0), "the machine's peak"),
        (Measuring(1, "bench", "running", 1.0, "done", 20.0), "done"),
        (Measuring(1, "bench", "running", 0.5, "a clip", 20.0, left=19.0), "a clip, about 19.0 s left"),
        (Measuring(1, "bench", "running", 0.5, "a clip", 20.0, left=19.0, waited=4.0), "a clip, about 15.0 s left"),
        (Measuring(1, "bench", "running", 0.5, "a clip", 20.0, left=19.0, waited=25.0), "a clip"),
        (Measuring(1, "bench", "waiting", 0.5, "waiting", 20.0), "waiting"),
    ],
)
def test_the_time_left_is_told_once_it_can_be_reckoned(state: Measuring, words: str) -> None:
    assert state.words == words
