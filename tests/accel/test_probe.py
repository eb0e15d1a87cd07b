"""The probe on recorded machines, on broken input, and on this machine: facts, limits, and children that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel import cache
from accel.probe import probe
from accel.probing import gpus, limits, packages, proving, verdict
from accel.probing.host import DONE, START, LocalHost, Outcome, Recorded
from accel.types import Machine
from tests.accel.recorded import NAMES, machine, record

CAPS = {
    # machine: (vendor, features proved usable, features advertised and not usable)
    "skylake-avx2": ("Intel", {"avx2"}, set()),
    "zen3": ("AMD", {"avx2"}, set()),
    "zen4": ("AMD", {"avx2", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"}, set()),
    "zen5": ("AMD", {"avx2", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "avx512_bf16"}, set()),
    "sapphire-rapids": ("Intel", {"avx2", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"}, {"avx512_fp16"}),
    "h200": ("Intel", {"avx2", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8"}, set()),
    "lying-amx": ("Intel", {"avx2", "avx512f"}, {"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni"}),
    "apple-m3": ("Apple", {"neon"}, {"bf16", "i8mm"}),
    "graviton3": ("Arm", {"neon", "sve", "bf16", "i8mm"}, set()),
    "rtx4090-windows": ("Intel", {"avx2", "avx_vnni"}, set()),
    "mi300x": ("AMD", {"avx512_bf16"}, set()),
}

CARDS = {
    # machine: (chip, GPUs, usable)
    "h100": ("sm_90", 1, True),
    "h200": ("sm_90", 1, True),
    "rtx4090-windows": ("sm_89", 1, True),
    "rtx5090": ("sm_120", 1, True),
    "rtx5090-old-torch": ("sm_120", 1, False),
    "mi300x": ("gfx942", 8, True),
    "mi355x": ("gfx950", 8, True),
    "apple-m3": ("mps", 1, True),
    "skylake-avx2": ("", 0, False),
}


@pytest.mark.parametrize("name", sorted(CAPS))
def test_cpu_features_are_usable_only_when_a_run_proved_them(name: str, tmp_path: Path) -> None:
    vendor, usable, doubted = CAPS[name]
    cpu = machine(name, tmp_path).cpu
    assert cpu.vendor == vendor
    assert cpu.model != "unknown"
    assert usable <= {flag for flag, fact in cpu.flags.items() if fact.usable}
    assert doubted <= {flag for flag, fact in cpu.flags.items() if fact.advertised and not fact.usable}
    for flag, fact in cpu.flags.items():
        assert fact.reason, flag
        assert fact.advertised or not fact.usable, flag


@pytest.mark.parametrize("name", sorted(CARDS))
def test_gpus_by_chip(name: str, tmp_path: Path) -> None:
    arch, count, usable = CARDS[name]
    found = machine(name, tmp_path)
    assert [gpu.arch for gpu in found.gpus] == [arch] * count
    assert len(found.usable_gpus()) == (count if usable else 0)
    assert all(gpu.memory > 2**30 and gpu.usable.reason for gpu in found.gpus)


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_survives_json(name: str, tmp_path: Path) -> None:
    found = machine(name, tmp_path)
    assert Machine.from_dict(json.loads(json.dumps(found.to_dict()))) == found


# -- CPUs that lie --


def test_amx_bits_without_a_working_palette_are_an_answer(tmp_path: Path) -> None:
    found = machine("lying-amx", tmp_path)
    assert found.cpu.advertises("amx_tile")
    assert found.cpu.why_not("amx_bf16") == (
        "amx_bf16 is advertised, not usable: its test process was killed by SIGILL"
    )
    assert found.why_unproved("bf16") == "its test process was killed by SIGILL"
    assert "not tried, since" in found.why_unproved("packed_bf16")
    assert found.proofs["conv3d"].ok, "what does not need AMX is still tried"


def test_one_death_costs_one_more_child(tmp_path: Path) -> None:
    host = Recorded(record("lying-amx"))
    probe(host=host, cache_folder=tmp_path)
    assert len(host.tried) == 2
    assert host.tried[1][0] == "conv3d"


def test_capped_onednn_is_named_as_the_reason(tmp_path: Path) -> None:
    run = record("sapphire-rapids")["runs"]["bf16"]
    run["output"] = [line.replace("avx10_1_512_amx", "avx512_core_bf16") for line in run["output"]]
    found = machine("sapphire-rapids", tmp_path, environ={"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, runs={"bf16": run})
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 keeps it unused" in found.cpu.why_not("amx_bf16")
    assert found.cpu.usable("avx512_bf16")
    assert [item.name for item in found.overrides] == ["ONEDNN_MAX_CPU_ISA"]


def test_a_wrong_result_is_not_usable(tmp_path: Path) -> None:
    wrong = {"result": {"ok": False, "reason": "ran and was wrong: relative error 3.1e-01", "figures": {}}}
    found = machine("zen5", tmp_path, runs={"bf16": wrong})
    assert found.cpu.why_not("avx512_bf16").endswith("ran and was wrong: relative error 3.1e-01")


def test_no_torch_leaves_only_claims(tmp_path: Path) -> None:
    found = machine("zen5", tmp_path, distributions={"torch": None})
    assert found.cpu.why_not("avx2") == "avx2 is advertised, not tried yet"
    assert found.packages["torch"].reason == "torch is not installed"
    assert found.proofs == {}


# -- GPUs --


def test_a_torch_without_code_for_the_gpu_is_caught_with_the_remedy(tmp_path: Path) -> None:
    (gpu,) = machine("rtx5090-old-torch", tmp_path).gpus
    assert gpu.has_code.value is False
    assert "has no sm_120 code, only sm_50" in gpu.usable.reason
    assert "pip install" in gpu.usable.reason
    assert "cu130" in gpu.usable.reason


@pytest.mark.parametrize(
    ("arch", "arches", "fits"),
    [
        ("sm_90", ["sm_80", "sm_90"], True),
        ("sm_89", ["sm_80"], True),
        ("sm_86", ["sm_86"], True),
        ("sm_80", ["sm_86"], False),
        ("sm_120", ["sm_80", "sm_90"], False),
        ("sm_120", ["sm_90", "compute_90"], True),
        ("sm_90", ["sm_90a"], True),
        ("sm_120", ["sm_100a"], False),
        ("sm_103", ["sm_100"], True),
        ("sm_75", [], False),
        ("gfx950", ["gfx942", "gfx950"], True),
        ("gfx1201", ["gfx942", "gfx950"], False),
        ("gfx90a", ["gfx90a:sramecc+"], True),
    ],
)
def test_which_code_runs_on_which_chip(arch: str, arches: list[str], fits: bool) -> None:
    fact = gpus.has_code(arch, arches, "2.13.0")
    assert fact.value is fits
    assert arch in fact.reason


def test_a_card_that_a_cpu_build_of_torch_can_not_see_is_named(tmp_path: Path) -> None:
    command = " ".join(gpus.SMI)
    found = machine(
        "skylake-avx2", tmp_path, commands={command: "NVIDIA GeForce RTX 3050, 8.6, 8192, 580.95.05, GPU-1\n"}
    )
    (gpu,) = found.gpus
    assert (gpu.index, gpu.arch, gpu.memory) == (-1, "sm_86", 8 * 2**30)
    assert "torch 2.13.0+cpu is built for cpu" in gpu.usable.reason
    assert "pip install" in gpu.usable.reason


def test_a_hidden_card_is_named_with_what_hides_it(tmp_path: Path) -> None:
    listing = {"result": {"ok": True, "reason": "listed", "gpus": [], "arches": ["sm_90"], "mps": False}}
    found = machine("h100", tmp_path, environ={"CUDA_VISIBLE_DEVICES": ""}, runs={"gpus": listing})
    (gpu,) = found.gpus
    assert gpu.usable.reason == "hidden from torch by CUDA_VISIBLE_DEVICES=; unset it to use the GPU"


def test_an_amd_gpu_can_not_be_talked_into_another_name(tmp_path: Path) -> None:
    """A consumer card that claims gfx942 (ROCm/aiter issue 3846): the kernel driver's word counts."""
    files: dict[str, Any] = {
        path: None for path in record("mi300x")["files"] if "/kfd/" in path and not path.startswith(f"{gpus.KFD}/1/")
    }
    files[f"{gpus.KFD}/1/properties"] = "simd_count 128\ngfx_target_version 120001\n"
    listing = {"result": {**record("mi300x")["runs"]["gpus"]["result"]}}
    listing["result"]["gpus"] = listing["result"]["gpus"][:1]
    found = machine(
        "mi300x", tmp_path, files=files, runs={"gpus": listing}, environ={"HSA_OVERRIDE_GFX_VERSION": "9.4.2"}
    )
    (gpu,) = found.gpus
    assert gpu.arch == "gfx1201"
    assert "claim to be gfx942" in gpu.usable.reason
    assert found.usable_gpus() == ()


