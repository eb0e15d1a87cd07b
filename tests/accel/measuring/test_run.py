"""A whole benchmark of a model so small that its figures mean nothing: what is kept, and what is left out and said."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accel
from accel import caches
from accel.measuring import micro, run
from accel.measuring.clips import Made
from accel.measuring.course import Course
from accel.measuring.run import Benchmark, Others, Subject, clip_seconds, raised
from accel.measuring.timing import Stopped
from accel.readouts import ranking, store
from accel.readouts.results import PROMPTS, Peak, Place, Quality, Results
from accel.types import Preferences
from tests import builders
from tests.accel.measuring.planted import CALL, row

HERE = builders.machine("int8", "conv3d")
PROMPTS_HERE = tuple(f"prompt {number}" for number in range(PROMPTS))


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = replace(micro.QUICK, row=0.01, profiled=False)
    monkeypatch.setattr(micro, "QUICK", pace)
    monkeypatch.setattr(micro, "FULL", pace)
    monkeypatch.setattr(run, "PEAK_SECONDS", {True: 0.05, False: 0.05})


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return builders.wan()


def make(preferences: Preferences, prompt: str, steps: int) -> Made:
    off = 1 if preferences.linear == "dynamic_int8" else 0
    return Made(np.full((1, 16, 16, 3), 100 + off, np.uint8), {"load": 0.0, "denoise": 0.1, "decode": 0.1}, steps)


def subject(pipeline: Any, **changes: Any) -> Subject:
    usual = Subject("tiny", "a tiny clip", (64, 32, 5), pipeline, 4, "a ball", make, PROMPTS_HERE)
    return replace(usual, **changes)


def benchmark(folder: Path, pipeline: Any, subject_changes: dict[str, Any] | None = None, **changes: Any) -> Benchmark:
    return replace(Benchmark(HERE, subject(pipeline, **(subject_changes or {})), where=folder), **changes)


def test_what_was_measured_is_kept_and_decides_the_plan(tmp_path: Path, pipeline: Any) -> None:
    told: list[float] = []
    left: list[float | None] = []

    def tell(done: float, text: str, seconds: float | None = None) -> None:
        told.append(done)
        left.append(seconds)

    results, made = benchmark(tmp_path, pipeline, tell=tell).run()
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert left[:2] == [None, None], "nothing can be reckoned before the calls and the peak are known"
    assert all(seconds is not None and seconds > 0 for seconds in left[2:-1])
    assert store.load(HERE, tmp_path).current == results
    assert results.measurements == (made,)
    assert {one.dtype for one in results.peaks} == {"float32", "int8"}
    assert all(row.share_of_peak is not None and row.share_of_peak <= 1 for row in made.rows if row.time)
    tried = ["dynamic_int8", *caches.NAMES]
    assert [clip.plan for clip in made.clips] == [
        "reference",
        "automatic",
        *(f"automatic with {name}" for name in tried),
    ]
    assert [quality.backend for quality in results.qualities] == tried
    quality = results.qualities[0]
    assert (quality.prompts, quality.why_not) == (PROMPTS, "")
    traits = accel.traits_of(pipeline, width=64, height=32, frames=5)
    stage = accel.make_plan(HERE, traits, readouts=ranking.for_model(results, traits, "tiny")).stage("transformer")
    assert stage is not None
    assert "on this machine for this shape" in stage.linear.reasons[0]


def test_a_quick_one_makes_few_steps_compares_no_prompts_and_takes_known_peaks(tmp_path: Path, pipeline: Any) -> None:
    known = Results(
        store.place(HERE), peaks=(Peak("cpu", "float32", 99.0, "known"), Peak("cpu", "int8", 99.0, "known"))
    )
    store.save(known, tmp_path)
    results, made = benchmark(tmp_path, pipeline, quick=True).run()
    assert {clip.steps for clip in made.clips} == {run.QUICK_STEPS}
    assert [clip.plan for clip in made.clips] == ["reference", "automatic", "automatic with dynamic_int8"]
    assert results.qualities == ()
    assert results.peaks == known.peaks
    full, _ = benchmark(tmp_path, pipeline, quality=False).run()
    assert [one.quick for one in full.measurements] == [True, False], "both are kept"
    assert full.qualities == ()


def test_what_it_will_take_is_reckoned_before_and_leaves_out_what_it_will_leave_out(
    tmp_path: Path, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: dict[str, list[list[float]]] = {}

    class Listening(Course):
        def expect(self, part: str, seconds: Iterable[float]) -> None:
            said.setdefault(part, []).append(list(seconds))
            super().expect(part, said[part][-1])

    monkeypatch.setattr(run, "Course", Listening)
    _, made = benchmark(tmp_path, pipeline, quick=True).run()
    assert len(said["calls"][0]) == len({row.call.title for row in made.rows})
    assert all(seconds > 0 for seconds in said["calls"][0])
    assert [len(clips) for clips in said["clips"]] == [len(made.clips)] * 2
    assert said["prompts"] == [[], []]
    said.clear()
    _, made = benchmark(tmp_path, pipeline).run()
    assert [len(clips) for clips in said["clips"]] == [2 * len(made.clips)] * 2
    assert len(said["prompts"][-1]) == PROMPTS * (1 + len({one.backend for one in made_qualities(tmp_path)}))
    said.clear()
    monkeypatch.setattr(run, "CLIP_SECONDS", {True: 0.0, False: 0.0})
    benchmark(tmp_path, pipeline, quick=True).run()
    assert said["clips"] == [[], []]


def made_qualities(folder: Path) -> tuple[Quality, ...]:
    kept = store.load(HERE, folder).current
    assert kept is not None
    return kept.qualities


def test_what_would_take_too_long_is_left_out_and_said(
    tmp_path: Path, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "QUALITY_SECONDS", 0.0)
    results, made = benchmark(tmp_path, pipeline).run()
    assert results.qualities == ()
    assert any("clips of 20 prompts were not compared" in note for note in made.notes)
    asked, _ = benchmark(tmp_path, pipeline, quality=True).run()
    assert len(asked.qualities) == 1 + len(caches.NAMES)
    monkeypatch.setattr(run, "QUALITY_SECONDS", 1.0)
    seconds = {True: 2.0, False: 0.5}  # with step caches, and without
    monkeypatch.setattr(
        "accel.measuring.clips.seconds_for", lambda made, plans, _: seconds[any(one.caches for one in plans)]
    )
    fewer, _ = benchmark(tmp_path / "fewer", pipeline).run()
    assert [one.backend for one in fewer.qualities] == ["dynamic_int8"], "what auto may take comes first"
    monkeypatch.setattr(run, "CLIP_SECONDS", {True: 0.0, False: 0.0})
    _, made = benchmark(tmp_path, pipeline).run()
    assert made.clips == ()
    assert any("no clips were compared" in note for note in made.notes)


def test_stopped_it_keeps_nothing_but_what_was_there(tmp_path: Path, pipeline: Any) -> None:
    with pytest.raises(Stopped):
        benchmark(tmp_path, pipeline, should_stop=lambda: True).run()
    assert list(tmp_path.iterdir()) == []

    def stop(preferences: Preferences, prompt: str, steps: int) -> Made:
        raise Stopped

    with pytest.raises(Stopped):
        benchmark(tmp_path, pipeline, {"make": stop}).run()
    kept = store.load(HERE, tmp_path).current
    assert kept is not None
    assert kept.measurements[0].rows, "rows that were finished count"


def test_a_folder_that_can_not_be_written_is_noted(tmp_path: Path, pipeline: Any) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    _, made = benchmark(tmp_path / "file", pipeline, {"make": None}).run()
    assert any("could not be kept" in note for note in made.notes)


def test_a_call_beyond_the_peak_raises_it_unless_it_is_wrong() -> None:
    results = Results(Place("f", "here", {}), peaks=(Peak("cpu", "float32", 1.0, "a product"),))
    rows = [row("a", 1, teraflops=2.0, share_of_peak=2.0), row("b", 1, teraflops=1.0, share_of_peak=1.0)]
    results, after = raised(results, rows)
    assert results.peaks == (Peak("cpu", "float32", 2.0, "self attention by a"),)
    assert [one.share_of_peak for one in after] == [1.0, 0.5]
    wrong = row("w", 1, teraflops=9.0, share_of_peak=4.5, verdict="wrong")
    assert raised(results, [wrong])[0] == results


def test_a_clips_time_is_reckoned_from_its_calls() -> None:
    encoder = replace(CALL, stage="text_encoder", count=1)
    rows = [row("sdpa", 10.0), row("x", 1.0, gain=10.0), row("stock", 7.0, call=encoder)]
    assert clip_seconds(rows, 3) == pytest.approx(6 * 10 * 10e-3 + 7e-3)


def test_other_programs_are_told_from_this_one() -> None:
    others = Others()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    found = others.busy()
    assert found is not None
    print(f"others: {found:.0%}")
    planted = Others()
    planted._before, planted._now = (0.0, 0.0, 0.0), lambda: (6.0, 10.0, 2.0)  # type: ignore[method-assign]
    assert planted.busy() == pytest.approx(0.4)


@pytest.mark.skipif(os.name == "nt", reason="a shell's ways")
def test_without_the_app(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from accel.readouts import __main__ as command

    monkeypatch.setattr(command, "probe", lambda patience: HERE)
    monkeypatch.setattr("accel.threads.apply", lambda machine: [])
    builders.wan().save_pretrained(tmp_path / "model")
    out, plot = tmp_path / "out.json", tmp_path / "out.svg"
    line = f"--model {tmp_path / 'model'} --size 64x32x5 --quick --where {tmp_path} --json {out} --plot {plot}"
    assert command.main(line.split()) == 0
    assert store.read(out).measurements[0].rows
    assert plot.read_text().startswith("<svg")
    assert "Transformer: cross attention" in capsys.readouterr().out
    for wrong in ("", "nonsense", "encode --model x", "--model x --size 5"):
        with pytest.raises(SystemExit):
            command.main(wrong.split())
