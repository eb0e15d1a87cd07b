"""The probe on recorded machines, with readers that fail, and on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from accel.probe import probe
from accel.probing.host import LocalHost, Recorded
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
    """Case 1: advertised, not usable; a flag counts once a bf16 product ran in a child."""
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
