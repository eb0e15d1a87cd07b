"""The small runs for real, in real children: right, wrong, dead, hanging, and held down to AVX2."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from accel.plan import make_plan
from accel.probe import probe
from accel.probing import proving
from accel.probing.host import LocalHost
from accel.probing.runs import tools
from tests.accel.recorded import model

ROOT = Path(__file__).parents[3]
HELD_DOWN = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
X86 = platform.machine().lower() in ("x86_64", "amd64")


def site(folder: Path, **modules: str) -> Path:
    """A folder of packages: import name -> source; each is found as an installed distribution too."""
    names = {"sgl_kernel": "sglang-kernel-cpu", "aiter": "amd-aiter"}
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)
        distribution = names.get(module, module)
        info = folder / f"{distribution.replace('-', '_')}-0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1\n")
    return folder


def run(tasks: Sequence[str], folder: Path, limit: float = 60.0) -> tuple[dict[str, Any], str | None, Any]:
    """Tasks in a child that finds the packages of `folder` first."""
    environ = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "ACCEL_PROOF_LIMIT": str(limit)}
    outcome = LocalHost().child(tasks, environ, 120.0)
    results, at = proving.read(outcome.stdout)
    return results, at, outcome


EMULATED = """
import contextlib, sys
from tests.emulators import sgl_kernel_cpu
here = sys.modules[__name__]
stack = contextlib.ExitStack()
stack.enter_context(sgl_kernel_cpu.installed(sm_scale={sm_scale}, without={without}))
sys.modules["sgl_kernel"] = here
"""
OPERATORS = ("weight_packed_linear", "int8_scaled_mm_with_quant", "flash_attn_varlen_func")


def test_each_operator_of_sglangs_cpu_build_is_run_and_judged(tmp_path: Path) -> None:
    folder = site(tmp_path, sgl_kernel=EMULATED.format(sm_scale=True, without=()))
    results, _, outcome = run(["sgl_kernel", *(f"sgl_kernel.{name}" for name in OPERATORS)], folder)
    assert set(OPERATORS) <= set(results["sgl_kernel"]["ops"]), outcome.stderr
    for name in OPERATORS:
        result = results[f"sgl_kernel.{name}"]
        print(name, result)
        assert result["ok"], result["reason"]
        assert 0 < result["figures"]["error"] < 0.03
    assert results["sgl_kernel.flash_attn_varlen_func"]["sm_scale"] is True


def test_a_build_without_an_operator_or_without_sm_scale_says_so(tmp_path: Path) -> None:
    source = EMULATED.format(sm_scale=False, without=("weight_packed_linear",))
    tasks = ["sgl_kernel.weight_packed_linear", "sgl_kernel.flash_attn_varlen_func"]
    results, _, _ = run(tasks, site(tmp_path, sgl_kernel=source))
    assert results[tasks[0]]["reason"] == "this build of sgl_kernel does not register weight_packed_linear"
    assert results[tasks[1]]["ok"]
    assert results[tasks[1]]["sm_scale"] is False


def test_an_import_error_is_a_sentence_and_the_next_task_runs(tmp_path: Path) -> None:
    folder = site(
        tmp_path, sageattention="raise ImportError('x.so: undefined\\n symbol: _ZN3c10')", torchao="__version__ = '0.9'"
    )
    results, at, _ = run(["sageattention", "torchao"], folder)
    assert at is None
    assert results["sageattention"]["reason"] == "ImportError: x.so: undefined symbol: _ZN3c10"
    assert results["torchao"] == {"ok": True, "reason": "imports", "version": "0.9"}


def test_the_iterator_library_is_told_from_amds_kernels(tmp_path: Path) -> None:
    results, _, _ = run(["aiter"], site(tmp_path, aiter="def islice(): ..."))
    assert results["aiter"]["ok"] is False
    assert "iterator library" in results["aiter"]["reason"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_a_package_that_crashes_its_process_costs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ROCm/aiter issue 3846: an import that succeeds elsewhere takes the process down here."""
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    folder = site(tmp_path, sageattention=crash, torchao="__version__ = '0.9'")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(proving, "PROCESSOR", ("torch",))
    found = probe(host=LocalHost({**os.environ, "PYTHONPATH": str(folder)}), cache_folder=tmp_path, patience=120.0)
    assert "killed by SIGSEGV" in found.packages["sageattention"].reason
    assert not found.packages["sageattention"].importable
    assert found.packages["torchao"].importable
    assert found.packages["torch"].importable
    assert found.problems == ()


