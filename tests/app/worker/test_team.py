"""One clip by several processes on this CPU (over gloo), through the worker's engine: the clip of one process, stopped
within a step, and whatever becomes of a rank, one sentence and the next clip.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

from accel.parallel.launching import BROKEN
from app.engine import Clip, Engine, kept, several
from app.errors import Cancelled, CannotRunError, JobFailedError
from app.paths import Home
from app.progress import Progress
from app.request import AccelPreferences, GenerationRequest
from app.worker import team as teams
from app.worker.engines import WorkerEngine
from app.worker.supervisor import ROOT, Death
from app.worker.team import Team
from app.worker.team import _Job as Job
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


@pytest.mark.parametrize("guidance", [GUIDED, pytest.param(TOKENS, marks=LONG)])
def test_a_clip_whose_end_failed_goes_on_from_its_latents(
    engine: WorkerEngine, home: Home, guidance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 52: of two processes, of which one alone decodes; both leave denoising out."""
    request = on(2, guidance, "fault:decode:0")
    plain = engine.generate(request)
    (home.root / "stop-short").touch()
    with pytest.raises(JobFailedError, match=r"while decoding .* an unforeseen thing\. Its latents are kept"):
        engine.generate(request, keeps=True)
    before = pids(engine)
    seen: list[Progress] = []
    clip = engine.generate(request, seen.append, keeps=True)
    assert clip.report["resumed"] == kept.WENT_ON
    assert clip.report["attention"] == plain.report["attention"]
    assert "denoising" not in {item.stage for item in seen}
    assert np.array_equal(clip.frames, plain.frames)
    assert clip.latents is not None
    clip.latents.unlink()
    again = engine.generate(request, keeps=True)
    assert "resumed" not in again.report
    assert np.array_equal(again.frames, plain.frames)
    assert pids(engine) == before


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


def test_a_rank_is_killed_while_the_other_one_waits_and_notices_nothing(
    engine: WorkerEngine, alone: dict[float, Clip]
) -> None:
    """As over NCCL, where nobody hears of it: the rank that waits would do so for its whole patience."""
    engine.generate(on(2, TOKENS))
    gone, begun = pids(engine), time.monotonic()
    with pytest.raises(JobFailedError, match=r"Process 2 of 2 ended while .* \(SIGKILL\)"):
        engine.generate(on(2, TOKENS, "fault:kill:1 fault:hang:0"))
    assert time.monotonic() - begun < ranked.PATIENCE
    assert not any(psutil.pid_exists(pid) for pid in gone), "a process was left behind, a zombie at least"
    assert alike(engine.generate(on(2, TOKENS)), alone[TOKENS])


def test_a_rank_that_ends_while_nothing_is_made_costs_no_clip(engine: WorkerEngine, alone: dict[float, Clip]) -> None:
    engine.generate(on(2))
    assert engine.team is not None
    gone, second = pids(engine), engine.team._links[1].worker
    os.kill(gone[1], signal.SIGKILL)
    assert second.wait(30)
    assert alike(engine.generate(on(2)), alone[GUIDED])
    assert not set(gone) & set(pids(engine))


def test_no_numbers_on_one_rank_are_tried_again_by_all_with_the_reference(
    engine: WorkerEngine, alone: dict[float, Clip]
) -> None:
    clip = engine.generate(on(2, TOKENS, "fault:nan:1"))
    assert "at step 2 of 3" in clip.report["retried"]
    assert clip.frames.shape == alone[TOKENS].frames.shape
    assert alike(engine.generate(on(2, TOKENS)), alone[TOKENS])


# -- without processes: what is said, and by whom --


class Saying:
    """A team whose ranks say what a test puts into their mouths; `deaths`: how those that ended did."""

    def __init__(self, home: Home, deaths: Sequence[Death | None] = (None, None)) -> None:
        self.team = Team(home, ("cuda:0", "cuda:1"))
        self.closed = 0
        for death in deaths:
            worker = Mock(wait=Mock(return_value=death is not None), death=Mock(return_value=death))
            self.team._links.append(Mock(worker=worker, kill=self._kill))

    def _kill(self) -> None:
        self.closed += 1

    def say(self, rank: int, **message: Any) -> None:
        whole = {"kind": "JobFailedError", "detail": "", "out_of_memory": False, "heard": False, **message}
        self.team._hear(self.team._heard, rank, whole, b"")

    def job(self) -> Job:
        return Job(self.team, lambda progress: None, lambda: False)


def everyone(said: dict[int, Any]) -> bool:
    return len(said) == 2


def test_a_rank_that_fails_where_nobody_meets_does_not_leave_the_others_waiting(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teams, "GRACE", 0.1)
    saying = Saying(home)
    saying.say(1, say="failed", message="its picture could not be read")
    with pytest.raises(JobFailedError, match="its picture could not be read"):
        saying.job().wait(everyone, "done", "failed")
    assert saying.closed == 2


def test_what_is_broken_between_ranks_is_not_used_again(home: Home) -> None:
    saying = Saying(home)
    for rank in range(2):
        saying.say(rank, say="failed", message=f"{BROKEN} (timed out)")
    clip = saying.job()
    with pytest.raises(JobFailedError, match="timed out"):
        clip.refuse(clip.wait(everyone, "done", "failed"))
    assert saying.closed == 2


def test_ranks_that_failed_where_they_meet_are_kept(home: Home) -> None:
    saying = Saying(home)
    saying.say(0, say="failed", message="no such scheduler")
    saying.say(1, say="failed", message="no such scheduler", heard=True)
    clip = saying.job()
    with pytest.raises(JobFailedError, match="no such scheduler"):
        clip.refuse(clip.wait(everyone, "done", "failed"))
    assert saying.closed == 0


@pytest.mark.parametrize(
    ("deaths", "first", "named"),
    [
        ((Death("", 7, "boom"), Death("SIGABRT", -6)), 0, r"Process 1 of 2 on cuda:0 ended .* \(exit code 7: boom\)"),
        ((Death("SIGABRT", -6), Death("SIGSEGV", -11)), 0, r"Process 2 of 2 on cuda:1 ended .* \(SIGSEGV\)"),
        ((Death("SIGABRT", -6), Death("", 1, "gone")), 0, r"Process 1 of 2 on cuda:0 ended .* \(SIGABRT\)"),
        ((None, Death("SIGKILL", -9)), 1, r"Process 2 of 2 on cuda:1 ended .* \(SIGKILL\)"),
    ],
)
def test_the_rank_that_took_the_others_along_is_named(
    home: Home, deaths: Sequence[Death | None], first: int, named: str
) -> None:
    """NCCL aborts a process whose partner is gone."""
    saying = Saying(home, deaths)
    saying.say(first, say="ended")
    with pytest.raises(JobFailedError, match=named):
        saying.job().wait(everyone, "done")
    assert saying.closed == 2


def test_a_process_that_can_not_be_started_is_one_sentence(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teams, "ProcessWorker", Mock(side_effect=OSError("no more processes")))
    team = Team(home, ("cpu", "cpu"))
    with pytest.raises(CannotRunError, match=r"^A process for the clip can't be started \(no more processes\)\.$"):
        team._start()
    assert team.pids == ()


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
