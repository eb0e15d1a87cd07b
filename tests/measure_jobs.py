"""Figures of queue and worker on this machine, with the starter: `python -m tests.measure_jobs cancel|overhead|memory`.

Measured, not tested: what comes out depends on what else the machine does, so each figure says how it was taken.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from app.engine import Engine
from app.jobs import Job, JobSpec
from app.models import family_for
from app.owner import LocalService
from app.paths import Home
from app.render import render
from app.request import GenerationRequest
from tests.app.services import ended, until

STAGES = ("beginning", "loading", "text", "denoising", "decoding", "saving")


def spec(folder: Path, seed: int = 1, **more: int) -> JobSpec:
    asked = GenerationRequest(prompt="A red ball bounces on the green grass", seed=seed, **more)  # type: ignore[arg-type]
    return JobSpec("measured", asked, family_for(asked.model).normalise(asked).request, folder)


def cancel(home: Home, rounds: int) -> None:
    """Seconds from the call of `cancel` to the job's end, in each stage; the clip has the starter's own size."""
    for stage in STAGES:
        found, kept, states = [], 0, set()
        for _ in range(rounds):
            service = LocalService(home)
            if stage not in ("beginning", "loading"):  # else the worker is new
                ended(service, service.submit([spec(home.outputs, steps=1)]), 600)
            (job,) = service.submit([spec(home.outputs)])
            until(functools.partial(is_in, service, stage), 600)
            worker, begun = service.snapshot().worker.pid, time.perf_counter()
            service.cancel([job.id])
            (over,) = ended(service, [job], 120)
            found.append(time.perf_counter() - begun)
            kept += service.snapshot().worker.pid == worker
            states.add(over.state)
            service.stop()
        spread = f"{min(found):.3f} to {max(found):.3f}"
        print(
            f"{stage:10} {statistics.median(found):.3f} s ({spread}, {rounds} times), ended as {', '.join(states)}, "
            f"worker kept {kept} times",
            flush=True,
        )


def is_in(service: LocalService, stage: str) -> bool:
    now = service.snapshot().progress
    if now is None:
        return False
    if stage == "beginning":  # before the first component is read: libraries are being imported
        return now.stage == "loading" and now.steps == 1
    if stage == "loading":
        return now.stage == "loading" and now.step >= 1
    return now.stage == stage and (now.step >= 2 or stage in ("text", "saving"))


def overhead(home: Home, rounds: int) -> None:
    """The same clip by the engine in this process and by queue and worker, in turns, both with the model loaded."""
    direct: list[float] = []
    queued: list[float] = []
    ratios: list[float] = []
    service = LocalService(home, previews=False)
    with Engine(home) as engine:

        def by_engine(seed: int) -> None:
            render(engine, spec(home.outputs, seed))

        def by_queue(seed: int) -> None:
            (job,) = ended_soon(service, service.submit([spec(home.outputs, seed)]))
            assert job.state == "done", job.error

        for make in (by_engine, by_queue):
            make(0)
        for number in range(rounds):
            pair = [(by_engine, direct), (by_queue, queued)]
            for make, times in pair if number % 2 else reversed(pair):
                times.append(seconds(make, number + 1))
            ratios.append(queued[-1] / direct[-1])
            print(f"engine {direct[-1]:.3f} s, queue and worker {queued[-1]:.3f} s", flush=True)
    service.stop()
    more = statistics.median(ratios) - 1
    print(
        f"median of {rounds} pairs: engine {statistics.median(direct):.3f} s, queue and worker "
        f"{statistics.median(queued):.3f} s, {more:+.1%} (load of the machine {psutil.getloadavg()[0]:.1f})"
    )


def ended_soon(service: LocalService, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Like `ended`, told by an event instead of looking again and again."""
    with service.subscribe() as news:
        while not all(job.is_over for job in service.get([job.id for job in jobs])):
            news.get(60)
    return service.get([job.id for job in jobs])


def seconds(make: Callable[[int], None], seed: int) -> float:
    begun = time.perf_counter()
    make(seed)
    return time.perf_counter() - begun


def memory(home: Home, rounds: int) -> None:
    """Resident memory of this process (the server) and of the worker after each of `rounds` jobs."""
    service = LocalService(home)
    server = psutil.Process()
    found = []
    for number in range(rounds):
        (job,) = ended(service, service.submit([spec(home.outputs, number, width=64, height=64, frames=5, steps=2)]))
        assert job.state == "done", job.error
        worker = psutil.Process(service.snapshot().worker.pid)
        found.append((server.memory_info().rss, worker.memory_info().rss))
        if number % 10 == 9 or number < 3:
            held = [size / 2**20 for size in found[-1]]
            print(f"after {number + 1:3} jobs: server {held[0]:.1f} MiB, worker {held[1]:.1f} MiB", flush=True)
    service.stop()
    for name, values in zip(("server", "worker"), zip(*found, strict=True), strict=True):
        first, last = statistics.median(values[2:7]), statistics.median(values[-5:])
        print(f"{name}: {last / first - 1:+.2%} from jobs 3 to 7 to the last five")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.measure_jobs")
    parser.add_argument("what", choices=("cancel", "overhead", "memory"))
    parser.add_argument("--rounds", type=int, default=0)
    options = parser.parse_args()
    measure, usual = {"cancel": (cancel, 3), "overhead": (overhead, 12), "memory": (memory, 55)}[options.what]
    with tempfile.TemporaryDirectory() as folder:
        measure(Home(Path(folder)), options.rounds or usual)


if __name__ == "__main__":
    main()
