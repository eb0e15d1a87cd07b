"""Cores and memory: the least of every limit on the way, whatever the files hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.probing import limits
from accel.probing.host import Recorded
from tests.accel.recorded import machine, record

V2 = {"/proc/self/cgroup": "0::/user.slice/job\n"}
V2 |= {"/proc/self/mountinfo": "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"}
V1 = {
    "/proc/self/cgroup": "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n",
    "/proc/self/mountinfo": (
        "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    ),
}
CPU_MAX, MEMORY_MAX = "/sys/fs/cgroup/user.slice/job/cpu.max", "/sys/fs/cgroup/user.slice/job/memory.max"
PARENT = "/sys/fs/cgroup/user.slice"
V1_CPU, V1_MEMORY = "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory/memory.limit_in_bytes"


@pytest.mark.parametrize(
    ("files", "affinity", "usable", "source"),
    [
        ({}, 8, 4, "4 physical cores"),
        ({}, 2, 2, "CPU affinity"),
        ({**V2, CPU_MAX: "150000 100000\n"}, 8, 1, "cpu.max"),
        ({**V2, CPU_MAX: "50000 100000\n"}, 8, 1, "cpu.max"),
        ({**V2, CPU_MAX: "max 100000\n", f"{PARENT}/cpu.max": "300000 100000\n"}, 8, 3, f"{PARENT}/cpu.max"),
        ({**V2, CPU_MAX: "300000 100000\n", f"{PARENT}/cpu.max": "200000 100000\n"}, 8, 2, f"{PARENT}/cpu.max"),
        ({**V2, CPU_MAX: "max 100000\n"}, 8, 4, "4 physical cores"),
        ({**V2, CPU_MAX: "garbage\n"}, 8, 4, "4 physical cores"),
        (
            {**V1, f"{V1_CPU}/cpu.cfs_quota_us": "250000\n", f"{V1_CPU}/cpu.cfs_period_us": "100000\n"},
            8,
            2,
            "cfs_quota",
        ),
        ({**V1, f"{V1_CPU}/cpu.cfs_quota_us": "-1\n", f"{V1_CPU}/cpu.cfs_period_us": "100000\n"}, 8, 4, "4 physical"),
        ({**V1, f"{V1_CPU}/cpu.cfs_quota_us": "100000\n", f"{V1_CPU}/cpu.cfs_period_us": "0\n"}, 8, 4, "4 physical"),
    ],
)
def test_threads_are_the_least_of_quota_affinity_and_cores(
    files: dict[str, str], affinity: int, usable: int, source: str
) -> None:
    """Case 5: rounded down, at least one, and the source is told."""
    host = Recorded(record("skylake-avx2", files=files, numbers={"affinity": affinity}))
    cores = limits.cores(host)
    assert (cores.usable, cores.logical, cores.physical) == (usable, 8, 4)
    assert source in cores.reason


@pytest.mark.parametrize(
    ("files", "gibs", "source"),
    [
        ({}, 32, "the machine has"),
        ({**V2, MEMORY_MAX: f"{6 * 2**30}\n"}, 6, MEMORY_MAX),
        ({**V2, MEMORY_MAX: "max\n", f"{PARENT}/memory.max": f"{4 * 2**30}\n"}, 4, f"{PARENT}/memory.max"),
        ({**V2, MEMORY_MAX: f"{64 * 2**30}\n"}, 32, "the machine has"),
        ({**V1, V1_MEMORY: f"{3 * 2**30}\n"}, 3, V1_MEMORY),
        ({**V1, V1_MEMORY: "9223372036854771712\n"}, 32, "the machine has"),
    ],
)
def test_memory_is_the_least_of_host_and_every_cgroup(files: dict[str, str], gibs: int, source: str) -> None:
    """Case 4: of both versions, on the whole path."""
    memory = limits.memory(Recorded(record("skylake-avx2", files=files)))
    assert memory.usable == gibs * 2**30
    assert memory.total == 32 * 2**30
    assert source in memory.reason


def test_slow_cores_are_not_counted(tmp_path: Path) -> None:
    cores = machine("apple-m3", tmp_path).cores
    assert (cores.usable, cores.physical) == (6, 12)
    assert "fast ones" in cores.reason


def test_slow_cores_of_a_hybrid_processor_are_not_counted_on_linux_either() -> None:
    """Two fast cores of two threads each, two slow ones: llama.cpp's issue 842, where the slow ones held up all."""
    files = {"/sys/devices/cpu_core/cpus": "0-3\n"}
    for index in range(4):
        pair = "0-1" if index < 2 else "2-3"
        files[f"/sys/devices/system/cpu/cpu{index}/topology/core_cpus_list"] = f"{pair}\n"
    cores = limits.cores(Recorded(record("skylake-avx2", files=files)))
    assert (cores.usable, cores.physical) == (2, 4)
    assert "2 of 4 physical cores are fast ones" in cores.reason


def test_numa_nodes(tmp_path: Path) -> None:
    nodes = machine("sapphire-rapids", tmp_path).numa
    assert [(node.index, node.cpus) for node in nodes] == [(0, 112), (1, 112)]
    assert sum(node.memory for node in nodes) == 512 * 2**30


@given(cgroup=st.text(max_size=80), mounts=st.text(max_size=200), quota=st.text(max_size=20))
def test_no_text_in_these_files_is_fatal(cgroup: str, mounts: str, quota: str) -> None:
    files = {"/proc/self/cgroup": cgroup, "/proc/self/mountinfo": mounts, "/proc/cpuinfo": quota}
    files |= {"/sys/fs/cgroup/cpu.max": quota, "/sys/fs/cgroup/memory.max": quota}
    host = Recorded(record("skylake-avx2", files=files))
    assert 1 <= limits.cores(host).usable <= 4
    assert 0 < limits.memory(host).usable <= 32 * 2**30


@given(place=st.text("ab/.", max_size=20), root=st.text("ab/.", min_size=1, max_size=10))
def test_walking_up_any_cgroup_path_ends(place: str, root: str) -> None:
    files = {"/proc/self/cgroup": f"0::/{place}\n", "/proc/self/mountinfo": f"1 2 0:1 /{root} /cg rw - cgroup2 c rw\n"}
    host = Recorded(record("skylake-avx2", files=files))
    folders = list(limits._folders(host, ""))
    assert len(folders) <= 22
    assert all(folder.startswith("/cg") for folder in folders)
