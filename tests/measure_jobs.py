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
from app.models import family_for
from app.paths import Home
from app.queue.jobs import Job, JobSpec
from app.queue.owner import LocalService
from app.request import GenerationRequest
from app.worker.render import render
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
    """The same clip by the engine in this process and by queue and worker, in turns, both with the model loaded.

    Processor seconds (this process and the worker together) are told beside the clock, since other programs disturb
    them less; so is what the queue adds around the worker's own time for the clip.
    """
    service = LocalService(home, previews=False)
    around = []
    with Engine(home) as engine:

        def by_engine(seed: int) -> None:
            render(engine, spec(home.outputs, seed))

        def by_queue(seed: int) -> None:
            begun = time.perf_counter()
            (job,) = ended_soon(service, service.submit([spec(home.outputs, seed)]))
            assert job.result is not None, job.error
            around.append(time.perf_counter() - begun - job.result.timings["total"])

        def taken(make: Callable[[int], None], seed: int) -> tuple[float, float]:
            worker = psutil.Process(service.snapshot().worker.pid)
            before, begun = busy(worker), time.perf_counter()
            make(seed)
            return time.perf_counter() - begun, busy(worker) - before

        for make in (by_engine, by_queue):
            make(0)
        found: dict[str, list[tuple[float, float]]] = {"engine": [], "queue": []}
        for number in range(rounds):
            turn = [("engine", by_engine), ("queue", by_queue)]
            for name, make in turn if number % 2 else reversed(turn):
                found[name].append(taken(make, number + 1))
            clock, work = found["engine"][-1], found["queue"][-1]
            print(
                f"engine {clock[0]:.3f} s ({clock[1]:.2f} of processor), queue and worker {work[0]:.3f} s "
                f"({work[1]:.2f})",
                flush=True,
            )
    service.stop()
    for place, what in enumerate(("by the clock", "of processor time")):
        pairs = [(one[place], other[place]) for one, other in zip(found["engine"], found["queue"], strict=True)]
        more = statistics.median(other / one for one, other in pairs) - 1
        print(
            f"{what}: engine {statistics.median(one for one, _ in pairs):.3f} s, queue and worker "
            f"{statistics.median(other for _, other in pairs):.3f} s, median of {rounds} pairs {more:+.1%}"
        )
    print(f"around the clip: {statistics.median(around):.3f} s ({min(around):.3f} to {max(around):.3f})")
    print(f"load of the machine {psutil.getloadavg()[0]:.1f}")


def busy(worker: psutil.Process) -> float:
    """Processor seconds of this process and the worker, children included."""
    return sum(sum(process.cpu_times()[:4]) for process in (psutil.Process(), worker))


def ended_soon(service: LocalService, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    """Like `ended`, told by an event instead of looking again and again."""
    with service.subscribe() as news:
        while not all(job.is_over for job in service.get([job.id for job in jobs])):
            news.get(60)
    return service.get([job.id for job in jobs])


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
