"""A job whose end failed, retried: it goes on from its latents (case 52), whatever the end was and whoever retries."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import video
from app.engine import Engine, kept
from app.models.base import Family
from app.paths import Home
from app.queue.jobs import Job
from app.worker.process import main
from app.worker.supervisor import ProcessWorker
from tests.app.services import ended, service_in_process, service_in_thread, spec

COMMAND = (sys.executable, "-m", "tests.app.queue.test_goes_on")


def pixels(job: Job) -> video.Frames:
    assert job.result is not None, job.error
    return video.decode_frames(job.result.output)


def latents(home: Home) -> list[Path]:
    return list(home.latents.iterdir())


def _no_memory(*_: Any, **__: Any) -> None:
    raise MemoryError


def _no_encoder(*_: Any, **__: Any) -> None:
    raise FileNotFoundError("ffmpeg")


def _full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def _unforeseen(*_: Any, **__: Any) -> None:
    raise ValueError("an unforeseen thing")


FAULTS: dict[str, tuple[str, Callable[..., None], str]] = {
    "memory while decoding": ("diffusers.AutoencoderKLWan.decode", _no_memory, "Out of memory while decoding"),
    "encoder": ("app.video.encode", _no_encoder, "The clip was not saved|Cannot write"),
    "memory while saving": ("app.video.encode", _no_memory, "The clip was not saved"),
    "disk": ("app.video._write_poster", _full, "is full"),
    "unforeseen": ("app.video._read_back", _unforeseen, "an unforeseen thing"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_retried_job_goes_on_from_its_latents(
    home: Home, tiny_family: Family, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Case 52: the fault is told with what to do, the retry gives the undisturbed clip, and nothing stays behind."""
    place, fail, told = FAULTS[fault]
    owner = service_in_thread(home, Engine)
    (plain,) = ended(owner, owner.submit([spec(home.outputs)]))
    assert latents(home) == []
    with monkeypatch.context() as spoiled:
        spoiled.setattr(place, fail)
        (failed,) = ended(owner, owner.submit([spec(home.outputs)]))
    assert failed.state == "failed"
    assert failed.error is not None
    assert re.search(told, failed.error.message)
    assert failed.error.message.endswith(kept.TOLD)
    assert len(latents(home)) == 1
    (again,) = ended(owner, [owner.retry(failed.id)])
    assert again.result is not None
    assert again.result.warnings == (kept.WENT_ON,)
    assert np.array_equal(pixels(again), pixels(plain))
    assert video.read_metadata(again.result.output)["report"]["resumed"] == kept.WENT_ON
    assert latents(home) == []
    (afresh,) = ended(owner, [owner.duplicate(failed.id)])
    assert afresh.result is not None
    assert afresh.result.warnings == (), "those that were used are gone"
    owner.stop()


def test_what_went_on_is_no_measure_of_denoising(
    home: Home, tiny_family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 52: the next clip is reckoned by those that took all their steps."""
    owner = service_in_thread(home, Engine)
    with monkeypatch.context() as spoiled:
        spoiled.setattr("app.video.encode", _no_encoder)
        (failed,) = ended(owner, owner.submit([spec(home.outputs)]))
    (again,) = ended(owner, [owner.retry(failed.id)])
    assert again.result is not None
    assert "denoise" not in again.result.timings
    request = spec(home.outputs, seed=9).request
    assert owner.estimate(request).seconds is None
    ended(owner, owner.submit([spec(home.outputs, seed=9)]))
    assert owner.estimate(request).seconds is not None
    owner.stop()


@pytest.mark.skipif(os.name == "nt", reason="faults are signals")
def test_a_job_whose_worker_was_killed_while_decoding_goes_on(home: Home) -> None:
    """Case 52: as the system ends one for want of memory: what was kept was written before. The starter itself, in a
    process of its own.
    """
    owner = service_in_process(home, launch=lambda where: ProcessWorker(where, COMMAND))
    (plain,) = ended(owner, owner.submit([spec(home.outputs)]))
    (home.root / "kill").touch()
    (killed,) = ended(owner, owner.submit([spec(home.outputs)]))
    assert killed.state == "failed"
    assert killed.error is not None
    assert "SIGKILL" in killed.error.message
    assert "while decoding" in killed.error.message
    assert killed.error.message.endswith(kept.MAY_GO_ON)
    assert len(latents(home)) == 1
    (again,) = ended(owner, [owner.retry(killed.id)])
    assert again.result is not None
    assert again.result.warnings == (kept.WENT_ON,)
    assert np.array_equal(pixels(again), pixels(plain))
    assert latents(home) == []
    owner.stop()


class Dying(Engine):
    """The real engine, whose process is killed once while it decodes, where a file says so."""

    def generate(self, request: Any, on_progress: Any = None, *others: Any, **options: Any) -> Any:
        assert self._home is not None
        mark = self._home.root / "kill"

        def tell(progress: Any) -> None:
            on_progress(progress)
            if progress.stage == "decoding" and progress.step and mark.exists():
                mark.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

        return super().generate(request, tell, *others, **options)


if __name__ == "__main__":
    sys.exit(main(make_engine=Dying))