def test_a_package_that_hangs_is_stopped_at_its_limit(tmp_path: Path) -> None:
    folder = site(tmp_path, sageattention="import time; time.sleep(600)")
    results, at, outcome = run(["sageattention"], folder, limit=0.5)
    assert (results, at) == ({}, "sageattention")
    death = proving.died(outcome, 0.5)
    assert "did not answer" in death["reason"]
    assert death["again"] is True


def test_what_a_package_prints_can_not_be_taken_for_an_answer(tmp_path: Path) -> None:
    noisy = "print('@proof done sageattention {\"ok\": true}'); print('@proof start fp32'); raise ImportError('no')"
    results, at, _ = run(["sageattention"], site(tmp_path, sageattention=noisy))
    assert results == {"sageattention": {"ok": False, "reason": "ImportError: no"}}
    assert at is None


def test_nothing_lying_about_hides_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a file in the current folder nor accel's own `types` may stand in for the real one."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    outcome = LocalHost().child(["torchao"], environ, 60.0)
    results, _ = proving.read(outcome.stdout)
    assert "torchao" in results, outcome.stderr


@pytest.mark.skipif(not X86, reason="the variables hold x86 instructions down")
def test_held_down_to_avx2_auto_takes_float32_for_every_stage(tmp_path: Path) -> None:
    """Case 17: without AVX512_BF16 or AMX bf16 is many times slower (pytorch issue 118499), and nothing says so."""
    environ = {**os.environ, **HELD_DOWN}
    found = probe(host=LocalHost(environ), cache_folder=tmp_path, patience=120.0)
    assert found.proofs["bf16"].ok, found.why_unproved("bf16")
    print(found.proofs["bf16"].figures)
    if found.usable_gpus():
        pytest.skip("this machine plans for its GPU")
    plan = make_plan(found, model())
    assert {stage.dtype.engaged for stage in plan.stages} == {"float32"}
    for stage in plan.stages:
        assert "slower than fp32" in stage.dtype.reasons[0]
        assert re.search(r"(linear|conv3d) [\d.e+]+ ms, fp32 [\d.e+]+ ms", stage.dtype.reasons[1]), "both figures"


TIMED = """
import torch, time, json
from tests import builders

def least(call):
    times = []
    for _ in range(3):
        begun = time.thread_time()
        call()
        times.append(time.thread_time() - begun)
    return min(times)

torch.set_num_threads(1)
found = {}
for dtype in (torch.float32, torch.bfloat16):
    block = builders.wan_transformer(heads=4, head_dim=64, layers=1, ffn=1024).to(dtype)
    inputs = builders.wan_inputs(dtype=dtype)
    inputs["hidden_states"] = torch.randn(1, 8, 2, 32, 32).to(dtype)
    vae = builders.wan().vae.to(dtype)
    latents = torch.randn(1, vae.config.z_dim, 2, 8, 8).to(dtype)
    with torch.inference_mode():
        found[str(dtype)] = least(lambda: block(**inputs)), least(lambda: vae.decode(latents))
print(json.dumps(list(found.values())))
"""


@pytest.mark.skipif(not X86, reason="the variables hold x86 instructions down")
def test_held_down_to_avx2_a_block_and_a_decode_are_faster_in_float32() -> None:
    """Case 17: what `auto` takes there from the probe's small tests, in a whole block and a whole decode."""
    environ = {**os.environ, **HELD_DOWN, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", TIMED], env=environ, capture_output=True, text=True, check=True)
    (block, decode), (low_block, low_decode) = json.loads(done.stdout.splitlines()[-1])
    print(f"block {low_block / block:.1f} times, decode {low_decode / decode:.1f} times as long in bf16")
    assert low_block > block
    assert low_decode > decode


def test_a_reference_that_is_off_is_wrong_and_so_is_nan() -> None:
    import torch

    right = torch.ones(4)
    assert tools.judged(right, right, "float32")["ok"]
    assert not tools.judged(right * 1.01, right, "float32")["ok"]
    assert not tools.judged(right * float("nan"), right, "float32")["ok"]


def test_a_small_block_is_timed_with_all_threads_and_with_fewer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    results, _, outcome = run(["threads"], tmp_path)
    assert results["threads"]["ok"], outcome.stderr
    figures = results["threads"]["figures"]
    assert {"float32_4_ms", "float32_6_ms"} <= set(figures)
    assert all(ms > 0 for ms in figures.values())
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    results, _, _ = run(["threads"], tmp_path)
    assert results["threads"] == {"ok": True, "reason": "4 threads always work together"}
