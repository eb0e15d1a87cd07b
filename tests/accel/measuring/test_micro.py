"""Every backend at the calls of a small model: rows, and what comes of planted backends from the first row to the plan.

Speeds are planted so far apart that no busy machine turns them around.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import accel
from accel.backends import REGISTRY
from accel.contract import Refused
from accel.measuring import micro
from accel.measuring.calls import Recorded, record
from accel.measuring.micro import Pace
from accel.measuring.timing import Stopped
from accel.readouts import ranking, store, words
from accel.readouts.results import Measurement, Peak, Results, Row
from accel.types import Machine, ModelTraits, Preferences
from tests import builders
from tests.accel.measuring.planted import Planted, Quick

HERE = builders.machine("int8", "conv3d")
PACE = Pace(row=0.02, call=0.5)
SIZE = (64, 32, 5)


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return builders.wan()


@pytest.fixture(scope="module")
def recorded(pipeline: Any) -> Recorded:
    return record(pipeline, SIZE)


@pytest.fixture(scope="module")
def attention(recorded: Recorded) -> Recorded:
    """The attention calls alone, which is what planted backends serve."""
    return replace(recorded, calls=tuple(call for call in recorded.calls if call.kind == "attention"))


@pytest.fixture(scope="module")
def traits(pipeline: Any) -> ModelTraits:
    return accel.traits_of(pipeline, width=64, height=32, frames=5)


def results(machine: Machine = HERE) -> Results:
    peaks = tuple(Peak("cpu", dtype, 1.0, "planted") for dtype in ("float32", "int8"))
    return Results(store.place(machine), peaks=peaks)


def rows(recorded: Recorded, traits: ModelTraits, *planted: Planted, pace: Pace = PACE, **more: Any) -> list[Row]:
    plan = accel.make_plan(HERE, traits, Preferences(dtype="float32"))
    registry = (*REGISTRY, *planted)
    return list(micro.rows(HERE, traits, plan, recorded, results(), pace, registry=registry, **more))


def test_every_usable_backend_gets_a_row_for_every_call(recorded: Recorded, traits: ModelTraits) -> None:
    told: list[tuple[int, int]] = []
    found = rows(recorded, traits, tell=lambda done, of, text: told.append((done, of)))
    assert {row.call.title for row in found} == {call.title for call in recorded.calls}
    assert told[-1] == (len(recorded.calls) - 1, len(recorded.calls))
    by_kind = {kind: {row.backend for row in found if row.call.kind == kind} for kind in ("attention", "linear", "vae")}
    assert by_kind == {"attention": {"sdpa"}, "linear": {"stock", "dynamic_int8"}, "vae": {"stock", "direct_conv3d"}}
    for row in found:
        print(row.call.title, row.backend, row.verdict, row.error, row.executed, row.note)
        if row.verdict == "not served":
            assert row.note
            continue
        assert row.time is not None
        assert row.time.repeats >= 7
        assert row.error is not None
        assert row.error < (1e-4 if row.exact else 0.1)
        assert row.executed
        assert row.served == row.calls > 0
        assert row.share_of_peak == pytest.approx(row.teraflops)
        assert row.speedup == row.over_fp32
        assert (row.verdict == "reference") == (row.backend in ("sdpa", "stock"))


def test_a_planted_slower_backend_is_never_chosen(attention: Recorded, traits: ModelTraits, tmp_path: Path) -> None:
    found = rows(attention, traits, Planted("slow", delay=0.1))
    assert {row.verdict for row in found if row.backend == "slow"} == {"slower"}
    assert chosen(found, traits, Planted("slow"), tmp_path) == "sdpa"


def test_a_planted_wrong_backend_is_flagged_and_never_chosen(
    attention: Recorded, traits: ModelTraits, tmp_path: Path
) -> None:
    """20 % wrong, and so much faster that speed alone would choose it; approximate or not."""
    for exact in (True, False):
        wrong = Quick("wrong", exact=exact)
        found = rows(attention, traits, wrong, Planted("off", wrong=0.2, exact=exact))
        mine = [row for row in found if row.backend in ("wrong", "off")]
        assert {row.verdict for row in mine} == {"wrong"}
        assert all("wrong: relative error" in row.note for row in mine)
        assert all(row.error == pytest.approx(0.2, rel=1e-2) for row in mine if row.backend == "off")
        assert chosen(found, traits, wrong, tmp_path) == "sdpa"


def chosen(found: list[Row], traits: ModelTraits, planted: Planted, folder: Path) -> str:
    """What a plan made of the stored rows takes for attention."""
    made = Measurement("m", "", "", True, ranking.classes(traits), {}, tuple(found))
    assert store.save(results().with_measurement(made), folder) == ""
    kept = store.load(HERE, folder).current
    readouts = ranking.for_model(kept, traits, "m")
    assert readouts.of("transformer", "attention", "float32", "cpu")
    plan = accel.make_plan(HERE, traits, readouts=readouts, registry=(*REGISTRY, planted))
    stage = plan.stage("transformer")
    assert stage is not None
    return stage.attention.engaged


def test_a_backend_that_fails_says_so_and_the_others_go_on(
    attention: Recorded, traits: ModelTraits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Planted, call: Any) -> Any:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(Planted, "run", broken)
    found = rows(attention, traits, Planted("broken"))
    notes = {row.backend: (row.verdict, row.note) for row in found}
    assert notes["broken"] == ("failed", "RuntimeError: no kernel image is available")
    assert notes["sdpa"][0] == "reference"


class Refusing(Planted):
    """Takes no call, as FP8 kernels do for heads of a size that they don't know."""

    def run(self, call: Any) -> Any:
        raise Refused(f"head size {call.query.shape[3]} is not 64 or 128")


