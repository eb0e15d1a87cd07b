"""How much faster one forward is on several GPUs, in turns with one GPU.

Every rank builds the same transformer with the same random weights. A round runs, one after another: one forward on
one GPU while the others wait, the same with its tokens dealt out over all, then two forwards (guidance's) on one GPU,
and the same two with the branches dealt out first. Told are medians, their spread, how many times faster, and the
relative difference of the outputs. A first run of each warms up and is not counted.

    python -m torch.distributed.run --standalone --nproc-per-node 2 -m accel.parallel_bench --json out.json
    python -m torch.distributed.run --standalone --nproc-per-node 2 -m accel.parallel_bench --scale tiny
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from accel.benching import gpu_profile
from accel.benching.race import summed_up
from accel.benching.work import CONTENDERS, TRANSFORMER, WORKS
from accel.benching.worker import ShapeRunner, finish, memory
from accel.checking.line import relative
from accel.parallel.ranks import Ranks, Shared, joined
from accel.parallel.sharing import branches_split
from accel.probe import probe

PATIENCE = 300.0
LIMIT = 560.0
ON_GPUS, ON_CPUS = "fa3,fp8-fused", "plain-fp32,fp32"

Outputs = list[torch.Tensor]


class Measured:
    """One contender on this rank. solo: calls are made by rank 0 alone."""

    def __init__(self, ranks: Ranks, job: dict[str, Any]) -> None:
        self.ranks, self.runner = ranks, ShapeRunner(job)
        self.transformer = self.runner.pipeline.transformer
        other = {**self.runner.arguments, "encoder_hidden_states": -self.runner.arguments["encoder_hidden_states"]}
        self.calls = [self.runner.arguments, other]

    def run(self, calls: int, shared: bool) -> tuple[float, Outputs]:
        """Seconds until the last rank has done `calls` forwards, and their outputs, empty where this rank made none."""
        if not shared and self.ranks.rank:
            return slowest(self.ranks, list)
        with self._shared(calls) if shared else nullcontext():
            return slowest(self.ranks, lambda: [self.runner.call(given) for given in self.calls[:calls]])

    def _shared(self, calls: int) -> Shared:
        return Shared(self.transformer, self.ranks, planned=calls == 2, guided=lambda: calls == 2)

    def profile(self, shared: bool) -> list[dict[str, Any]]:
        """Where rank 0's time goes in one forward."""
        found: list[dict[str, Any]] = []
        if shared or not self.ranks.rank:
            with self._shared(1) if shared else nullcontext():
                found = gpu_profile.split(self.runner.profiled)
        fence(self.ranks)
        return found


def slowest(ranks: Ranks, work: Callable[[], Outputs]) -> tuple[float, Outputs]:
    """Seconds of `work` on the rank that takes longest, all having begun together; and its outputs."""
    fence(ranks)
    begun = time.perf_counter()
    out = work()
    finish(str(ranks.device))
    took = torch.tensor([time.perf_counter() - begun], device=ranks.device)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return float(took), out


def fence(ranks: Ranks) -> None:
    """Wait until every rank is here and its GPU idle."""
    dist.all_reduce(torch.zeros(1, device=ranks.device))
    finish(str(ranks.device))


def alike(ranks: Ranks, outputs: Outputs) -> bool:
    """Whether every rank has rank 0's outputs, bit for bit."""
    same = torch.ones(1, device=ranks.device)
    for out in outputs:
        first = out.clone()
        dist.broadcast(first, 0)
        same *= float(torch.equal(first, out))
    dist.all_reduce(same, dist.ReduceOp.MIN)
    return bool(same.item())


def modes(ranks: Ranks) -> dict[str, tuple[int, bool]]:
    """What a round runs: name -> forwards, and whether they are shared."""
    many = f"{ranks.count} {'GPUs' if ranks.device.type == 'cuda' else 'processes'}"
    found = {"one forward on 1": (1, False), f"one forward on {many}": (1, True)}
    if branches_split(ranks.count, True):
        found |= {"two forwards on 1": (2, False), f"two forwards on {many}": (2, True)}
    return found


def measure(ranks: Ranks, job: dict[str, Any], rounds: int, profiled: bool) -> dict[str, Any]:
    """One contender: `rows` (mode -> seconds, and for shared ones ratio, difference, alike), report, memory, profile;
    or `failed`, the reason, the same on every rank."""
    measured, reason = None, ""
    try:
        measured = Measured(ranks, job)
    except Exception as error:  # a rank that fails alone must not leave the others waiting
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    reasons: list[str] = [""] * ranks.count
    dist.all_gather_object(reasons, reason)
    if failed := next(filter(None, reasons), ""):
        return {"failed": failed}
    assert measured is not None
    with torch.inference_mode():
        return _rows(measured, rounds, profiled)


