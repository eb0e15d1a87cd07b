"""Figures as a person reads them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accel.readouts import words
from accel.readouts.results import Clip, Measurement, Peak, Place, Quality, Results
from tests.accel.measuring.planted import CALL, row


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (1.0, "1x"),
        (1.049, "no gain"),
        (0.96, "no gain"),
        (1.05, "1.05x"),
        (0.5, "0.50x"),
        (12.3, "12.30x"),
    ],
)
def test_a_speed_up_under_five_percent_is_none(value: float | None, text: str) -> None:
    """Case 18: nothing below 1.05x is shown as a gain."""
    assert words.ratio(value) == text


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("linear=stock is on", "linear"),
        ("dynamic_int8 was chosen by hand", "dynamic_int8"),
        ("sdpa is faster here", "sdpa"),
        ("torchao: it is missing", "torchao"),
        ("oneDNN has it", "oneDNN"),
        ("this CPU has no amx_tile", "This"),
        ("", ""),
    ],
)
def test_names_keep_their_letters_at_the_beginning_of_a_sentence(text: str, begins: str) -> None:
    assert words.capital(text) == f"{begins}{text[len(begins) :]}"


def test_a_row_tells_what_ran_and_what_fell_back() -> None:
    """Case 18: the kernel that ran, by the profiler, and how many calls the backend served."""
    one = row("x", 2.0, gain=2.0, speedup=2.0, over_fp32=3.0, teraflops=0.123, share_of_peak=0.5, memory=3 * 2**20)
    fallen = replace(one, served=1, calls=3, fallback="a mask per query", executed="aten::mm 90%", note="noted")
    cells = dict(zip(words.COLUMNS, words.cells(fallen), strict=True))
    assert cells["Time"] == "2 ms ±1%"
    assert (cells["Speed-up"], cells["over fp32"], cells["of peak"]) == ("2.00x", "3.00x", "50%")
    assert (cells["Memory"], cells["Verdict"], cells["Error"]) == ("3.0 MiB", "faster than plain fp32", "1.0e-06")
    assert cells["Ran"] == "aten::mm 90%; 1 of 3 served: a mask per query; noted"
    assert words.cells(row("sdpa", 1.0))[9] == "plain PyTorch"


def test_the_whole_text() -> None:
    part = replace(CALL, share=0.25, title="a part")
    clips = (
        Clip("reference", "", "float32", {"text": 0.1, "decode": 1.0}, 0.2, 4, 5.1),
        Clip("automatic", "bf16", "bfloat16", {}, 0.1, 4, 3.0, 41.2, 0.987, 9, 9),
        Clip("int8", "", "", {}, 0, 0, 0, failed="it would not"),
    )
    made = Measurement("m", "a clip", "today", True, {}, {}, (row("sdpa", 1.0), row("x", 1, call=part)), clips)
    made = replace(made, notes=("something was left out",), busy=0.6, took=61)
    quality = Quality("m", "transformer", "linear", "int8", 20, 25.0, 0.9, 20.0, 0.8, "small")
    results = Results(Place("f", "a machine", {}), peaks=(Peak("cpu", "int8", 0.5, "a product"),), qualities=(quality,))
    text = words.text(results, made)
    for says in (
        "Transformer: self attention (10 a pass)",
        "Transformer: a part (10 a pass, measured on 25% of it)",
        "it is the reference",
        "41.2 dB",
        "9 of 9",
        "failed: it would not",
        "Peak in int8: 0.5 TFLOP/s, a product.",
        "int8: 20 clips of m (small) reach 25.0 dB and 0.900 SSIM (worst 20.0 dB, 0.800); so automatic never takes it.",
        "Other programs kept 60% of the cores busy meanwhile: the figures are noisy.",
        "Something was left out.",
        "Measured on a machine in 1:01 min, today.",
    ):
        assert says in text
