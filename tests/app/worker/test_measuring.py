"""What the worker measures: a benchmark of a tiny model, and one clip under two plans, by a stand-in for the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from accel.measuring import micro, run
from accel.readouts.results import Measurement, Results
from app.engine import Engine, acceleration
from app.errors import Cancelled, CannotRunError
from app.measuring import SEED, MeasureAsk, Measuring
from app.models import family_for
from app.models.base import Family
from app.paths import Home
from app.request import AccelPreferences, GenerationRequest
from app.worker import measuring
from tests.app.standin import StandIn

REQUEST = (
    family_for("starter")
    .normalise(GenerationRequest(prompt="a red ball", width=64, height=64, frames=5, steps=2))
    .request
)
PLAIN = AccelPreferences(attention="sdpa", linear="stock", text_encoder_linear="stock", vae="stock", dtype="float32")


class Listening(StandIn):
    """Remembers what it was asked for."""

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self.asked: list[GenerationRequest] = []

    def generate(self, request: GenerationRequest, *more: Any, **named: Any) -> Any:
        self.asked.append(request)
        return super().generate(request, *more, **named)


def quiet(done: float, text: str, left: float | None = None) -> None:
    """Nobody listens."""


def measure(ask: MeasureAsk, home: Home, engine: Engine | None = None, stop: Any = lambda: False) -> dict[str, Any]:
    told: list[float] = []
    engine = engine or StandIn(home)
    found = measuring.measure(ask, engine, home, lambda done, text, left=None: told.append(done), stop)
    assert told == sorted(told)
    assert told
    return found


def test_one_clip_under_two_plans(home: Home) -> None:
    engine = Listening(home)
    ask = MeasureAsk("compare", REQUEST, quick=True, plans=(PLAIN, AccelPreferences()), names=("one", "two"))
    found = measure(ask, home, engine)
    assert found["title"] == "Starter, 64x64, 5 frames, 2 steps"
    first, second = found["clips"]
    assert (first["plan"], first["psnr"]) == ("one", None)
    assert (second["plan"], second["psnr"], second["ssim"]) == ("two", 100.0, pytest.approx(1.0))
    assert first["dtype"] == "float32"
    assert [one.accel for one in engine.asked] == [PLAIN, AccelPreferences()]
    assert {one.seed for one in engine.asked} == {SEED}
    frames = [np.load(path) for path in found["frames"]]
    assert frames[0].shape == (5, 64, 64, 3)
    assert np.array_equal(*frames)
    own = MeasureAsk("compare", REQUEST.model_copy(update={"seed": 3}), True, plans=(PLAIN,), names=("one",))
    measure(own, home, engine)
    assert engine.asked[-1].seed == 3


def test_verifying_compares_the_reference_with_the_automatic_plan(home: Home) -> None:
    engine = Listening(home)
    found = measure(MeasureAsk("verify", REQUEST), home, engine)
    assert [clip["plan"] for clip in found["clips"]] == ["reference", "automatic"]
    assert [(one.steps, one.accel.vae) for one in engine.asked] == [
        (1, "stock"),
        (2, "stock"),
        (1, "auto"),
        (2, "auto"),
    ]
    assert engine.asked[0].accel.dtype == "float32"


def test_a_plan_that_fails_has_no_frames(home: Home) -> None:
    broken = REQUEST.model_copy(update={"prompt": "fault:fail:denoising"})
    found = measure(MeasureAsk("compare", broken, True, plans=(PLAIN,), names=("one",)), home)
    assert found["frames"] == []
    assert "It broke." in found["clips"][0]["failed"]


@pytest.fixture
def hasty(tiny_family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model, and nothing takes long."""
    monkeypatch.setattr(micro, "QUICK", replace(micro.QUICK, row=0.01, profiled=False))
    monkeypatch.setattr(run, "PEAK_SECONDS", {True: 0.05, False: 0.05})


@pytest.mark.usefixtures("hasty")
def test_a_benchmark_is_kept_in_the_data_folder_and_acts_on_plans(home: Home) -> None:
    request = family_for("starter").normalise(REQUEST).request
    with Engine(home) as engine:
        found = measure(MeasureAsk("bench", request, quick=True), home, engine)
    results, made = Results.from_dict(found["results"]), Measurement.from_dict(found["measurement"])
    assert made.rows
    assert made.clips[0].plan == "reference"
    for clip in made.clips:
        print(clip)
        assert not clip.failed
        assert clip.psnr is None or clip.psnr > 25
        assert clip.calls >= clip.served
    assert results.measurements == (made,)
    assert list(acceleration.results_in(home.cache).glob("*.json"))
    plan = acceleration.decide(family_for("starter"), request, None, home.cache).plan
    assert any("on this machine for this shape" in reason for one in plan.choices() for reason in one.reasons)


@pytest.mark.usefixtures("hasty")
def test_told_to_stop_it_says_so(home: Home) -> None:
    with pytest.raises(Cancelled, match="Stopped"):
        measuring.measure(MeasureAsk("bench", REQUEST), StandIn(home), home, quiet, lambda: True)


def test_prompts_are_the_starters_and_twenty() -> None:
    found = measuring._prompts()
    assert len(set(found)) == 20


def test_what_can_not_be_measured_is_one_sentence(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "family_for", lambda name: replace(family_for("starter"), folder=None))
    with pytest.raises(CannotRunError, match="is not on this machine"):
        measuring.measure(MeasureAsk("bench", REQUEST), StandIn(home), home, quiet, lambda: False)


def test_a_state_is_over_or_not() -> None:
    assert Measuring().is_over
    assert not Measuring(1, "bench", "waiting").is_over
    assert Measuring(1, "bench", "failed").is_over
