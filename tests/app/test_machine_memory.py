"""Memory of this process and what is free, in containers too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from accel.types import Fact, Memory
from app.machine_memory import free_memory, peak_memory, reset_peak, resident, trim

MIB = 2**20


def test_a_process_holds_memory_and_a_gone_one_none() -> None:
    assert resident() > 10 * MIB
    code = "import time; print('here', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"here"
        assert resident(other.pid) > MIB
        other.kill()
        other.wait()
        assert resident(other.pid) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux can begin a measurement anew")
def test_a_peak_is_seen_and_forgotten() -> None:
    reset_peak()
    block = bytearray(os.urandom(64)) * MIB
    held = resident()
    del block
    trim()
    assert peak_memory() >= held - MIB
    reset_peak()
    assert peak_memory() < held - 32 * MIB


def test_free_memory_is_no_more_than_the_machine_has() -> None:
    free, whose = free_memory()
    assert free > 0
    assert whose in ("the machine", "the container")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": 500, "memory.current": 300, "memory.stat": "anon 100\ninactive_file 50\n"}, 250),
        ({"memory.high": 500, "memory.current": 600, "memory.stat": "inactive_file 0"}, 0),
        (
            {
                "memory.limit_in_bytes": 500,
                "memory.usage_in_bytes": 100,
                "memory.stat": "inactive_file 7\ntotal_inactive_file 20",
            },
            420,
        ),
    ],
)
def test_the_container_s_limit_less_what_it_uses(
    files: dict[str, int | str], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(iter(files))
    limit = Fact(int(files[name]) * MIB, "the container may use it", f"/sys/fs/cgroup/x/{name}")

    def read(path: str) -> str | None:
        value = files.get(path.rpartition("/")[2])
        if isinstance(value, str):
            return "\n".join(f"{key} {int(size) * MIB}" for key, size in (line.split() for line in value.splitlines()))
        return None if value is None else f"{value * MIB}\n"

    memory: Callable[..., Memory] = lambda host: Memory(2**40, 500 * MIB, "", (limit,))  # noqa: E731
    monkeypatch.setattr("app.machine_memory.limits.memory", memory)
    assert free_memory(read) == (expected * MIB, "the container")


def test_an_unreadable_file_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Fact(500 * MIB, "the container may use it", "/sys/fs/cgroup/x/memory.max")
    monkeypatch.setattr("app.machine_memory.limits.memory", lambda host: Memory(2**40, 1, "", (limit,)))
    assert free_memory(lambda path: None) == (500 * MIB, "the container")