def test_a_gpu_that_kills_its_test_is_left_out_and_the_others_stay(tmp_path: Path) -> None:
    found = machine("mi300x", tmp_path, runs={"gpu:3": {"signal": 11}})
    assert len(found.usable_gpus()) == 7
    assert found.gpus[3].usable.reason == "its test process was killed by SIGSEGV"


# -- packages --


def test_the_two_builds_of_sgl_kernel_are_told_apart_by_their_operators(tmp_path: Path) -> None:
    assert machine("sapphire-rapids", tmp_path).packages["sgl_kernel"].build == "cpu"
    assert machine("h100", tmp_path).packages["sgl_kernel"].build == "cuda"


def test_the_iterator_library_is_not_amds(tmp_path: Path) -> None:
    run = {"result": {"ok": False, "reason": "this is the iterator library named aiter, not AMD's kernels", "ops": []}}
    wrong = {"amd-aiter": None, "aiter": {"version": "0.13.20191203", "torch": ""}}
    found = machine("mi300x", tmp_path, distributions=wrong, runs={"aiter": run})
    package = found.packages["aiter"]
    assert (package.distribution, package.importable) == ("aiter", False)
    assert "iterator library" in package.reason


def test_a_package_for_another_torch_says_which(tmp_path: Path) -> None:
    run = {"result": {"ok": False, "reason": "ImportError: sgl_kernel.so: undefined symbol: _ZN3c10"}}
    package = machine("sapphire-rapids", tmp_path, runs={"sgl_kernel": run}).packages["sgl_kernel"]
    assert "was built for another torch (==2.11.0, found 2.11.0+cpu)" in package.reason


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "cuda 13.0"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '7.2.26015'\n", "rocm 7.2.26015"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", "cpu"),
        ("cuda = '12.4'\nhip = None\n", "cuda 12.4"),
    ],
)
def test_torchs_build_is_read_without_importing_it(text: str, build: str) -> None:
    host = Recorded(record("zen5", files={"/site/torch/version.py": text}))
    assert packages.torch_build(host, host.distribution("torch")) == build


