"""--bench and --verify from the command line: what is asked for, what is told and written, and how it ends."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel.readouts.results import Clip, Measurement, Peak, Place, Results
from app.bench import BenchSettings, ask_of, run_bench
from app.errors import Cancelled, CannotRunError, UsageError
from app.interrupt import Interrupts
from app.measuring import MeasureAsk
from app.paths import Home
from app.worker import measuring
from tests.accel.measuring.planted import row
from tests.app.services import QUICK
from tests.app.standin import StandIn
from tests.app.workers import in_thread

OPTIONS: dict[str, Any] = {"launch": in_thread(StandIn), "patience": QUICK}


def settings(home: Home, **changes: Any) -> BenchSettings:
    return BenchSettings(home, options=OPTIONS, **changes)


def benched() -> dict[str, Any]:
    clips = (Clip("reference", "", "float32", {"total": 2.0}, 0.5, 3, 9.0),)
    made = Measurement("starter", "a clip", "today", True, {}, {}, (row("sdpa", 1.0, speedup=1.0),), clips)
    results = Results(Place("f", "a machine", {}), peaks=(Peak("cpu", "float32", 0.2, "a product"),))
    return {"results": results.with_measurement(made).to_dict(), "measurement": made.to_dict()}


def verified() -> dict[str, Any]:
    clips = [
        Clip("reference", "float32", "float32", {"total": 5.0, "load": 1.0}, 0.5, 3, 9.0),
        Clip("automatic", "bfloat16", "bfloat16", {"total": 3.0, "load": 1.0}, 0.2, 3, 4.0, 38.2, 0.981),
    ]
    return {"title": "a clip", "clips": [clip.to_dict() for clip in clips], "frames": []}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[MeasureAsk]:
    """In the place of measuring: answers at once, and remembers what was asked."""
    asked: list[MeasureAsk] = []

    def measure(ask: MeasureAsk, engine: Any, home: Home, tell: Callable[..., Any], stop: Any) -> dict[str, Any]:
        asked.append(ask)
        tell(0.5, "half of it")
        return benched() if ask.kind == "bench" else verified()

    monkeypatch.setattr(measuring, "measure", measure)
    return asked


def test_a_benchmark_is_told_and_written(home: Home, measured: list[MeasureAsk], tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    files = {"json": tmp_path / "out.json", "plot": tmp_path / "out.svg"}
    assert run_bench(settings(home, quick=True, **files), out, err) == 0
    assert (measured[0].kind, measured[0].quick, measured[0].request.model) == ("bench", True, "starter")
    text = out.getvalue()
    for says in ("Transformer: self attention (10 a pass)", "plain PyTorch", "Whole clips of one seed", "Peak in fp32"):
        assert says in text
    assert "Measuring Starter, 256x160, 25 frames, 20 steps" in err.getvalue()
    assert Results.from_dict(json.loads(files["json"].read_text())).measurements
    assert files["plot"].read_text().startswith("<svg")


@pytest.mark.usefixtures("measured")
def test_json_on_standard_output_is_nothing_but_json(home: Home) -> None:
    out = io.StringIO()
    run_bench(settings(home, json=True), out, io.StringIO())
    assert json.loads(out.getvalue())["measurement"]["model"] == "starter"


def test_verifying_says_how_fast_and_how_alike(home: Home, measured: list[MeasureAsk]) -> None:
    out = io.StringIO()
    assert run_bench(settings(home, verify=True, model="starter"), out, io.StringIO()) == 0
    assert measured[0].kind == "verify"
    assert (
        "automatic is 2.00 times as fast: 2.0 s a clip once it is loaded, reference 4.0 s; its frames reach 38.2 dB "
        "and 0.981 SSIM against it." in out.getvalue()
    )


def test_what_is_measured_comes_from_preset_model_and_settings(home: Home) -> None:
    first = ask_of(settings(home)).request
    assert (first.width, first.steps) == (256, 20)
    assert first.prompt, "the first shipped preset"
    own = ask_of(settings(home, preset="starter-rocket", assignments=("steps=7", "width=128")))
    assert (own.request.steps, own.request.width) == (7, 128)
    assert "rocket" in own.request.prompt
    assert ask_of(settings(home, model="starter")).request.prompt, "an empty one would run without guidance"
    with pytest.raises(UsageError, match="nonsense"):
        ask_of(settings(home, model="nonsense"))


def test_several_requests_are_refused(home: Home, tmp_path: Path) -> None:
    batch = tmp_path / "many.jsonl"
    batch.write_text('{"prompt": "a"}\n{"prompt": "b"}\n', encoding="utf-8")
    with pytest.raises(UsageError, match="holds 2 requests"):
        ask_of(settings(home, preset=str(batch)))


def test_what_fails_is_an_error(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> dict[str, Any]:
        raise CannotRunError("It is not on this machine.")

    monkeypatch.setattr(measuring, "measure", refuse)
    with pytest.raises(CannotRunError, match="It is not on this machine"):
        run_bench(settings(home), io.StringIO(), io.StringIO())


@pytest.mark.usefixtures("measured")
def test_a_file_that_can_not_be_written_is_an_error(home: Home, tmp_path: Path) -> None:
    with pytest.raises(CannotRunError, match="name another file"):
        run_bench(settings(home, json=tmp_path / "no" / "out.json"), io.StringIO(), io.StringIO())


def test_ctrl_c_stops_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts: list[Interrupts] = []
    begin = Interrupts.__enter__

    def enter(self: Interrupts) -> Interrupts:
        interrupts.append(self)
        return begin(self)

    def measure(ask: Any, engine: Any, home: Any, tell: Any, should_stop: Callable[[], bool]) -> dict[str, Any]:
        interrupts[0].asked = True
        stopped = threading.Event()
        while not stopped.wait(0.01):
            if should_stop():
                raise Cancelled("Stopped; what was measured so far is not shown.")
        raise AssertionError

    monkeypatch.setattr(Interrupts, "__enter__", enter)
    monkeypatch.setattr(measuring, "measure", measure)
    with pytest.raises(Cancelled, match="what was measured so far"):
        run_bench(settings(home), io.StringIO(), io.StringIO())
