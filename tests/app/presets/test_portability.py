"""What differs on this machine is said before anything is applied, and the impossible is left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.answers import PlanAnswer
from app.errors import CannotRunError, PlanRefusedError
from app.paths import Home
from app.presets.portability import here
from app.queue.keeper import WorkerGoneError, error_from
from app.queue.service import OwnerGoneError
from app.request import AccelPreferences, GenerationRequest, Lora
from tests.app.ui.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(Home(tmp_path), "skylake-avx2") as made:
        yield made


def asked(**values: object) -> GenerationRequest:
    return GenerationRequest.model_validate({"prompt": "a red ball", "seed": 3, **values})


def test_nothing_differs(desk: Desk) -> None:
    request = asked()
    found = here(request, desk.home, desk)
    assert (found.request, found.differences, found.runs) == (request, (), True)
    assert "float32" in found.engaged


def test_a_backend_that_can_not_run_here_is_left_out_and_its_place_is_named(desk: Desk) -> None:
    found = here(asked(accel=AccelPreferences(attention="sgl_amx", linear="dynamic_int8")), desk.home, desk)
    assert found.request.accel == AccelPreferences(linear="dynamic_int8")
    assert found.runs
    (said,) = found.differences
    assert said.startswith("attention=sgl_amx can't be used here")
    assert said.endswith("Engaged instead: sdpa.")


def test_more_gpus_than_are_here_become_one(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = desk.plan

    def plan_for_two(request: GenerationRequest, recorded: dict[str, object] | None = None) -> PlanAnswer:
        if request.accel.gpus > 2:
            raise PlanRefusedError(f"gpus={request.accel.gpus}: this machine has 2; take at most 2.")
        return plan(request, recorded)

    monkeypatch.setattr(desk, "plan", plan_for_two)
    found = here(asked(accel=AccelPreferences(gpus=64, linear="dynamic_int8")), desk.home, desk)
    assert found.request.accel == AccelPreferences(linear="dynamic_int8")
    (said,) = found.differences
    assert said == "gpus=64: this machine has 2; take at most 2. Engaged instead: one."


@pytest.mark.parametrize("trouble", [WorkerGoneError, OwnerGoneError, CannotRunError])
def test_trouble_that_says_nothing_about_a_backend_takes_none_out(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, trouble: type[Exception]
) -> None:
    def plan(*_: object) -> None:
        raise trouble("The worker ended before it could answer.")

    monkeypatch.setattr(desk, "plan", plan)
    request = asked(accel=AccelPreferences(linear="dynamic_int8"))
    found = here(request, desk.home, desk)
    assert (found.request, found.runs) == (request, False)
    assert found.differences == ("The worker ended before it could answer.",)


def test_a_refused_plan_is_one_on_the_other_side_of_a_pipe_too() -> None:
    error = error_from({"kind": PlanRefusedError.__name__, "message": "attention=sgl_amx can't be used here."})
    assert type(error) is PlanRefusedError


def test_a_backend_that_nobody_knows(desk: Desk) -> None:
    found = here(asked(accel=AccelPreferences(text_encoder_linear="wonder")), desk.home, desk)
    assert found.request.accel == AccelPreferences()
    assert "text_encoder_linear=wonder is not known" in found.differences[0]
    assert "Engaged instead: " in found.differences[0]


def test_a_model_that_is_not_here(desk: Desk) -> None:
    request = asked(model="wonder-14b")
    found = here(request, desk.home, desk)
    assert (found.request, found.runs) == (request, False)
    assert found.differences[0].startswith('model: "wonder-14b" is not known')


def test_what_the_model_adjusts_is_said_and_stays_as_asked(desk: Desk) -> None:
    request = asked(width=700, frames=26)
    found = here(request, desk.home, desk)
    assert found.request == request
    assert found.runs
    assert any("700 becomes 512" in sentence for sentence in found.differences)
    assert any("26 frames become 25" in sentence for sentence in found.differences)


def test_what_the_model_can_not_take(desk: Desk) -> None:
    found = here(asked(loras=(Lora(name="soft.safetensors"),), last_image="end.png"), desk.home, desk)
    assert not found.runs
    assert any("soft.safetensors" in sentence and "is missing" in sentence for sentence in found.differences)
    assert any("can't use a last picture" in sentence for sentence in found.differences)
    assert not here(asked(scheduler="wonder"), desk.home, desk).runs


def test_what_is_engaged_is_under_the_switches_of_this_machine(desk: Desk) -> None:
    desk.set_preferences(AccelPreferences(linear="dynamic_int8", vae="stock"))
    request = asked(accel=AccelPreferences(linear="stock"))
    found = here(request, desk.home, desk)
    assert found.engaged == desk.plan(asked(accel=AccelPreferences(linear="stock", vae="stock"))).summary
    assert found.engaged != desk.plan(request).summary
    assert found.request == request, "the switches are this machine's, and none of the preset's"
