"""What aiter's backends ask of a machine, what a plan makes of them, and their first call in a child that may die."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accel import advice
from accel.backends import backend
from accel.plan import make_plan
from accel.probing import proving
from accel.probing.host import LocalHost
from accel.types import Machine, Package, Preferences, Proof, StageTraits
from tests.accel.recorded import engaged, machine, model, refusals
from tests.emulators import aiter as emulator

ROOT = Path(__file__).parents[3]
TRAITS = StageTraits("transformer", "WanTransformer3DModel", heads=40, head_dim=128, reachable=True)
FUNCTIONS = {
    "aiter_bf16": "flash_attn_func",
    "aiter_fmha_fp8": "flash_attn_fp8_pertensor_func",
    "aiter_mla_fp8": "mla_prefill_ps_asm_fwd",
}


def reasons(on: Machine, name: str, **traits: Any) -> list[str]:
    return backend("attention", name).why_not(on, replace(TRAITS, **traits))


def with_aiter(found: Machine, **changes: Any) -> Machine:
    return replace(found, packages={**found.packages, "aiter": replace(found.packages["aiter"], **changes)})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_mi355x_can_run_all_of_them(name: str, tmp_path: Path) -> None:
    assert reasons(machine("mi355x", tmp_path), name) == []


def test_each_reason_is_one_sentence(tmp_path: Path) -> None:
    old, new, hopper = machine("mi300x", tmp_path), machine("mi355x", tmp_path), machine("h200", tmp_path)
    assert reasons(old, "aiter_bf16") == []
    for name in ("aiter_fmha_fp8", "aiter_mla_fp8"):
        (sentence,) = reasons(old, name)
        assert re.fullmatch(r"aiter's \w+ runs on gfx950 \(MI350X, MI355X\), found gfx942(, gfx942)*", sentence)
        assert reasons(new, name, head_dim=64) == ["head size 64 is not 128"]
    (sentence,) = reasons(hopper, "aiter_bf16")
    assert sentence.endswith("runs on gfx942 (MI300X, MI325X) and gfx950 (MI350X, MI355X), found sm_90")
    assert "10 heads are no multiple of 8" in reasons(new, "aiter_mla_fp8", heads=10)[0]
    assert reasons(new, "aiter_fmha_fp8", heads=10) == []
    nothing = replace(new, packages={**new.packages, "aiter": Package("aiter", "amd-aiter", "", "", False, "")})
    assert reasons(nothing, "aiter_mla_fp8") == [f"aiter is not installed; {advice.AITER}"]
    wrong = with_aiter(new, importable=False, reason="aiter 0.13 does not import: this is the iterator library")
    assert reasons(wrong, "aiter_bf16") == [f"{wrong.packages['aiter'].reason}; {advice.AITER}"]
    dead = Proof(False, "its test process was killed by SIGSEGV")
    killed = replace(new, proofs={**new.proofs, "aiter.mla_prefill_ps_asm_fwd": dead})
    assert reasons(killed, "aiter_mla_fp8") == ["its test process was killed by SIGSEGV"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_chip_off_the_list_gets_no_kernel_however_well_the_package_imports(name: str, tmp_path: Path) -> None:
    """Case 13: a consumer GPU beside a wheel for servers' ones, whose every trial run is even said to have passed."""
    servers = machine("mi355x", tmp_path)
    cards = tuple(replace(gpu, name="AMD Radeon RX 9070 XT", arch="gfx1201") for gpu in servers.gpus[:1])
    consumer = replace(servers, gpus=cards)
    assert consumer.packages["aiter"].importable
    assert FUNCTIONS[name] in consumer.packages["aiter"].ops
    assert consumer.why_unproved(f"aiter.{FUNCTIONS[name]}") == ""
    (sentence,) = reasons(consumer, name)
    assert sentence.endswith("found gfx1201")
    (told,) = refusals(consumer, model(heads=40), attention=name, dtype="bf16")
    assert "found gfx1201" in told
    assert engaged(make_plan(consumer, model(heads=40)), "tr.attention") == "sdpa"


