"""What the worker says of step caches, and a clip with one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from accel import caches
from accel.readouts.ranking import Rank, Readouts
from app.answers import Accelerator
from app.engine import Engine, acceleration, several
from app.errors import PlanRefusedError, UsageError
from app.models.base import Family
from app.paths import Home
from app.plain import to_data
from app.request import AccelPreferences, GenerationRequest
from app.ui.accelerate_view import table_html
from app.worker.questions import accelerators, answer
from tests.accel.recorded import machine
from tests.app.engines import REQUEST


def wishing(family: Family, **wishes: str) -> GenerationRequest:
    asked = REQUEST.model_copy(update={"accel": AccelPreferences.model_validate(wishes), "steps": 8})
    return family.normalise(asked).request


def test_every_cache_has_a_row_and_none_is_the_reference(tiny_family: Family, tmp_path: Path) -> None:
    home = Home(tmp_path)
    rows = {row.name: row for row in accelerators(wishing(tiny_family), home) if row.setting == "cache"}
    assert list(rows) == ["none", *caches.NAMES]
    assert [row.state for row in rows.values()] == ["on", "off", "off", "off", "off"]
    assert [row.reference for row in rows.values()] == [True, False, False, False, False]
    assert all("only used when chosen" in rows[name].reasons[0] for name in caches.NAMES)
    on = {row.name: row for row in accelerators(wishing(tiny_family, cache="mag:0.5"), home) if row.setting == "cache"}
    assert (on["mag"].state, on["mag"].forced, on["none"].state) == ("on", True, "off")
    assert any("0.5" in reason for reason in on["mag"].reasons)
    compiled = accelerators(wishing(tiny_family, compile="yes", dtype="float32"), home)
    (pyramid,) = [row for row in compiled if row.name == "pyramid"]
    assert pyramid.state == "unavailable" or not acceleration.machine().compiler
    assert "compile" in pyramid.reasons[0]


def test_rows_are_those_of_a_clip_that_several_devices_make(
    tiny_family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(several.ON_CPU, "1")
    request = wishing(tiny_family).model_copy(update={"guidance": 1.0, "accel": AccelPreferences(gpus=2)})
    rows = {row.name: row for row in accelerators(request, Home(tmp_path)) if row.setting == "cache"}
    assert (rows["first_block"].state, rows["pyramid"].state) == ("unavailable", "off")
    assert "gpus=2: cache=first_block looks at tokens" in rows["first_block"].reasons[0]
    need = answer({"do": "plan", "request": to_data(request)}, Home(tmp_path))["memory"]
    assert need["processes"] == 2


def test_a_clip_with_a_cache_says_so_and_repeats(engine: Engine, tiny_family: Family) -> None:
    request = wishing(tiny_family, cache="first_block:0.9")
    one, other = engine.generate(request), engine.generate(request)
    told = one.report["cache"]["transformer"]
    assert 0 < told["served"] < told["calls"]
    assert np.array_equal(one.frames, other.frames)
    assert f"cache first_block:0.9 {told['served']}/{told['calls']}" in acceleration.summary(one.plan, one.report)
    again = engine.generate(request.model_copy(update={"accel": AccelPreferences()}), recorded_plan=one.plan)
    assert np.array_equal(one.frames, again.frames)
    plain = engine.generate(wishing(tiny_family))
    assert not np.array_equal(one.frames, plain.frames)
    assert plain.report["cache"] == {}


def test_what_is_no_cache_and_what_can_t_be_is_refused(tiny_family: Family) -> None:
    with pytest.raises(UsageError, match="cache=tea is not known, allowed are auto, none, first_block"):
        acceleration.decide(tiny_family, wishing(tiny_family, cache="tea"))
    with pytest.raises(UsageError, match=r"accel: cache=first_block:7 can't be used: its strength is a number from 0"):
        acceleration.decide(tiny_family, wishing(tiny_family, cache="first_block:7"))


def test_a_kernel_that_died_in_its_child_is_unavailable_with_its_reason(
    tiny_family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 13: on the page the row has no switch and says why; switched on elsewhere, it is refused."""
    found = machine("mi355x", tmp_path, runs={"aiter.flash_attn_func": {"signal": 11}})
    monkeypatch.setattr(acceleration, "machine", lambda: found)
    rows = {row.name: row for row in accelerators(wishing(tiny_family), Home(tmp_path)) if row.setting == "attention"}
    assert rows["aiter_bf16"].state == "unavailable"
    assert "its test process was killed by SIGSEGV" in rows["aiter_bf16"].reasons[0]
    assert rows["sdpa"].state == "on"
    with pytest.raises(PlanRefusedError, match="killed by SIGSEGV"):
        acceleration.decide(tiny_family, wishing(tiny_family, attention="aiter_bf16"))


def test_every_row_has_the_verdict_of_its_own_choice(
    tiny_family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switch that is on adds nothing to what can't be used anyway, and is named where it alone is in the way."""
    found = machine("sapphire-rapids", tmp_path)
    monkeypatch.setattr(acceleration, "machine", lambda: found)

    def rows(**wishes: str) -> dict[str, Accelerator]:
        table = accelerators(wishing(tiny_family, **wishes), Home(tmp_path))
        return {row.name: row for row in table if row.setting in ("attention", "linear")}

    free, chosen = rows(), rows(linear="dynamic_int8")
    assert free["sgl_amx"].state != "unavailable"
    assert chosen["sgl_amx"].state == "unavailable"
    assert chosen["sgl_amx"].reasons == (
        "does not go together with dynamic_int8, which runs in float32: switch that off first",
    )
    never = [name for name, row in free.items() if row.state == "unavailable"]
    assert "aiter_bf16" in never
    assert all(chosen[name].reasons == free[name].reasons for name in never)
    page = table_html(list(chosen.values()), AccelPreferences())
    assert "Does not go together with dynamic_int8" in page
    assert not any(wrong in page for wrong in ("Linear=", "Dynamic_int8 was"))


def test_why_off_agrees_with_what_was_measured(
    tiny_family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = machine("zen5", tmp_path)
    monkeypatch.setattr(acceleration, "machine", lambda: found)

    def why(**wishes: str) -> dict[str, tuple[str, ...]]:
        table = accelerators(wishing(tiny_family, **wishes), Home(tmp_path))
        return {row.name: row.reasons for row in table if row.setting == "linear" and row.state == "off"}

    before = why(dtype="bfloat16")["stock"]
    assert before[0].startswith("onednn_bf16 was taken instead: ")
    assert "measured" not in before[0]
    ranks = (Rank("stock", True, 2.0, "reference"), Rank("onednn_bf16", True, 1.0, "faster"))
    measured = Readouts({("transformer", "linear", "bfloat16", "cpu"): ranks})
    monkeypatch.setattr(acceleration, "readouts", lambda *_: measured)
    assert why(dtype="bfloat16")["stock"] == ("onednn_bf16 is faster here",)
    assert why(linear="onednn_bf16")["stock"] == ("onednn_bf16 was chosen by hand",)
