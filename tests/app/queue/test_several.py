"""Clips of several processes through the queue and its worker: where they were made, a killed rank, the next job."""

from __future__ import annotations

import contextlib
import os

import psutil
import pytest

from app.engine import several
from app.paths import Home
from app.queue.owner import LocalService
from app.request import AccelPreferences
from app.video import read_metadata, read_request
from app.worker.supervisor import ProcessWorker
from tests.app.services import ended, service_in_process, spec, until

pytestmark = pytest.mark.skipif(os.name == "nt", reason="faults are signals")

SHARED = AccelPreferences(gpus=2)


def ranks_of(service: LocalService) -> list[psutil.Process]:
    """The processes of the worker's team, the first rank's first."""
    with contextlib.suppress(psutil.Error):
        worker = psutil.Process(service.snapshot().worker.pid)
        return [one for one in worker.children() if "app.worker.rank" in one.cmdline()]
    return []


def test_a_shared_clip_says_where_it_was_made_and_a_killed_rank_costs_one_clip(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(several.ON_CPU, "1")
    service = service_in_process(home, launch=ProcessWorker, patience=None)
    try:
        (done,) = ended(service, service.submit([spec(home.outputs, accel=SHARED)]), 240)
        assert done.state == "done", done.error
        assert done.result is not None
        assert done.result.ran_on.startswith("2 x ")
        metadata = read_metadata(done.result.output)
        assert metadata is not None
        assert metadata["report"]["ran_on"] == done.result.ran_on
        assert read_request(done.result.output).accel.gpus == 2
        first = ranks_of(service)
        assert len(first) == 2

        jobs = service.submit([spec(home.outputs, steps=900, accel=SHARED), spec(home.outputs, seed=4, accel=SHARED)])
        until(lambda: (found := service.snapshot().progress) is not None and found.stage == "denoising", 60)
        first[1].kill()
        broken, fine = ended(service, jobs, 240)
        assert broken.state == "failed"
        assert broken.error is not None
        assert "Process 2 of 2 ended while denoising" in broken.error.message
        assert "(SIGKILL)" in broken.error.message
        assert fine.state == "done", fine.error
        assert not {one.pid for one in first} & {one.pid for one in ranks_of(service)}
    finally:
        service.stop(now=True)
    assert not any(one.is_running() for one in first)
