"""How much of the machine this process may use: cores and memory, every limit on the way.

A container sees the host's cores and memory in /proc, while its cgroup allows less; a thread count or a memory plan
made from the host's numbers then runs many times slower or is killed without a traceback. So the answer is the least of
everything found, and each limit says where it was read.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator

from accel.figures import gib
from accel.probing import cpu
from accel.probing.host import Host
from accel.types import Cores, Fact, Memory, NumaNode

UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as the largest page multiple below 2**63 bytes; nothing real comes near 2**60 (1 EiB)."""

SYSTEM = "the operating system"


def cores(host: Host) -> Cores:
    """Threads this process may keep busy: floor(min(quota, affinity, physical cores)), at least 1."""
    logical = host.number("logical") or 1
    physical = host.number("physical") or logical
    limits = [Fact(physical, f"{physical} physical cores", SYSTEM)]
    affinity = host.number("affinity")
    if affinity is not None and affinity < logical:
        limits.append(Fact(affinity, f"this process may run on {affinity} of {logical} CPUs", "CPU affinity"))
    fast = _performance_cores(host)
    if fast is not None and 0 < fast < physical:
        # the slow cores of a hybrid CPU hold up every parallel loop
        limits.append(Fact(fast, f"{fast} of {physical} physical cores are fast ones", SYSTEM))
    limits += [Fact(share, f"the container may use {share:g} CPUs", source) for share, source in _quotas(host)]
    least = min(limits, key=lambda limit: float(limit.value or 0))
    usable = max(1, math.floor(float(least.value or 1)))
    return Cores(physical, logical, usable, _told(least), tuple(limits))


def memory(host: Host) -> Memory:
    """Bytes this process may use: the least of the host's memory and every cgroup limit on the path."""
    total = host.number("memory") or 0
    limits = [Fact(total, f"the machine has {gib(total)}", SYSTEM)]
    limits += [Fact(size, f"the container may use {gib(size)}", source) for size, source in _memory_limits(host)]
    known = [limit for limit in limits if limit.value]
    if not known:
        return Memory(0, 0, "how much memory there is could not be read", ())
    least = min(known, key=lambda limit: int(limit.value or 0))
    return Memory(total, int(least.value or 0), _told(least), tuple(known))


def numa(host: Host) -> tuple[NumaNode, ...]:
    nodes = []
    for path in host.glob("/sys/devices/system/node/node*/meminfo"):
        folder = posixpath.dirname(path)
        total = re.search(r"MemTotal:\s+(\d+) kB", host.read(path) or "")
        cpus = len(cpu_list(host.read(f"{folder}/cpulist") or ""))
        nodes.append(NumaNode(int(folder.rpartition("node")[2]), cpus, int(total[1]) * 1024 if total else 0))
    return tuple(sorted(nodes, key=lambda node: node.index))


def _told(limit: Fact) -> str:
    return limit.reason if limit.source == SYSTEM else f"{limit.reason} ({limit.source})"


def cpu_list(text: str) -> list[int]:
    """The kernel's list format: "0-3,8" -> [0, 1, 2, 3, 8]."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


def _performance_cores(host: Host) -> int | None:
    """Physical fast cores of a hybrid CPU; None where all cores are alike."""
    if host.system == "darwin":
        known = cpu.sysctl(host)
        return int(known["hw.perflevel0.physicalcpu"]) if known.get("hw.perflevel1.physicalcpu") else None
    fast = cpu_list(host.read("/sys/devices/cpu_core/cpus") or "")
    siblings = {host.read(f"/sys/devices/system/cpu/cpu{index}/topology/core_cpus_list") for index in fast}
    return len(siblings - {None}) or None


# -- cgroups --


def _quotas(host: Host) -> Iterator[tuple[float, str]]:
    """(CPUs, file) for every quota on the path, version 2 and version 1."""
    for folder in _folders(host, ""):
        words = (host.read(f"{folder}/cpu.max") or "").split()
        if len(words) == 2 and words[0] != "max" and (share := _ratio(*words)):
            yield share, f"{folder}/cpu.max"
    for folder in _folders(host, "cpu"):
        quota = (host.read(f"{folder}/cpu.cfs_quota_us") or "").strip()
        period = (host.read(f"{folder}/cpu.cfs_period_us") or "").strip()
        if share := _ratio(quota, period):
            yield share, f"{folder}/cpu.cfs_quota_us"


def _ratio(quota: str, period: str) -> float:
    """CPUs allowed, 0 for "no limit" (-1, empty, max)."""
    if not (quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0):
        return 0.0
    return int(quota) / int(period)


def _memory_limits(host: Host) -> Iterator[tuple[int, str]]:
    for controller, names in (("", ("memory.max", "memory.high")), ("memory", ("memory.limit_in_bytes",))):
        for folder in _folders(host, controller):
            for name in names:
                text = (host.read(f"{folder}/{name}") or "").strip()
                if text.isdigit() and 0 < int(text) < UNLIMITED:
                    yield int(text), f"{folder}/{name}"


def _folders(host: Host, controller: str) -> Iterator[str]:
    """This process's cgroup folder and each one above it, up to the mount; controller "" is version 2."""
    place = _place(host.read("/proc/self/cgroup") or "", controller)
    mount = _mount(host.read("/proc/self/mountinfo") or "", controller)
    if place is None or mount is None:
        return
    root, point = mount
    inside = place[len(root) :] if root != "/" and place.startswith(root) else "" if root != "/" else place
    if ".." in inside.split("/"):
        inside = ""  # outside this cgroup namespace: only the mount itself can be read
    while True:
        yield posixpath.normpath(f"{point}/{inside.strip('/')}")
        if not inside.strip("/"):
            return
        inside = posixpath.dirname(inside.rstrip("/"))


def _place(text: str, controller: str) -> str | None:
    """The path in /proc/self/cgroup: lines are "hierarchy:controllers:path", version 2 has neither number nor
    controllers."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (controller == "" and number == "0" and names == "") or (controller and controller in names.split(",")):
            return path
    return None


def _mount(text: str, controller: str) -> tuple[str, str] | None:
    """(root inside the hierarchy, mount point) from /proc/self/mountinfo."""
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        words, kind = before.split(), after.split()
        if not dash or len(words) < 5 or len(kind) < 3:
            continue
        if (kind[0] == "cgroup2" and not controller) or (
            kind[0] == "cgroup" and controller in kind[2].split(",") and controller
        ):
            return words[3], words[4]
    return None
