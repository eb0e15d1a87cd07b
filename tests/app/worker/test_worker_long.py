"""The starter itself in the worker, for minutes: memory stays flat, a cancel anywhere leaves nothing behind."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.paths import Home
from app.progress import STAGES, Stage
from app.queue.owner import LocalService
from app.video import decode_frames
from tests.app.services import ended, spec, until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

MIB = 2**20


@pytest.fixture
def service(tmp_path: Path) -> Iterator[LocalService]:
    made = LocalService(Home(tmp_path))
    yield made
    made.stop(now=True)


def resident(service: LocalService) -> float:
    return float(psutil.Process(service.snapshot().worker.pid).memory_info().rss)


def has_come_to(service: LocalService, stage: Stage) -> bool:
    """Whether the running clip is in that stage, or just after it: some are over in a moment."""
    now = service.snapshot().progress
    return now is not None and STAGES.index(now.stage) >= STAGES.index(stage)


def test_memory_is_flat_over_fifty_jobs(service: LocalService) -> None:
    """Row 47, seen too (Wan2GP issue 1253): the program's as well as the worker's."""
    server, worker = [], []
    for seed in range(55):
        (job,) = ended(service, service.submit([spec(service.home.outputs, seed=seed)]), 300)
        assert job.state == "done", job.error
        server.append(float(psutil.Process().memory_info().rss))
        worker.append(resident(service))
    for name, values in (("server", server), ("worker", worker)):
        first, last = statistics.median(values[2:7]), statistics.median(values[-5:])
        print(f"{name}: {first / MIB:.1f} MiB at first, {last / MIB:.1f} MiB at last, {last / first - 1:+.2%}")
        assert last <= first * 1.02


def test_a_cancel_in_any_stage_leaves_nothing_that_the_next_clip_could_feel(service: LocalService) -> None:
    folder = service.home.outputs
    (clean,) = ended(service, service.submit([spec(folder, name="clean", steps=4, frames=25)]), 300)
    assert clean.result is not None
    frames = decode_frames(clean.result.output)
    before = resident(service)
    stages: tuple[Stage, ...] = ("loading", "text", "denoising", "decoding")
    for stage in stages:
        (job,) = service.submit([spec(folder, name="cancelled", steps=40, width=256, height=160, frames=25)])
        until(functools.partial(has_come_to, service, stage), 300)
        service.cancel([job.id])
        assert ended(service, [job], 120)[0].state == "cancelled"
        (again,) = ended(service, service.submit([spec(folder, name=stage, steps=4, frames=25)]), 300)
        assert again.result is not None
        assert (decode_frames(again.result.output) == frames).all()
    after = resident(service)
    print(f"worker: {before / MIB:.1f} MiB before, {after / MIB:.1f} MiB after four cancels")
    assert not list(folder.glob("cancelled*"))
    assert after <= before * 1.1, "the larger clip's memory came back"
