"""Bytes of memory: what this process holds, its peak, and what the machine (or the container around us) has free."""

from __future__ import annotations

import ctypes
import functools
import posixpath
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from accel.probing import limits
from accel.probing.host import LocalHost

# The cgroup files beside a limit that tell what is used, and of that what the kernel would give back at once.
_USED = {
    "memory.max": "memory.current",
    "memory.high": "memory.current",
    "memory.limit_in_bytes": "memory.usage_in_bytes",
}
_RECLAIMABLE = ("inactive_file", "total_inactive_file")


def resident(pid: int | None = None) -> int:
    """Resident bytes of a process, 0 when it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def reset_peak() -> None:
    """Begin a new measurement of `peak_memory`; only Linux can."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def peak_memory() -> int:
    """Most bytes that were resident since `reset_peak` (elsewhere than on Linux: since the start); 0 if unknown."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    if sys.platform == "win32":
        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def trim() -> None:
    """Give memory that the C library keeps for later back to the system, where it can (glibc)."""
    give_back = _malloc_trim()
    if give_back is not None:
        give_back(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None


def free_memory(read: Callable[[str], str | None] | None = None) -> tuple[int, str]:
    """Bytes that can still be taken, and a clause that says whose limit that is.

    The least of what the system calls available and of what every cgroup limit on the path leaves.
    """
    host = LocalHost()
    read = read or host.read
    found = [(int(psutil.virtual_memory().available), "the machine")]
    for limit in limits.memory(host).limits:
        folder, name = posixpath.split(limit.source)
        if name in _USED:
            used = int((read(f"{folder}/{_USED[name]}") or "0").strip() or 0)
            found.append(
                (
                    max(0, int(limit.value or 0) - used + _reclaimable(read(f"{folder}/memory.stat") or "")),
                    "the container",
                )
            )
    return min(found)


def _reclaimable(stat: str) -> int:
    values = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
    return next((int(values[name]) for name in reversed(_RECLAIMABLE) if name in values), 0)
