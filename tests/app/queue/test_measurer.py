"""Measuring through the queue's owner: never beside a clip, stopped when asked, and whatever becomes of the worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from app.errors import CannotRunError, UsageError
from app.measuring import MeasureAsk, Measuring
from app.paths import Home
from app.queue.owner import LocalService
from app.queue.service import Service, open_service
from app.worker import measuring
from tests.app.queue.test_service import SMALL
from tests.app.services import QUICK, ended, spec, until
from tests.app.standin import StandIn
from tests.app.workers import in_thread

ASK = MeasureAsk("compare", SMALL, quick=True)


class Measure:
    """In the place of what the worker measures: waits until it is let go on, and does what `then` says."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.asked: list[MeasureAsk] = []
        self.then: Callable[[], dict[str, Any]] = lambda: {"title": "measured"}
        self.deaf = False

    def __call__(self, ask: MeasureAsk, engine: Any, home: Home, tell: Any, should_stop: Any) -> dict[str, Any]:
        self.asked.append(ask)
        tell(0.25, "a quarter", 90.0)
        self.begun.set()
        while not self.go_on.wait(0.01):
            if should_stop() and not self.deaf:
                from app.errors import Cancelled

                raise Cancelled("Stopped; what was measured so far is not shown.")
        return self.then()


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Measure:
    made = Measure()
    monkeypatch.setattr(measuring, "measure", made)
    return made


def state(service: Service, wanted: str) -> Measuring:
    found: Measuring = until(lambda: one if (one := service.measuring()).state == wanted else None)
    return found


def test_it_is_begun_followed_and_answered(service: Service, measure: Measure) -> None:
    assert service.measuring() == Measuring()
    assert service.measure(ASK) == 1
    until(lambda: service.measuring().fraction == 0.25)
    told = service.measuring()
    assert (told.text, told.left) == ("a quarter", 90.0)
    until(lambda: service.measuring().waited > told.waited)
    assert told.words.startswith("a quarter, about 1:")
    assert service.snapshot().worker.state == "busy"
    with pytest.raises(UsageError, match="being measured already"):
        service.measure(ASK)
    measure.go_on.set()
    done = state(service, "done")
    assert (done.number, done.kind, done.result) == (1, "compare", {"title": "measured"})
    assert measure.asked == [ASK]
    assert service.measure(ASK) == 2
    state(service, "done")


def test_clips_and_measurements_never_run_together(owner: LocalService, measure: Measure) -> None:
    (clip,) = owner.submit([spec(owner.home.outputs, steps=20)])
    until(lambda: owner.snapshot().running)
    owner.measure(ASK)
    assert owner.measuring().state == "waiting"
    (later,) = owner.submit([spec(owner.home.outputs, prompt="a later ball")])
    assert measure.begun.wait(60)
    assert owner.get([clip.id])[0].state == "done", "the running clip was finished first"
    assert owner.snapshot().running is None
    assert owner.get([later.id])[0].state == "queued", "those that wait go on waiting"
    measure.go_on.set()
    state(owner, "done")
    assert ended(owner, [later])[0].state == "done"


def test_it_is_stopped_before_and_while_it_runs(owner: LocalService, measure: Measure) -> None:
    owner.submit([spec(owner.home.outputs, steps=20)])
    until(lambda: owner.snapshot().running)
    owner.measure(ASK)
    owner.stop_measuring()
    assert state(owner, "stopped").text == "Stopped before it began."
    owner.measure(ASK)
    assert measure.begun.wait(60)
    owner.stop_measuring()
    assert "what was measured so far" in state(owner, "stopped").text
    measure.go_on.set()
    owner.measure(ASK)
    state(owner, "done")


def test_a_worker_that_does_not_obey_is_ended(owner: LocalService, measure: Measure) -> None:
    measure.deaf = True
    owner.measure(ASK)
    assert measure.begun.wait(60)
    threading.Timer(2.0, measure.go_on.set).start()  # a thread can't be killed: it ends by itself
    owner.stop_measuring()
    assert state(owner, "stopped").text == "Stopped."
    assert "did not stop measuring" in owner.snapshot().worker.note


def test_what_goes_wrong_is_one_sentence(owner: LocalService, measure: Measure) -> None:
    measure.go_on.set()

    def refuse() -> dict[str, Any]:
        raise CannotRunError("It is not on this machine.")

    def fall() -> dict[str, Any]:
        raise ValueError("an unforeseen thing")

    measure.then = refuse
    owner.measure(ASK)
    assert state(owner, "failed").error == "It is not on this machine."
    measure.then = fall
    owner.measure(ASK)
    until(lambda: owner.measuring().number == 2 and owner.measuring().is_over)
    assert "ValueError: an unforeseen thing" in owner.measuring().error


def test_plans_are_asked_for_anew_after_it(owner: LocalService, measure: Measure) -> None:
    owner.plan(SMALL)
    assert owner._plans
    version = owner.snapshot().version
    measure.go_on.set()
    owner.measure(ASK)
    state(owner, "done")
    until(lambda: not owner._plans)
    assert until(lambda: owner.snapshot().version > version)


def test_leaving_stops_it(home: Home, measure: Measure) -> None:
    for now in (False, True):
        service = open_service(home, launch=in_thread(StandIn), patience=QUICK)
        measure.begun.clear()
        service.measure(ASK)
        assert measure.begun.wait(60)
        if now:
            threading.Timer(1.0, measure.go_on.set).start()  # a thread can't be killed
        service.stop(now=now)
        assert service.measuring().state == "stopped"


def test_nothing_was_measured_here_yet(service: Service) -> None:
    assert service.readouts() == {"results": None, "stale": [], "problems": []}
