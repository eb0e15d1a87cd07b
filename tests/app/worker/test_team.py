"""One clip by several processes on this CPU (over gloo), through the worker's engine: the clip of one process, stopped
within a step, and whatever becomes of a rank, one sentence and the next clip.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from app.engine import Clip, Engine, several
from app.errors import Cancelled, JobFailedError
from app.paths import Home
from app.progress import Progress
from app.request import AccelPreferences, GenerationRequest
from app.worker.engines import WorkerEngine
from app.worker.supervisor import ROOT
from tests.app import ranked
from tests.app.services import until

pytestmark = pytest.mark.skipif(os.name == "nt", reason="faults are signals")

ONE = GenerationRequest(prompt="a red ball", width=64, height=64, frames=5, steps=3, seed=7)
GUIDED, TOKENS = 4.0, 1.0
LONG = pytest.mark.long


def on(count: int, guidance: float = GUIDED, prompt: str = "a red ball", steps: int = 3) -> GenerationRequest:
    shared = AccelPreferences(gpus=count)
    return ONE.model_copy(update={"accel": shared, "guidance": guidance, "prompt": prompt, "steps": steps})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def engine(home: Home) -> Iterator[WorkerEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(several.ON_CPU, "1")
        with ranked.engine(home) as made:
            yield made


@pytest.fixture(scope="module")
def alone(home: Home) -> dict[float, Clip]:
    with Engine(home) as one:
        return {guidance: one.generate(on(1, guidance)) for guidance in (GUIDED, TOKENS)}


def pids(engine: WorkerEngine) -> tuple[int, ...]:
    return () if engine.team is None else engine.team.pids


def alike(clip: Clip, other: Clip) -> bool:
    """Within rounding: no byte further than one from the other's."""
    assert clip.frames.shape == other.frames.shape
    assert clip.frames.std() > 5
    return int(np.abs(clip.frames.astype(int) - other.frames.astype(int)).max()) <= 1


@pytest.mark.parametrize(
    ("guidance", "how"), [(GUIDED, "guidance's two branches apart"), (TOKENS, "each forward's tokens dealt to 2")]
)
def test_two_processes_make_the_clip_of_one(
    engine: WorkerEngine, alone: dict[float, Clip], guidance: float, how: str
) -> None:
    seen: list[Progress] = []
    clip = engine.generate(on(2, guidance), seen.append, previews=True)
    assert alike(clip, alone[guidance])
    assert clip.plan["ranks"]["how"] == how
    assert clip.report["ran_on"] == f"2 x {alone[guidance].report['ran_on']}"
    assert "first of 2 ranks" in clip.report["counted_by"]
    calls = [one.report["attention"]["transformer"]["calls"] for one in (clip, alone[guidance])]
    assert calls[0] * 2 == calls[1] if guidance == GUIDED else calls[0] == calls[1]
    assert clip.memory > 2 * 100 * 2**20
    assert [item.step for item in seen if item.stage == "denoising"][-1] == 3
    assert any(item.preview is not None for item in seen)
    before = pids(engine)
    again = engine.generate(on(2, guidance))
    assert np.array_equal(again.frames, clip.frames)
    assert (pids(engine), len(before)) == (before, 2), "the ranks and their model are used again"


@LONG
def test_four_processes_share_branches_and_tokens(engine: WorkerEngine, alone: dict[float, Clip]) -> None:
    clip = engine.generate(on(4))
    assert alike(clip, alone[GUIDED])
    assert clip.plan["ranks"]["how"] == "guidance's two branches apart, each forward's tokens dealt to 2"
    assert len(pids(engine)) == 4


@pytest.mark.parametrize("guidance", [GUIDED, TOKENS])
def test_a_clip_is_stopped_within_a_step_and_the_next_one_made_by_the_same_ranks(
    engine: WorkerEngine, alone: dict[float, Clip], guidance: float
) -> None:
    engine.generate(on(2, guidance))
    before, seen, asked = pids(engine), list[Progress](), list[float]()

    def stop() -> bool:
        if seen and seen[-1].stage == "denoising" and seen[-1].step >= 1 and not asked:
            asked.append(time.monotonic())
        return bool(asked)

    with pytest.raises(Cancelled, match="Stopped while denoising, step"):
        engine.generate(on(2, guidance, steps=900), seen.append, stop)
    assert time.monotonic() - asked[0] < 5
    assert alike(engine.generate(on(2, guidance)), alone[guidance])
    assert pids(engine) == before