def test_what_was_asked_for_and_did_not_run_is_no_gain_but_not_served(recorded: Recorded, traits: ModelTraits) -> None:
    """Case 18: the kernel that ran is named, by the profiler, and no call is counted for the one that was asked for."""
    mine = [row for row in rows(recorded, traits, Refusing("fp8")) if row.backend == "fp8"]
    assert {row.call.title for row in mine} == {call.title for call in recorded.calls if call.kind == "attention"}
    for row in mine:
        assert (row.verdict, row.served, row.fallback) == ("not served", 0, "head size 32 is not 64 or 128")
        assert row.calls >= 7
        assert "scaled_dot_product" in row.executed
        assert words.cells(row)[-1].endswith(f"; 0 of {row.calls} served: head size 32 is not 64 or 128")


def test_small_calls_are_left_out_when_there_is_little_time(recorded: Recorded, traits: ModelTraits) -> None:
    calls = tuple(call for call in recorded.calls if call.stage == "transformer")
    found = rows(replace(recorded, calls=calls), traits, pace=replace(PACE, least=0.2, profiled=False))
    assert 0 < len({row.call.title for row in found}) < len(calls)
    assert all(row.executed == "" for row in found)


def test_a_part_is_measured_where_the_whole_takes_too_long(recorded: Recorded, traits: ModelTraits) -> None:
    (attention,) = (call for call in recorded.calls if call.title.startswith("cross"))
    only = Recorded((attention,), {})
    found = rows(only, traits, pace=replace(PACE, call=attention.flops / 2 / micro.REACHED / 1e12))
    assert found[0].call.sizes["heads"] == 1
    assert found[0].call.share == 0.5


def test_it_stops_when_told_and_leaves_the_threads_as_they_were(recorded: Recorded, traits: ModelTraits) -> None:
    threads, asked = torch.get_num_threads(), []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 20

    with pytest.raises(Stopped):
        rows(recorded, traits, should_stop=stop)
    assert torch.get_num_threads() == threads
    assert len(asked) == 21
