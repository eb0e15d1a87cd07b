"""Graphics processors as drivers and torch show them: which code runs where, which card is left out and why."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accel.plan import make_plan
from accel.probing import gpus
from accel.probing.host import Recorded
from accel.probing.runs.gpus import gpus as seen_by_torch
from tests.accel.recorded import engaged, machine, model, record


def test_a_torch_without_code_for_the_gpu_is_caught_with_the_remedy(tmp_path: Path) -> None:
    """Case 7: it is told at the start, not once Generate was pressed."""
    (gpu,) = machine("rtx5090-old-torch", tmp_path).gpus
    assert gpu.has_code.value is False
    assert "has no sm_120 code, only sm_50" in gpu.usable.reason
    assert "pip install" in gpu.usable.reason
    assert "cu130" in gpu.usable.reason


def test_a_card_that_torch_names_and_has_no_code_for_is_not_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 7: torch itself, stubbed: available, capability 12.0, and code for sm_80 and sm_90."""
    import torch

    card = SimpleNamespace(name="GeForce RTX 5090", total_memory=2**35, major=12, minor=0)
    monkeypatch.setattr(torch.version, "cuda", "12.4")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_80", "sm_90"])
    runs = {"gpus": seen_by_torch(), "gpu:0": {"ok": True, "reason": "a product that nobody believes"}}
    (gpu,) = gpus.assemble(Recorded(record("zen5")), "cuda 12.4", "2.6.0+cu124", [], runs)
    assert (gpu.arch, gpu.usable.value) == ("sm_120", False)
    assert "has no sm_120 code, only sm_80, sm_90: install torch for CUDA 13.0" in gpu.usable.reason


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


def test_a_laptop_s_second_gpu_takes_nothing_from_the_first(tmp_path: Path) -> None:
    """An AMD GPU in the processor beside an NVIDIA card (Wan2GP's issue 1565): CUDA stays, the other one is told."""
    chip = {f"{gpus.KFD}/1/properties": "simd_count 24\ngfx_target_version 110003\n"}
    found = machine("rtx5090", tmp_path, files=chip)
    assert [(gpu.arch, gpu.usable.value) for gpu in found.gpus] == [("sm_120", True), ("gfx1103", False)]
    (told,) = found.unused_gpus()
    assert told.startswith("AMD gfx1103 is not used: torch ")
    plan = make_plan(found, model())
    assert engaged(plan, "tr.device") == "cuda:0"


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