@pytest.mark.parametrize(
    ("guidance", "fault", "said"),
    [
        (TOKENS, "kill:1", r"Process 2 of 2 ended while (text|denoising.*) \(SIGKILL\); run the clip again"),
        pytest.param(
            GUIDED, "exit:0", r"Process 1 of 2 ended .* \(exit code 7: goodbye from a library\); run", marks=LONG
        ),
        pytest.param(TOKENS, "value:1", "an unforeseen thing", marks=LONG),
        pytest.param(GUIDED, "memory:1", "Out of memory while denoising", marks=LONG),
    ],
)
def test_whatever_becomes_of_a_rank_the_clip_says_it_and_the_next_one_is_made(
    engine: WorkerEngine, alone: dict[float, Clip], guidance: float, fault: str, said: str
) -> None:
    engine.generate(on(2, guidance))
    gone = pids(engine)
    with pytest.raises(JobFailedError, match=said) as failed:
        engine.generate(on(2, guidance, f"fault:{fault}"))
    assert "\n" not in str(failed.value)
    assert alike(engine.generate(on(2, guidance)), alone[guidance])
    if fault.partition(":")[0] in ("kill", "exit"):
        assert not any(psutil.pid_exists(pid) for pid in gone)


def test_no_numbers_on_one_rank_are_tried_again_by_all_with_the_reference(
    engine: WorkerEngine, alone: dict[float, Clip]
) -> None:
    clip = engine.generate(on(2, TOKENS, "fault:nan:1"))
    assert "at step 2 of 3" in clip.report["retried"]
    assert clip.frames.shape == alone[TOKENS].frames.shape
    assert alike(engine.generate(on(2, TOKENS)), alone[TOKENS])


@pytest.mark.long
def test_ranks_that_do_nothing_are_ended(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(several.ON_CPU, "1")
    with ranked.engine(home, patience=25.0) as impatient:
        impatient.generate(on(2))
        gone, begun = pids(impatient), time.monotonic()
        with pytest.raises(JobFailedError, match="did nothing for 25 s while") as failed:
            impatient.generate(on(2, GUIDED, "fault:freeze:1"))
        assert time.monotonic() - begun < 60
        assert "\n" not in str(failed.value)
        assert not any(psutil.pid_exists(pid) for pid in gone)


def test_a_clip_for_one_device_ends_the_ranks(engine: WorkerEngine) -> None:
    engine.generate(on(2))
    gone = pids(engine)
    assert engine.held() > 0
    assert engine.generate(on(1)).report["ran_on"]
    assert (engine.team, engine.held()) == (None, 0)
    until(lambda: not any(psutil.pid_exists(pid) for pid in gone))


@pytest.mark.long
def test_ranks_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    program = f"""
import time
from pathlib import Path
from app.paths import Home
from tests.app import ranked
from app.request import AccelPreferences, GenerationRequest
engine = ranked.engine(Home(Path({str(tmp_path / "home")!r})))
shared = AccelPreferences(gpus=2)
engine.generate(GenerationRequest(prompt="a ball", width=64, height=64, frames=5, steps=2, seed=7, accel=shared))
Path({str(told)!r}).write_text(" ".join(map(str, engine.team.pids)))
time.sleep(600)
"""
    environ = {**os.environ, several.ON_CPU: "1"}
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environ) as process:
        numbers = [int(one) for one in until(lambda: told.exists() and told.read_text(), 120).split()]
        assert len(numbers) == 2
        assert all(psutil.pid_exists(pid) for pid in numbers)
        process.send_signal(signal.SIGKILL)
    until(lambda: not any(_runs(pid) for pid in numbers), 5)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