# -- cores and memory --

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
    memory = limits.memory(Recorded(record("skylake-avx2", files=files)))
    assert memory.usable == gibs * 2**30
    assert memory.total == 32 * 2**30
    assert source in memory.reason


def test_slow_cores_are_not_counted(tmp_path: Path) -> None:
    cores = machine("apple-m3", tmp_path).cores
    assert (cores.usable, cores.physical) == (6, 12)
    assert "fast ones" in cores.reason


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


# -- children --


def test_finished_tasks_and_the_one_that_killed_the_child_are_read_from_its_output() -> None:
    text = "\n".join(
        [
            START + "fp32",
            DONE + 'fp32 {"ok": true, "reason": "fine"}',
            "noise",
            START + "bf16",
            "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_amx,undef",
            DONE + 'bf16 {"ok": true, "reason": "fine"}',
            START + "int8",
            DONE + "int8 {cut short",
        ]
    )
    results, at = proving.read(text)
    assert results == {
        "fp32": {"ok": True, "reason": "fine"},
        "bf16": {"ok": True, "reason": "fine", "isa": "brg_matmul:avx512_core_amx"},
    }
    assert at == "int8"


@given(st.text(max_size=300))
def test_any_output_can_be_read(text: str) -> None:
    results, at = proving.read(text)
    assert isinstance(results, dict)
    proving.read(START + "bf16\n" + text)
    verdict.instructions(text.splitlines())
    assert at is None or isinstance(at, str)


