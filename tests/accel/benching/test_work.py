"""The estimates that decide how much of a large model is run, against the modules themselves, without weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from accel.benching import models
from accel.benching.work import CONTENDERS, WORKS, Work
from accel.types import Preferences

CUTS: dict[str, Any] = {"step-1.3b": 2, "step-5b": 2, "step-14b": 2, "encode": 2, "decode": (208, 128, 2)}


def on_meta(work: Work, cut: Any) -> tuple[Any, float]:
    """The module of `work` and the operations that torch counts in one call of it."""
    pipeline = models.blank(work, cut, "full")
    given = {name: value.to("meta") for name, value in models.inputs(work, cut, "full").items()}
    given.pop("attention_mask", None)  # it is looked into, which can't be done without values
    with FlopCounterMode(display=False) as counted, torch.inference_mode():
        models.call(work, pipeline, given, torch.float32)
    return getattr(pipeline, work.stage), float(counted.get_total_flops())


@pytest.mark.parametrize("name", WORKS)
def test_operations_and_weights_are_what_they_are_taken_for(name: str) -> None:
    work, cut = WORKS[name], CUTS[name]
    module, counted = on_meta(work, cut)
    print(f"{name}: {work.flops(cut):.3e} taken for {counted:.3e}")
    assert work.flops(cut) == pytest.approx(counted, rel=0.1)
    layers = getattr(module, "blocks", None) or getattr(getattr(module, "encoder", None), "block", None) or module
    assert work.parameters(cut) == pytest.approx(sum(item.numel() for item in layers.parameters()), rel=0.1)


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_random_weights_keep_the_numbers_tame(name: str, dtype: torch.dtype) -> None:
    work = WORKS[name]
    cut = work.cuts[-1]
    pipeline = models.blank(work, cut, "tiny")
    models.fill(pipeline, work, dtype, "cpu")
    with torch.inference_mode():
        out = models.call(work, pipeline, models.inputs(work, cut, "tiny"), dtype).float()
    assert torch.isfinite(out).all()
    assert 0 < float(out.std()) < 100


def test_contenders_ask_for_what_a_plan_knows() -> None:
    for contender in CONTENDERS.values():
        assert bool(contender.plain) + bool(contender.preferences) <= 1
        Preferences(**contender.preferences)


def test_cuts_get_smaller() -> None:
    for work in WORKS.values():
        flops = [work.flops(cut) for cut in work.cuts]
        assert flops == sorted(flops, reverse=True)
