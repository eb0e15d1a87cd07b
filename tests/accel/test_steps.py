"""The first and the last steps of a clip with exact attention, the others with FP8. Emulated."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from accel import steps
from accel.backends import backend, fa3_fp8
from accel.install import install
from accel.precision import exact_steps
from accel.types import NO_STEPS, Choice, Preferences
from tests import builders
from tests.emulators import sgl_kernel_cuda as emulator
from tests.emulators.sgl_kernel_cpu import real_build


class Scheduler:
    """As diffusers' schedulers tell their step: None before the first."""

    def __init__(self, count: int) -> None:
        self.timesteps = torch.arange(count)
        self.at: int | None = None

    @property
    def step_index(self) -> int | None:
        return self.at


def plan(count: str) -> Any:
    from dataclasses import replace

    plan = builders.plan(attention="fa3_fp8", dtype="bfloat16", threads="1")
    chosen = Choice("transformer", "exact_steps", count, count, ("a test asked for it",))
    return replace(plan, stages=tuple(replace(stage, exact_steps=chosen) for stage in plan.stages))


@pytest.mark.skipif(real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")
@pytest.mark.parametrize(("count", "exact"), [("1", {0, 4}), ("2", {0, 1, 3, 4}), ("0", set()), ("9", {0, 1, 2, 3, 4})])
def test_first_and_last_steps_are_exact_emulated(count: str, exact: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fa3_fp8, "FEWEST_KEYS", 1)
    pipeline: Any = builders.Holder(transformer=builders.wan_transformer(head_dim=64, layers=1), scheduler=Scheduler(5))
    with emulator.installed() as calls, torch.inference_mode():
        installation = install(pipeline, plan(count))
        for step in range(5):
            calls.clear()
            pipeline.scheduler.at = step or None
            pipeline.transformer(**builders.wan_inputs(dtype=torch.bfloat16))
            wanted = torch.bfloat16 if step in exact else torch.float8_e4m3fn
            assert {call["q"].dtype for call in calls} == {wanted}, step
        found = installation.report()["attention"]["transformer"]
        installation.remove()
        hooks = len(pipeline.transformer._forward_pre_hooks)
    assert (found["served"], found["fallen_back"]) == (2 * (5 - len(exact)), 2 * len(exact))
    reason = f"one of the first or last {count} steps, kept exact as asked"
    assert set(found["reasons"]) == ({reason} if exact else set())
    assert hooks == 0


def test_a_scheduler_that_does_not_tell_its_step_is_noted() -> None:
    assert steps.why_not(builders.Holder(scheduler=Scheduler(3))) == ""
    assert steps.why_not(builders.Holder(scheduler=object())) == (
        "object does not tell at which step it is, so no step is kept exact"
    )


def test_copies_do_nothing() -> None:
    hook = steps.ExactSteps(builders.Holder(), None, 3)
    for copied in (copy.deepcopy(hook), pickle.loads(pickle.dumps(hook))):
        assert (copied.slot, copied.count) == (None, 0)
        copied(torch.nn.Linear(1, 1), ())


def test_what_a_wish_becomes() -> None:
    approximate, exact = backend("attention", "fa3_fp8"), backend("attention", "sdpa")
    assert exact_steps(Preferences(), "transformer", approximate) == (NO_STEPS, "")
    assert exact_steps(Preferences(exact_steps="2"), "vae", None) == (NO_STEPS, "")
    choice, refusal = exact_steps(Preferences(exact_steps="2", linear="fp8"), "transformer", approximate)
    assert (choice.engaged, refusal) == ("2", "")
    assert choice.reasons == ("asked for; linears stay as they are at every step",)
    choice, refusal = exact_steps(Preferences(exact_steps="2"), "transformer", exact)
    assert (choice.engaged, choice.reasons, refusal) == ("0", ("the attention is exact at every step",), "")
    _, refusal = exact_steps(Preferences(exact_steps="some"), "transformer", approximate)
    assert refusal == "exact_steps=some can't be used, allowed are auto and 0 to 1000"
