"""The ranks of one machine: started together, watched, and all ended when one of them ends wrongly or time is up.

What torchrun does for several machines, in as much as one needs; no torch is imported here. A rank that dies inside an
exchange leaves the others waiting in it, on a GPU for as long as their patience, so they are ended from outside. They
meet in a file: a port could be taken by the time it is used, and torch would open it to every machine around.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from accel.errors import AccelError
from accel.parallel.leash import leashed

MEETING = "KINETILE_RANKS_MEET"
"""In the environment of ranks that one machine started: the file through which they find each other, made by them."""

BROKEN = "another GPU's process ended or did not answer in time"
"""How a rank says that it was not the one that failed."""

GRACE = 3.0
"""Seconds for the others to end by themselves, and to say why the first of them ended."""
PAUSE = 0.05

PREFIXES = re.compile(r"^(\[rank\d+\]:\s*)?(accel\.errors\.\w+: )?")
"""What torch and Python put before the sentence of an error."""


def run_ranks(
    command: Sequence[str],
    count: int,
    timeout: float,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> None:
    """Run `command` as `count` ranks of one job on this machine, until all have ended well. Their output is ours. On
    Linux they end with this process, however that ends.

    timeout: seconds for all of it. Raises AccelError, one sentence, with every rank gone: when one ends otherwise, or
    when the time is up.
    """
    end, whole = time.monotonic() + timeout, leashed(list(command))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kinetile-ranks-")))
        shared = {**(os.environ if environ is None else environ), **together(count, folder)}
        told = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        ranks: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, ranks)
        for rank, errors in enumerate(told):
            who = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen(whole, env=who, cwd=cwd, stderr=errors, stdin=subprocess.DEVNULL))
        while _running(ranks):
            if any(rank.returncode for rank in ranks):
                _wait(ranks, time.monotonic() + GRACE)
                break
            if time.monotonic() > end:
                waiting = [str(number) for number, rank in enumerate(ranks) if rank.returncode is None]
                raise AccelError(f"after {timeout:.0f} s rank {' and '.join(waiting)} of {count} had not ended")
            time.sleep(PAUSE)
        failed = [number for number, rank in enumerate(ranks) if rank.returncode]
        if failed:
            raise AccelError(_why(ranks, failed, [_last_line(errors) for errors in told]))


def together(count: int, folder: Path) -> dict[str, str]:
    """What the environment of `count` ranks of one job on this machine has in common. They meet in `folder`, which is
    this job's alone."""
    return {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), MEETING: str(folder / "meeting")}


def _why(ranks: Sequence[subprocess.Popen[bytes]], failed: Sequence[int], lines: Sequence[str]) -> str:
    first = min(failed, key=lambda number: (BROKEN in lines[number], (ranks[number].returncode or 0) > 0, number))
    code = ranks[first].returncode or 0
    how = f"signal {-code}" if code < 0 else f"status {code}"
    said = f": {lines[first]}" if lines[first] else ""
    return f"rank {first} of {len(ranks)} ended with {how}, and with it the others{said}"


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return PREFIXES.sub("", lines[-1])[:400] if lines else ""


def _wait(ranks: Sequence[subprocess.Popen[bytes]], until: float) -> None:
    while _running(ranks) and time.monotonic() < until:
        time.sleep(PAUSE)


def _running(ranks: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Asks every one of them, not only up to the first that runs: asking notes who has ended."""
    return None in [rank.poll() for rank in ranks]


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
    for rank in ranks:
        rank.wait()