def test_auto_leaves_them_and_fp8_means_fmha_before_mla(tmp_path: Path) -> None:
    found, clip = machine("mi355x", tmp_path), model(heads=40)
    assert engaged(make_plan(found, clip), "tr.attention") == "sdpa"
    for name in FUNCTIONS:
        assert engaged(make_plan(found, clip, Preferences(attention=name)), "tr.attention") == name
    plan = make_plan(found, clip, Preferences(attention="fp8"))
    choice = plan.stages[1].attention
    assert (choice.requested, choice.engaged) == ("fp8", "aiter_fmha_fp8")
    assert "approximate: the clip will differ slightly" in choice.reasons
    assert engaged(plan, "tr.dtype") == "bfloat16"
    ops = tuple(name for name in found.packages["aiter"].ops if name != FUNCTIONS["aiter_fmha_fp8"])
    without = with_aiter(found, ops=ops)
    assert engaged(make_plan(without, clip, Preferences(attention="fp8")), "tr.attention") == "aiter_mla_fp8"
    (told,) = refusals(without, clip, attention="aiter_fmha_fp8")
    assert "amd-aiter 0.1.19 has no flash_attn_fp8_pertensor_func; a newer release has" in told


def test_fp8_where_nothing_runs_it_is_refused_with_every_reason(tmp_path: Path) -> None:
    (told,) = refusals(machine("mi300x", tmp_path), model(heads=40), attention="fp8", dtype="bf16")
    assert told.startswith("attention=fp8 can't be used here: fa3_fp8: FlashAttention-3 runs on")
    assert all(name in told for name in ("aiter_fmha_fp8", "aiter_mla_fp8"))
    for told in refusals(machine("mi355x", tmp_path), model(heads=40), attention="fp8", dtype="float32"):
        assert "bfloat16" in told


EMULATED = """
import sys, torch
from accel.probing.runs import kernels
from tests.emulators import aiter as emulator
stand_in = emulator.installed()
gpu = stand_in.__enter__()
kernels.gpus = lambda: [torch.device("cpu")]
"""
CRASH = """
import os, signal
sys.modules["aiter"].flash_attn_fp8_pertensor_func = lambda *_, **__: os.kill(os.getpid(), signal.SIGSEGV)
"""


def children(folder: Path, source: str) -> dict[str, Any]:
    """The probe's own tasks for aiter, each in its turn, as on a machine with all the time there is."""
    (folder / "sitecustomize.py").write_text(source)
    host = LocalHost({**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"})
    return proving.prove(host, ["aiter", *proving.AITER], 1, 2000.0, {})


@pytest.mark.long
def test_the_first_call_of_each_kernel_is_made_in_a_child_and_judged_emulated(tmp_path: Path) -> None:
    results = children(tmp_path, EMULATED)
    assert set(FUNCTIONS.values()) <= set(results["aiter"]["ops"])
    for name in FUNCTIONS.values():
        result = results[f"aiter.{name}"]
        print(name, result)
        assert result["ok"], result["reason"]
        assert 0 < result["figures"]["error"] < 0.08


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_a_kernel_that_kills_its_child_is_out_and_the_others_stay_emulated(tmp_path: Path) -> None:
    """Case 13: the first call is made in a child, and a dead child is the reason."""
    results = children(tmp_path, EMULATED + CRASH)
    assert results[f"aiter.{FUNCTIONS['aiter_fmha_fp8']}"]["reason"] == "its test process was killed by SIGSEGV"
    assert results[f"aiter.{FUNCTIONS['aiter_mla_fp8']}"]["ok"], "it ran in the next child"
    found = machine("mi355x", tmp_path, runs={task: {"result": result} for task, result in results.items()})
    assert reasons(found, "aiter_fmha_fp8") == ["its test process was killed by SIGSEGV"]
    plan = make_plan(found, model(heads=40), Preferences(attention="fp8"))
    assert engaged(plan, "tr.attention") == "aiter_mla_fp8"


def test_without_a_gpu_the_children_say_so(tmp_path: Path) -> None:
    results = children(tmp_path, EMULATED.partition("kernels.gpus")[0] + "kernels.gpus = lambda: []")
    assert results["aiter.flash_attn_func"] == {"ok": False, "reason": "there is no GPU that torch can use"}


def test_the_stand_in_shares_aiters_names() -> None:
    assert {*FUNCTIONS.values(), *emulator.SCHEMAS, "get_ps_metadata_info_v1"} <= set(dir(emulator.Gpu))
