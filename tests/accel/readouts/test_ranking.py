"""From rows to an order, and from the order to a plan: what is slower, wrong or never proved alike is never chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accel.backends import REGISTRY
from accel.plan import make_plan
from accel.readouts import ranking
from accel.readouts.ranking import Readouts, for_model, shape_class
from accel.readouts.results import Clip, Measurement, Place, Quality, Results, Row
from accel.types import ModelTraits, Preferences, StageTraits
from tests.accel.measuring.planted import CALL, Planted, row
from tests.accel.recorded import engaged, machine, model

OTHER = replace(CALL, title="cross attention", count=1)


def measured(traits: ModelTraits, *rows: Row, **changes: Any) -> Results:
    made = Measurement("starter", "a clip", "today", False, ranking.classes(traits), {}, rows)
    return Results(Place("f", "here", {}), measurements=(replace(made, **changes),))


def ranks(*rows: Row) -> list[tuple[str, str]]:
    found = for_model(measured(model(), *rows), model()).of("transformer", "attention", "float32", "cpu")
    return [(one.backend, one.verdict) for one in found]


def test_calls_are_added_up_as_often_as_they_are_made() -> None:
    # ten times as fast in the rare call, slower in the frequent one
    rows = [
        row("sdpa", 1.0), row("sdpa", 1.0, call=OTHER),
        row("x", 1.25, gain=0.8), row("x", 0.1, gain=10.0, call=OTHER),
    ]  # fmt: skip
    assert ranks(*rows) == [("sdpa", "reference"), ("x", "slower")]


def test_a_call_that_is_not_served_costs_what_it_costs_without() -> None:
    rows = [
        row("sdpa", 1.0), row("sdpa", 10.0, call=OTHER),
        row("x", 0.5, gain=2.0), row("x", 0.1, gain=99.0, call=OTHER, verdict="not served"),
    ]  # fmt: skip
    found = for_model(measured(model(), *rows), model()).of("transformer", "attention", "float32", "cpu")
    assert found[1].seconds == pytest.approx(10 * 0.5e-3 + 10e-3)


def test_one_wrong_row_spoils_a_backend() -> None:
    rows = [
        row("sdpa", 1.0), row("sdpa", 1.0, call=OTHER),
        row("x", 0.5, gain=2.0), row("x", 0.5, gain=2.0, call=OTHER, verdict="wrong", note="wrong: error 0.2"),
    ]  # fmt: skip
    found = for_model(measured(model(), *rows), model())
    assert found.of("transformer", "attention", "float32", "cpu")[1].why == "wrong: error 0.2"
    assert ranks(*rows)[1] == ("x", "wrong")


def test_without_a_figure_of_the_reference_nothing_is_ranked() -> None:
    assert ranks(row("x", 0.5, gain=2.0)) == []
    assert ranks(row("sdpa", 1.0), row("x", 0.5, gain=2.0, call=OTHER)) == []


def test_other_shapes_devices_and_dtypes_do_not_count() -> None:
    rows = [row("sdpa", 1.0), row("x", 0.5, gain=2.0)]
    results = measured(model(7800), *rows)
    assert for_model(results, model(7800)).of("transformer", "attention", "float32", "cpu")
    assert not for_model(results, model(7800)).of("transformer", "attention", "bfloat16", "cpu")
    assert not for_model(results, model(7800)).of("transformer", "attention", "float32", "cuda")
    assert not for_model(results, model(700)).ranks
    assert for_model(None, model()) == Readouts()


@pytest.mark.parametrize(("tokens", "words"), [(4095, "2048 to 4095"), (4096, "4096 to 8191"), (7800, "4096 to 8191")])
def test_shape_classes(tokens: int, words: str) -> None:
    traits = StageTraits("transformer", "Wan", heads=12, head_dim=128, tokens=tokens)
    assert shape_class(traits) == f"Wan, 12 x 128, {words} tokens"
    assert shape_class(StageTraits("vae", "Vae", channels=96)) == "Vae, 96 channels"


# -- plans --

FLOAT = Preferences(dtype="float32")


def plan(tmp_path: Path, results: Results, *extra: Planted, model_name: str = "starter", **wishes: str) -> Any:
    readouts = for_model(results, model(), model_name)
    preferences = replace(FLOAT, **wishes)
    return make_plan(machine("zen3", tmp_path), model(), preferences, readouts=readouts, registry=(*REGISTRY, *extra))


def reasons(found: Any) -> str:
    return "; ".join(found.stage("transformer").attention.reasons)


def test_what_won_is_chosen_and_the_reason_says_where(tmp_path: Path) -> None:
    results = measured(model(), row("sdpa", 1.0), row("planted", 0.5, gain=2.0))
    found = plan(tmp_path, results, Planted())
    assert engaged(found, "tr.attention") == "planted"
    told = reasons(found)
    assert told.startswith("the fastest measured on this machine for this shape (WanTransformer3DModel, 12 x 128")
    assert "measured here: planted 5 ms, sdpa 10 ms" in told


@pytest.mark.parametrize(
    ("gain", "changes", "says"),
    [
        (0.5, {}, "not planted: slower measured here: 20 ms, 10 ms without"),
        (1.04, {}, "not planted: no gain measured here"),
        (1.5, {"width": 1.2}, "not planted: no winner inside the spread"),
        (2.0, {"verdict": "wrong", "note": "wrong: relative error 0.2"}, "not planted: wrong: relative error 0.2"),
        (2.0, {"verdict": "failed", "note": "it fell over"}, "not planted: it fell over"),
    ],
)
def test_what_did_not_win_is_never_chosen(gain: float, changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    results = measured(model(), row("sdpa", 1.0), row("planted", 1 / gain, gain=gain, **changes))
    found = plan(tmp_path, results, Planted())
    assert engaged(found, "tr.attention") == "sdpa"
    assert says in reasons(found)
    assert engaged(plan(tmp_path, results, Planted(), attention="planted"), "tr.attention") == "planted"


def test_an_approximate_winner_needs_clips_of_this_very_model(tmp_path: Path) -> None:
    results = measured(model(), row("sdpa", 1.0), row("planted", 0.5, gain=2.0, exact=False))
    backend = Planted(exact=False)
    found = plan(tmp_path, results, backend)
    assert engaged(found, "tr.attention") == "sdpa"
    assert "not planted: approximate, and its clips of this model were never compared" in reasons(found)
    alike = Quality("starter", "transformer", "attention", "planted", 20, 34.0, 0.97, 30.0, 0.95)
    proved = plan(tmp_path, results.with_qualities((alike,)), backend)
    assert engaged(proved, "tr.attention") == "planted"
    assert "approximate: its clips reach 34.0 dB" in reasons(proved)
    for other in (replace(alike, psnr=29.0), replace(alike, model="another"), replace(alike, backend="another")):
        assert engaged(plan(tmp_path, results.with_qualities((other,)), backend), "tr.attention") == "sdpa"
    assert engaged(plan(tmp_path, results.with_qualities((alike,)), backend, model_name=""), "tr.attention") == "sdpa"


def test_figures_in_both_dtypes_decide_the_dtype(tmp_path: Path) -> None:
    linear = replace(CALL, kind="linear", title="a linear")
    for low, wanted in ((0.5, "bfloat16"), (0.95, "float32")):
        rows = [
            row(name, 1.0 if dtype == "float32" else low, call=call, dtype=dtype)
            for name, call in (("sdpa", CALL), ("stock", linear))
            for dtype in ("float32", "bfloat16")
        ]
        readouts = for_model(measured(model(), *rows), model())
        found = make_plan(machine("zen3", tmp_path), model(), readouts=readouts)
        assert engaged(found, "tr.dtype") == wanted, "zen3's own test says float32"
        noisy = for_model(measured(model(), *rows, busy=0.5), model())
        busy = make_plan(machine("zen3", tmp_path), model(), readouts=noisy)
        assert engaged(busy, "tr.dtype") == "float32", "sums of times on a busy machine decide nothing"
        assert "measured on this machine: its calls take" in found.stage("transformer").dtype.reasons[0]  # type: ignore[union-attr]


def test_an_approximate_backend_never_keeps_a_stage_in_float32(tmp_path: Path) -> None:
    linear = replace(CALL, kind="linear", title="a linear")
    rows = [
        row("sdpa", 1.0), row("sdpa", 1.0, dtype="bfloat16"),
        row("stock", 2.0, call=linear), row("stock", 1.0, call=linear, dtype="bfloat16"),
        row("dynamic_int8", 0.5, gain=4.0, call=linear, exact=False),
    ]  # fmt: skip
    alike = Quality("starter", "transformer", "linear", "dynamic_int8", 20, 34.0, 0.97, 30.0, 0.95)
    results = measured(model(), *rows).with_qualities((alike,))
    found = make_plan(machine("zen5", tmp_path), model(), readouts=for_model(results, model(), "starter"))
    assert engaged(found, "tr.dtype") == "bfloat16"
    assert engaged(found, "tr.linear") == "stock"


# -- figures for the page --


def test_figures_of_a_backend_over_all_its_calls() -> None:
    rows = [
        row("sdpa", 1.0, speedup=1.0, share_of_peak=0.2), row("sdpa", 5.0, speedup=1.0, call=OTHER, share_of_peak=0.4),
        row("x", 0.5, gain=2.0, speedup=2.0, share_of_peak=0.5, error=1e-3),
        row("x", 5.0, gain=1.0, speedup=1.0, call=OTHER, verdict="not served", error=2e-3),
    ]  # fmt: skip
    results = measured(model(), *rows, dtypes={"transformer": "float32"})
    found = ranking.figures(results, model())
    own = found["transformer", "attention", "x"]
    assert own.speedup == pytest.approx((10 + 5) / (5 + 5))
    assert (own.error, own.share_of_peak) == (2e-3, 0.5)
    plain = found["transformer", "attention", "sdpa"]
    assert plain.speedup == 1.0
    assert plain.share_of_peak == pytest.approx((0.2 * 10 + 0.4 * 5) / 15)
    assert ranking.figures(results, model(700)) == {}
    assert ranking.figures(None, model()) == {}


def test_a_step_cache_is_as_fast_as_the_steps_of_its_clip() -> None:
    seconds = {"automatic": 2.0, "automatic with first_block": 0.8, "automatic with mag": 0.0}
    clips = tuple(
        Clip(name, "", "", {}, one, 4, 9.0, failed="" if one else "out of memory") for name, one in seconds.items()
    )
    results = measured(model(), row("sdpa", 1.0), clips=clips)
    stages = tuple(replace(stage, caches={"first_block": "", "mag": "", "pyramid": ""}) for stage in model().stages)
    assert ranking.cache_speedups(results, replace(model(), stages=stages)) == {"first_block": 2.5}
    assert ranking.cache_speedups(results, model()) == ranking.cache_speedups(None, model()) == {}


def test_a_full_measurement_counts_more_than_a_newer_quick_one() -> None:
    full, quick = (measured(model(), row("sdpa", ms), quick=quick, when=when).measurements[0] for ms, quick, when in (
        (1.0, False, "2026"), (9.0, True, "2027")
    ))  # fmt: skip
    both = Results(Place("f", "here", {}), measurements=(quick, full))
    assert for_model(both, model()).of("transformer", "attention", "float32", "cpu")[0].seconds == pytest.approx(1e-2)