@pytest.mark.parametrize(
    ("outcome", "reason", "again"),
    [
        (Outcome("", "", -signal.SIGILL), "killed by SIGILL", False),
        (Outcome("", "", -signal.SIGSEGV), "killed by SIGSEGV", False),
        (Outcome("", "", -9), "want of memory", True),
        (Outcome("", "", 0xC000001D), "an illegal instruction", False),
        (Outcome("", "", None), "did not answer within 8 s", True),
        (Outcome("", "Timeout (0:00:08)!\nThread", 1), "did not answer within 8 s", True),
        (Outcome("", "Traceback\nOSError: gone\n", 1), "status 1: OSError: gone", False),
        (Outcome("", "", -250), "signal 250", False),
    ],
)
def test_how_a_child_ended_is_told_in_a_sentence(outcome: Outcome, reason: str, again: bool) -> None:
    death = proving.died(outcome, 8.0)
    assert reason in death["reason"]
    assert death["ok"] is False
    assert death.get("again", False) is again


class Scripted(Recorded):
    """A recorded machine whose child tasks are real processes running a given shell command."""

    def __init__(self, data: dict[str, Any], command: str) -> None:
        super().__init__(data)
        self.command, self.calls = command, 0

    def child(self, tasks: Any, environ: Any, timeout: float) -> Outcome:
        self.calls += 1
        script = f"echo '{START}{tasks[0]}'; {self.command}"
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=30, check=False)
        return Outcome(done.stdout, done.stderr, done.returncode)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_self_test_that_dies_of_sigill_leaves_a_whole_report(tmp_path: Path) -> None:
    host = Scripted(record("zen5"), "kill -ILL $$")
    found = probe(host=host, cache_folder=tmp_path)
    assert found.why_unproved("fp32") == "its test process was killed by SIGILL"
    assert not any(flag.usable for flag in found.cpu.flags.values())
    assert host.calls < 12


def test_a_child_that_can_not_even_start_is_told_and_ends(tmp_path: Path) -> None:
    host = Recorded(record("zen5"))
    host.child = lambda tasks, environ, timeout: Outcome("", "No module named 'encodings'", 1)  # type: ignore[method-assign]
    found = probe(host=host, cache_folder=tmp_path)
    assert "No module named 'encodings'" in found.why_unproved("fp32")


def test_children_get_a_clean_environment_and_our_thread_count() -> None:
    host = Recorded(
        record("zen5", environ={"ONEDNN_VERBOSE": "1", "HSA_OVERRIDE_GFX_VERSION": "9.4.2", "PATH": "/bin"})
    )
    environ = proving.environment(host, 3)
    assert "ONEDNN_VERBOSE" not in environ
    assert environ["HSA_OVERRIDE_GFX_VERSION"] == "9.4.2", "the real run sees it too"
    assert environ["OMP_NUM_THREADS"] == "3"
    assert environ["HF_HUB_OFFLINE"] == "1"


def test_no_time_means_not_tried_and_not_remembered(tmp_path: Path) -> None:
    found = probe(host=Recorded(record("zen5")), cache_folder=tmp_path, patience=0.0)
    assert "the time for testing was used up" in found.why_unproved("fp32")
    assert probe(host=Recorded(record("zen5")), cache_folder=tmp_path).proofs["fp32"].ok


def test_what_compiles_for_minutes_waits_for_patience(tmp_path: Path) -> None:
    host = Recorded(record("mi355x"))
    impatient = probe(host=host, cache_folder=tmp_path, patience=10.0)
    assert "may compile for 5 minutes" in impatient.why_unproved("aiter.flash_attn_func")
    patient = probe(host=host, cache_folder=tmp_path, patience=600.0)
    assert patient.why_unproved("aiter.flash_attn_func") == ""
    assert host.tried[-1] == ("aiter.flash_attn_func",), "what was remembered is not run again"


# -- remembering --


def test_a_second_probe_starts_no_child(tmp_path: Path) -> None:
    first = Recorded(record("zen5"))
    once = probe(host=first, cache_folder=tmp_path)
    second = Recorded(record("zen5"))
    assert probe(host=second, cache_folder=tmp_path) == once
    assert first.tried
    assert not second.tried
    assert probe(host=second, cache_folder=tmp_path, prove=False) == once


