"""The rules for winners, and the file's form, which others read."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from accel.readouts import results
from accel.readouts.results import Measurement, Peak, Place, Quality, Results, Row, Spread, Verdict, judged
from tests.accel.measuring.planted import row, spread

PLACE = Place("f", "a machine", {"torch": "2.13"})


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        (Spread(1.30, 1.20, 1.40, 9), "faster"),
        (Spread(1.30, 0.98, 1.60, 9), "unclear"),
        (Spread(1.05, 1.01, 1.09, 9), "faster"),
        (Spread(1.049, 1.04, 1.05, 9), "no gain"),
        (Spread(0.96, 0.95, 0.97, 9), "no gain"),
        (Spread(0.80, 0.75, 0.85, 9), "slower"),
        (Spread(0.80, 0.60, 1.10, 9), "unclear"),
    ],
)
def test_no_winner_is_called_inside_the_spread_nor_under_five_percent(gain: Spread, verdict: Verdict) -> None:
    assert judged(gain) == verdict


def test_clips_allow_an_approximate_backend_or_say_why_not() -> None:
    fine = Quality("starter", "transformer", "linear", "int8", 20, 31.0, 0.96, 28.0, 0.9)
    assert fine.why_not == ""
    assert "29.9 dB and 0.960 SSIM" in replace(fine, psnr=29.9).why_not
    assert "0.949 SSIM" in replace(fine, ssim=0.949).why_not
    assert "19 prompts only" in replace(fine, prompts=19).why_not


def everything() -> Results:
    measured = Measurement("starter", "a clip", "2026-01-01", True, {"vae": "x"}, {"vae": "float32"}, (row("sdpa", 1),))
    quality = Quality("starter", "transformer", "linear", "int8", 20, 31.0, 0.96, 28.0, 0.9)
    return Results(PLACE, peaks=(Peak("cpu", "float32", 0.2, "a product"),), measurements=(measured,)).with_qualities(
        (quality,)
    )


def test_any_results_survive_json() -> None:
    assert Results.from_dict(json.loads(json.dumps(everything().to_dict()))) == everything()


def test_the_form_of_the_file_is_frozen() -> None:
    """A change here is a change of the schema: raise SCHEMA when a field goes or changes its meaning."""
    assert results.SCHEMA == 1
    names = {kind.__name__: " ".join(item.name for item in fields(kind)) for kind in (Results, Measurement, Row)}
    assert names == {
        "Results": "place schema peaks measurements qualities",
        "Measurement": "model title when quick classes dtypes rows clips notes busy took",
        "Row": "call backend title dtype device exact verdict time gain speedup over_fp32 teraflops share_of_peak "
        "error memory executed served calls fallback note",
    }


def test_new_figures_take_the_place_of_old_ones() -> None:
    kept = everything()
    newer = replace(kept.measurements[0], when="2027-01-01")
    other = replace(newer, classes={"vae": "y"})
    assert kept.with_measurement(newer).measurements == (newer,)
    assert kept.with_measurement(other).measurements == (*kept.measurements, other)
    faster = Peak("cpu", "float32", 0.3, "a larger product")
    assert kept.with_peaks((faster,)).peak("cpu", "float32") == 0.3
    assert kept.peak("cpu", "int8") is None
    better = replace(kept.qualities[0], psnr=40.0)
    assert kept.with_qualities((better,)).qualities == (better,)


def test_spreads_are_relative_to_their_median() -> None:
    assert spread(2.0, 0.5).width == pytest.approx(0.5)
    assert Spread(0.0, 0.0, 0.0, 3).width == 0
