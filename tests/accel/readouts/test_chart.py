"""The chart's two forms hold the same figures."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from accel.readouts import chart
from accel.readouts.chart import Bar, Words
from tests.accel.measuring.planted import row

ROWS = [
    row("sdpa", 1.0, speedup=1.0),
    row("quick", 0.25, gain=4.0, speedup=4.0),
    row("<wrong> & more", 0.5, gain=2.0, speedup=2.0, verdict="wrong", error=0.2),
    row("broken", 1.0, verdict="failed", note="it fell over", time=None, gain=None),
]


def test_bars_are_as_long_as_they_are_fast_and_each_says_so() -> None:
    _, items = chart.layout(ROWS, "a title")
    bars = [item for item in items if isinstance(item, Bar) and item.height == chart.BAR]
    assert [bar.width / bars[0].width for bar in bars] == pytest.approx([1, 4, 2])
    assert [bar.role for bar in bars] == ["plain", "win", "bad"]
    told = [item.text for item in items if isinstance(item, Words)]
    for says in (
        "4.00x of plain fp32, error 1.0e-06, faster",
        "2.00x of plain fp32, error 2.0e-01, wrong",
        "failed: it fell over",
    ):
        assert says in told


def test_number_and_verdict_are_against_the_same() -> None:
    """A verdict is about plain PyTorch in the row's own precision, a bar about the plan's."""
    rows = [
        row("stock", 2.0, speedup=0.5),
        row("stock", 1.0, speedup=1.0, dtype="bfloat16"),
        row("int8", 1.4, gain=1.4, speedup=0.7),
        row("direct", 1.0, gain=2.0, speedup=1.02),
        row("spoiled", 1.0, gain=2.0, speedup=1.5, verdict="wrong"),
        row("packed", 0.5, gain=2.0, speedup=2.0, dtype="bfloat16"),
        row("even", 1.0, gain=1.0, speedup=1.01, dtype="bfloat16"),
    ]
    _, items = chart.layout(rows, "a title")
    told = [item.text for item in items if isinstance(item, Words)]
    assert [text.replace(", error 1.0e-06", "") for text in told if "plain bf16" in text] == [
        "0.50x of plain bf16, plain PyTorch",
        "1x of plain bf16, plain PyTorch",
        "0.70x of plain bf16",
        "no gain over plain bf16",
        "1.50x of plain bf16, wrong",
        "2.00x of plain bf16, faster",
        "no gain over plain bf16",
    ]
    assert not any("plain fp32" in text for text in told)


def test_the_narrow_chart_says_the_same_inside_a_phone_s_width() -> None:
    long = row("broken", 1.0, verdict="not served", note="outside the repeated blocks: small, sensitive", time=None)
    told: list[list[str]] = []
    for shape in (chart.WIDE, chart.NARROW):
        height, items = chart.layout([*ROWS, long], "a title", shape)
        texts = [item for item in items if isinstance(item, Words)]
        ends = [item.x + item.width for item in items if isinstance(item, Bar)]
        assert max([*ends, *(item.x + 6 * len(item.text) for item in texts)]) <= shape.width
        assert max(item.y for item in items) < height
        told.append(sorted(" ".join(item.text for item in texts).split()))
    assert told[0] == told[1]
    assert len({(item.x, item.y) for item in texts}) == len(texts), "one lies on another"


def test_the_svg_is_whole_and_holds_any_name() -> None:
    text = chart.svg(ROWS, 'a "title" <b>')
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == 'a "title" <b>'
    assert any("<wrong> & more" in (item.text or "") for item in root.iter())
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_files_are_as_their_names_end(tmp_path: Path) -> None:
    chart.save(ROWS, "t", tmp_path / "x.png")
    chart.save(ROWS, "t", tmp_path / "x.SVG")
    picture = Image.open(io.BytesIO((tmp_path / "x.png").read_bytes()))
    assert picture.size[0] == 2 * chart.WIDE.width
    assert len(picture.convert("RGB").getcolors(2**20) or ()) > 3
    assert (tmp_path / "x.SVG").read_text().startswith("<svg")
    with pytest.raises(ValueError, match=r"x\.pdf must end in \.svg or \.png"):
        chart.save(ROWS, "t", tmp_path / "x.pdf")


def test_nothing_measured_is_a_chart_too() -> None:
    assert ElementTree.fromstring(chart.svg([], "empty")).tag.endswith("svg")