def _rows(measured: Measured, rounds: int, profiled: bool) -> dict[str, Any]:
    ranks, wanted = measured.ranks, modes(measured.ranks)
    warm = {name: measured.run(*mode)[1] for name, mode in wanted.items()}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in wanted}
    for _ in range(rounds):
        for name, mode in wanted.items():
            runs[name].append({"total": measured.run(*mode)[0]})
    rows: dict[str, Any] = {name: {"seconds": summed_up(found)["total"]} for name, found in runs.items()}
    names = list(wanted)
    for alone, shared in zip(names[::2], names[1::2], strict=True):
        rows[shared]["ratio"] = rows[alone]["seconds"]["median"] / rows[shared]["seconds"]["median"]
        pairs = zip(warm[shared], warm[alone], strict=False)  # ranks beside the first made no calls alone
        rows[shared]["difference"] = max((relative(one.float(), other.float()) for one, other in pairs), default=0.0)
        rows[shared]["alike"] = alike(ranks, warm[shared])
    runner, found = measured.runner, {"rows": rows, "memory": memory(str(ranks.device))}
    found["report"] = None if runner.installation is None else runner.installation.report()
    if profiled and ranks.device.type == "cuda":
        found["profile"] = {"alone": measured.profile(False), "shared": measured.profile(True)}
    return found


def table(name: str, found: dict[str, Any]) -> str:
    """One contender as text."""
    if "failed" in found:
        return f"{name}: failed: {found['failed']}\n"
    lines = [f"{name}:", f"  {'':32}{'s':>9}{'spread':>8}{'faster':>8}{'difference':>12}"]
    for mode, row in found["rows"].items():
        seconds = row["seconds"]
        spread = (seconds["most"] - seconds["least"]) / seconds["median"]
        told = f"  {mode:32}{seconds['median']:>9.3f}{spread:>8.0%}"
        if "ratio" in row:
            told += f"{row['ratio']:>8.2f}{row['difference']:>12.1e}"
            told += "" if row["alike"] else "  and the ranks differ"
        lines.append(told)
    if found.get("report"):
        lines += [f"  {one['transformer']['summary']}" for one in _tallies(found["report"])]
    for where, parts in found.get("profile", {}).items():
        lines.append(f"  {where}: " + ", ".join(f"{part['op'][:40]} {part['ms']:.1f}" for part in parts[:9]) + " ms")
    return "\n".join([*lines, ""])


def _tallies(report: dict[str, Any]) -> list[Any]:
    return [one for one in report.values() if isinstance(one, dict) and "summary" in one.get("transformer", {})]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    works = [name for name, work in WORKS.items() if work.class_name == TRANSFORMER]
    parser = argparse.ArgumentParser(prog="python -m accel.parallel_bench", description="One forward on several GPUs.")
    parser.add_argument("--work", choices=works, default="step-14b", help="(default %(default)s)")
    parser.add_argument("--contenders", default="", help=f"with commas (default {ON_GPUS}; on CPUs {ON_CPUS})")
    parser.add_argument("--rounds", type=int, default=3, help="(default %(default)s)")
    parser.add_argument("--layers", type=int, default=0, help="how many of the model are run (default: all)")
    parser.add_argument("--scale", choices=("full", "tiny"), default="full", help="tiny: to try the measuring itself")
    parser.add_argument("--profile", action="store_true", help="also say what rank 0's GPU did")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for all of it (default %(default).0f)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there, after each contender")
    options = parser.parse_args(argv)
    unknown = [name for name in filter(None, options.contenders.split(",")) if name not in CONTENDERS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: there is no such contender, there are {', '.join(CONTENDERS)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when everything ran and every rank had the same outputs, 1 otherwise."""
    options = _arguments(argv)
    watch = threading.Timer(options.limit, _too_long, [options.limit])
    watch.daemon = True
    watch.start()
    with joined(min(PATIENCE, options.limit)) as ranks:
        told: list[Any] = [probe(patience=30.0).to_dict() if ranks.rank == 0 else None]
        dist.broadcast_object_list(told, 0)
        found = _contenders(ranks, options, told[0])
    watch.cancel()
    rows = [row for one in found.values() for row in one.get("rows", {}).values()]
    return (
        0
        if rows and not any("failed" in one for one in found.values()) and all(row.get("alike", True) for row in rows)
        else 1
    )


def _contenders(ranks: Ranks, options: argparse.Namespace, machine: dict[str, Any]) -> dict[str, Any]:
    work, gpus = WORKS[options.work], ranks.device.type == "cuda"
    cut = options.layers or (work.cuts[-1] if options.scale == "tiny" else work.cuts[0])
    if ranks.rank == 0:
        print(f"{work.title}, {cut} layers, {ranks.count} x {_device(ranks)}, torch {torch.__version__}\n", flush=True)
    found: dict[str, Any] = {}
    for name in (options.contenders or (ON_GPUS if gpus else ON_CPUS)).split(","):
        job = {"contender": name, "machine": machine, "preferences": {"device": str(ranks.device)}}
        job |= {"work": work.name, "cut": cut, "scale": options.scale}
        found[name] = measure(ranks, job, options.rounds, options.profile)
        if gpus:
            gc.collect()  # an installation and its modules hold each other
            torch.cuda.empty_cache()
        if ranks.rank == 0:
            print(table(name, found[name]), flush=True)
            if options.json is not None:
                whole = {"work": work.name, "layers": cut, "ranks": ranks.count, "device": _device(ranks)}
                whole |= {"torch": torch.__version__, "contenders": found}
                options.json.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    return found


def _device(ranks: Ranks) -> str:
    return torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "CPU"


def _too_long(limit: float) -> None:
    """A rank that waits inside a library can't be stopped otherwise."""
    print(f"after {limit:.0f} s this was not done: give it more with --limit, or fewer --layers", file=sys.stderr)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
