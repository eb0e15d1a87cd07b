"""The time left is told from the first message on, when earlier clips' stage times are handed in."""

from app.engine import Engine
from app.progress import Progress
from tests.app.engines import REQUEST

EARLIER = {"load": 5.0, "text": 1.0, "denoise": 20.0, "decode": 4.0, "save": 0.5}


def test_expected_times_are_reckoned_with_until_the_engine_knows_better(engine: Engine) -> None:
    told: list[Progress] = []
    engine.generate(REQUEST, told.append, expected=EARLIER)
    assert told[0].stage == "loading"
    assert told[0].eta_seconds is not None
    assert 29 < told[0].eta_seconds <= 30.5
    again: list[Progress] = []
    engine.generate(REQUEST, again.append, expected=EARLIER)
    # The first message comes before the plan is known, and with it which earlier clip was of the same kind.
    assert again[1].eta_seconds is not None
    assert again[1].eta_seconds < 10, "its own clip took less"


def test_without_them_nothing_is_told_before_a_step_was_measured(engine: Engine) -> None:
    told: list[Progress] = []
    engine.generate(REQUEST, told.append)
    assert {item.eta_seconds for item in told if item.stage in ("loading", "text")} == {None}