@pytest.mark.parametrize(
    "changes",
    [
        {"distributions": {"torch": {"version": "2.14.1+cpu", "torch": ""}}},
        {"environ": {"ONEDNN_MAX_CPU_ISA": "AVX2"}},
        {"files": {"/proc/sys/kernel/osrelease": "6.9.0\n"}},
        {"numbers": {"affinity": 1}},
    ],
)
def test_whatever_could_change_an_answer_asks_again(changes: dict[str, Any], tmp_path: Path) -> None:
    probe(host=Recorded(record("zen5")), cache_folder=tmp_path)
    host = Recorded(record("zen5", **changes))
    probe(host=host, cache_folder=tmp_path)
    assert host.tried


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"fp32": 3}', '{"fp32": {"ok": "yes", "reason": 1}}', "\udcff"])
def test_a_broken_record_is_no_record(content: str, tmp_path: Path) -> None:
    probe(host=Recorded(record("zen5")), cache_folder=tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert probe(host=Recorded(record("zen5")), cache_folder=tmp_path).proofs["fp32"].ok


def test_a_folder_that_can_not_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    found = probe(host=Recorded(record("zen5")), cache_folder=blocked)
    assert found.proofs["fp32"].ok
    assert len(found.problems) == 1
    assert "could not be kept" in found.problems[0]


def test_old_records_go(tmp_path: Path) -> None:
    for number in range(cache.KEPT + 3):
        assert cache.save(f"{number:02}", {"fp32": {"ok": True, "reason": "fine"}}, tmp_path) == ""
        os.utime(tmp_path / f"{number:02}.json", (number, number))
    cache.save("new", {"fp32": {"ok": True, "reason": "fine"}}, tmp_path)
    left = sorted(path.stem for path in tmp_path.glob("*"))
    assert len(left) == cache.KEPT
    assert "new" in left
    assert "00" not in left


# -- never raising --


@pytest.mark.parametrize("broken", ["read", "glob", "run", "number", "distribution", "child"])
def test_a_reader_that_fails_is_a_note(broken: str, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake of ours")

    host = Recorded(record("h100"))
    setattr(host, broken, fail)
    found = probe(host=host, cache_folder=tmp_path)
    assert any("a mistake of ours" in problem for problem in found.problems)
    assert found.cores.usable >= 1
    assert Machine.from_dict(found.to_dict()) == found


def test_an_unknown_system_gives_an_empty_cpu(tmp_path: Path) -> None:
    found = machine("zen5", tmp_path, system="plan9")
    assert (found.cpu.vendor, found.cpu.model) == ("unknown", "unknown")


# -- this machine --


def test_this_machine_is_probed_for_real_in_a_process_without_torch(tmp_path: Path) -> None:
    code = (
        "import json, sys; from accel import probe; machine = probe(patience=120.0); "
        "print(json.dumps([machine.to_dict(), 'torch' in sys.modules, 'numpy' in sys.modules]))"
    )
    environ = {**os.environ, "ACCEL_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=True)
    data, torch_loaded, numpy_loaded = json.loads(done.stdout)
    found = Machine.from_dict(data)
    assert not torch_loaded
    assert not numpy_loaded
    assert found.problems == ()
    assert found.proofs["fp32"].ok, found.why_unproved("fp32")
    assert found.proofs["bf16"].figures["linear_bfloat16_ms"] > 0
    assert found.packages["torch"].importable
    assert found.cores.usable <= (os.cpu_count() or 1)
    print({name: proof.figures.get("error") for name, proof in found.proofs.items()})


def test_the_local_host_answers_nothing_rather_than_raise(tmp_path: Path) -> None:
    host = LocalHost()
    assert host.read(str(tmp_path / "missing")) is None
    assert host.read(str(tmp_path)) is None
    assert host.run("a-program-that-is-not-there") is None
    assert host.run(sys.executable, "-c", "raise SystemExit(3)") is None
    assert host.run(sys.executable, "-c", "import time; time.sleep(9)", timeout=0.2) is None
    assert host.number("windows_avx2") is None or sys.platform == "win32"
    assert host.distribution("a-package-that-is-not-there") is None
