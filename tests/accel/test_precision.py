"""The dtype of a stage: by figures, with a word on rounding."""

from __future__ import annotations

from pathlib import Path

from accel import precision
from accel.plan import make_plan
from accel.types import Preferences
from tests.accel.recorded import machine, model, refusals


def test_bf16_on_an_avx2_machine_is_kept_with_a_warning_when_forced(tmp_path: Path) -> None:
    plan = make_plan(machine("skylake-avx2", tmp_path), model(), Preferences(dtype="bf16"))
    stage = plan.stage("vae")
    assert stage is not None
    assert stage.dtype.engaged == "bfloat16"
    assert "300 times slower" in " ".join(stage.dtype.reasons)


def test_bf16_that_killed_its_test_is_refused(tmp_path: Path) -> None:
    found = refusals(machine("lying-amx", tmp_path), dtype="bfloat16")
    assert all("killed by SIGILL" in reason and "dtype=float32" in reason for reason in found)


def test_both_figures_are_shown_for_the_dtype(tmp_path: Path) -> None:
    plan = make_plan(machine("skylake-avx2", tmp_path), model())
    stage = plan.stage("text_encoder")
    assert stage is not None
    assert "8.1 times slower" in stage.dtype.reasons[0]
    assert "linear 34 ms, fp32 4.2 ms" in stage.dtype.reasons[1]


def test_a_lower_precision_says_that_pixels_differ(tmp_path: Path) -> None:
    for name, said in (("zen5", True), ("h200", True), ("zen3", False)):
        stage = make_plan(machine(name, tmp_path / name), model()).stage("transformer")
        assert stage is not None
        assert (precision.ROUNDING in stage.dtype.reasons) is said
