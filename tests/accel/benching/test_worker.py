"""What a contender's process builds and runs, in this process."""

from __future__ import annotations

from typing import Any

import torch

from accel.benching.worker import DenoiseRunner
from tests.builders import machine


def runner(contender: str) -> DenoiseRunner:
    job: dict[str, Any] = {"contender": contender, "machine": machine().to_dict(), "preferences": {"device": "cpu"}}
    return DenoiseRunner({**job, "work": "step-1.3b", "cut": 2, "scale": "tiny", "steps": 6})


def test_a_denoising_is_the_same_each_time_and_differs_with_a_cache() -> None:
    with torch.inference_mode():
        plain, cached = runner("auto"), runner("cache-taylorseer")
        first, again, other = plain.run()[1], plain.run()[1], cached.run()[1]
        repeated = cached.run()[1]
    assert first.isfinite().all()
    assert torch.equal(first, again)
    assert torch.equal(other, repeated), "nothing of one clip is left for the next"
    assert not torch.equal(first, other)
    report = cached.installation.report()["cache"]["transformer"]
    print(report["summary"])
    assert 0 < report["served"] < report["calls"] == 12
