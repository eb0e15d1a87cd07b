"""What the doctor tells: whole, true to machine and plan, and with something to do for each thing that is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accel import advice, doctor
from accel.figures import milliseconds
from accel.plan import make_plan
from accel.probe import probe
from accel.probing.host import Recorded
from accel.readouts import ranking, store
from accel.readouts.results import Measurement, Results
from accel.types import Machine, Plan, Unsettled
from tests.accel.measuring.planted import CALL, row
from tests.accel.recorded import NAMES, machine, model, record


def report(name: str, folder: Path, **changes: Any) -> str:
    found = machine(name, folder, **changes)
    return "\n".join(doctor.sentences(found, make_plan(found, model())))


@pytest.mark.parametrize("name", NAMES)
def test_every_report_has_its_three_parts_and_whole_sentences(name: str, tmp_path: Path) -> None:
    found = machine(name, tmp_path)
    plan = make_plan(found, doctor.TYPICAL)
    lines = doctor.sentences(found, plan)
    for heading in (doctor.HAVE, doctor.USE, doctor.MISSING):
        assert heading in lines
    told = [line for line in lines if line.startswith("  ")]
    assert all(re.search(r"[.:]$", line) for line in told), [line for line in told if not re.search(r"[.:]$", line)]
    assert not any(re.search(r"None|\(\)|\[|\{|;\s*;|\.\.|  \S+\s{2}", line.strip()) for line in told), told
    for stage in plan.stages:
        title = doctor.STAGE_TITLES[stage.stage]
        assert any(line.strip().startswith(f"{title}: on the ") for line in told)


@pytest.mark.parametrize("name", NAMES)
def test_the_json_form_holds_facts_choices_and_sentences(name: str, tmp_path: Path) -> None:
    found = machine(name, tmp_path)
    plan = make_plan(found, model())
    data = json.loads(json.dumps(doctor.as_data(found, plan)))
    assert Machine.from_dict(data["machine"]) == found
    assert Plan.from_dict(data["plan"]) == plan
    text = "\n".join(doctor.sentences(found, plan))
    for part in ("have", "use", "missing", "could"):
        assert all(sentence in text for sentence in data[part])


TOLD = [
    # machine, what the report must say
    (
        "skylake-avx2",
        [
            "Intel(R) Core(TM) i7-6700",
            "tried and work: avx2",
            "on the CPU in fp32",
            "whatever is not installed is optional",
        ],
    ),
    ("skylake-avx2", ["What you could turn on", "--accel linear=dynamic_int8", "Threads: 4 (4 physical cores)"]),
    ("zen5", ["avx512_bf16", "on the CPU in bf16", "packed"]),
    ("sapphire-rapids", ["amx_bf16", "sgl_amx", "2 NUMA nodes", "--accel linear=sgl_amx_int8"]),
    ("lying-amx", ["killed by SIGILL", "for its host to mend", "on the CPU in fp32"]),
    ("apple-m3", ["Apple M3 Pro", "6 of 12 physical cores are fast ones", "on the GPU (mps)"]),
    ("graviton3", ["Arm Neoverse-V1", "sve"]),
    (
        "h100",
        ["NVIDIA H100 80GB HBM3 (sm_90, 79.2 GiB, driver 580.95.05), tried and works", "on the GPU (cuda:0) in bf16"],
    ),
    (
        "rtx5090-old-torch",
        ["RTX 5090", "not usable, see below", "no sm_120 code", "-m pip install --force-reinstall torch", "on the CPU"],
    ),
    ("rtx4090-windows", ["i9-13900K", "NVIDIA GeForce RTX 4090 (sm_89"]),
    ("mi300x", ["gfx942", "aiter 0.1.12"]),
]


@pytest.mark.parametrize(("name", "wanted"), TOLD, ids=lambda value: str(value)[:20])
def test_what_is_told(name: str, wanted: list[str], tmp_path: Path) -> None:
    text = report(name, tmp_path)
    for part in wanted:
        assert part in text, text


def test_missing_amx_kernels_come_with_sglangs_own_page_and_no_recipe(tmp_path: Path) -> None:
    found = machine("sapphire-rapids", tmp_path, distributions={"sglang-kernel-cpu": None})
    text = "\n".join(doctor.sections(found, make_plan(found, model()))[doctor.MISSING])
    assert "https://docs.sglang.io/docs/hardware-platforms/cpu_server" in text
    assert not re.search(r"cmake|git clone|build", text, re.IGNORECASE)


def test_a_cpu_without_amx_is_not_told_to_get_amx_kernels(tmp_path: Path) -> None:
    assert "sglang" not in report("zen5", tmp_path).lower()


def test_a_broken_package_is_named_with_what_to_do(tmp_path: Path) -> None:
    run = {"result": {"ok": False, "reason": "ImportError: sgl_kernel.so: undefined symbol: _ZN3c10"}}
    text = report("sapphire-rapids", tmp_path, runs={"sgl_kernel": run})
    assert "was built for another torch (==2.11.0, found 2.11.0+cpu)" in text
    assert "everything works without" in text


@pytest.mark.parametrize(
    ("unsettled", "told"),
    [
        ("", ["In other words. Install the release made for your torch, or uninstall it; everything works without."]),
        ("undecided", ["In other words."]),
        ("untried", []),
    ],
)
def test_what_to_do_about_a_package_goes_by_the_kind_of_its_reason(
    unsettled: Unsettled, told: list[str], tmp_path: Path
) -> None:
    found = machine("sapphire-rapids", tmp_path)
    package = replace(found.packages["sgl_kernel"], importable=False, reason="In other words", unsettled=unsettled)
    found = replace(found, packages={**found.packages, "sgl_kernel": package})
    missing = doctor.sections(found, make_plan(found, model()))[doctor.MISSING]
    assert [line for line in missing if "In other words" in line] == told


def test_the_wrong_aiter_is_named(tmp_path: Path) -> None:
    run = {"result": {"ok": False, "reason": "this is the iterator library named aiter, not AMD's kernels", "ops": []}}
    wrong = {"amd-aiter": None, "aiter": {"version": "0.13.20191203", "torch": ""}}
    text = report("mi300x", tmp_path, distributions=wrong, runs={"aiter": run})
    assert "iterator library" in text
    assert "Uninstall it: AMD's kernels are the package amd-aiter" in text


def test_overrides_and_limits_are_named(tmp_path: Path) -> None:
    """Cases 4 and 5: memory and cores that a container leaves, each with its source."""
    text = report(
        "skylake-avx2",
        tmp_path,
        environ={"ONEDNN_MAX_CPU_ISA": "SSE41"},
        numbers={"affinity": 2},
        files={
            "/proc/self/cgroup": "0::/\n",
            "/proc/self/mountinfo": "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "/sys/fs/cgroup/memory.max": f"{6 * 2**30}\n",
        },
    )
    assert "ONEDNN_MAX_CPU_ISA=SSE41 is set: it keeps oneDNN from using newer CPU instructions." in text
    assert "Of these, 2 cores may be used: this process may run on 2 of 8 CPUs (CPU affinity)." in text
    assert "Memory: 6 GiB of 32 GiB: the container may use 6 GiB (/sys/fs/cgroup/memory.max)." in text


def test_without_torch_the_first_thing_to_do_is_told(tmp_path: Path) -> None:
    text = report("zen5", tmp_path, distributions={"torch": None, "diffusers": None})
    assert f"torch is not installed: `{advice.PYTHON} -m pip install torch`." in text
    assert "not tried yet" in text


def int8_in(milliseconds: float) -> dict[str, Any]:
    figures = {"linear_float32_ms": 3.0, "linear_int8_ms": milliseconds}
    return {"int8": {"result": {"ok": True, "reason": "ran and was right", "figures": figures}}}


def test_int8_is_compared_with_what_the_plan_would_run_and_left_out_where_it_is_slower(tmp_path: Path) -> None:
    """On Zen 5 the plan runs in bf16, whose linear is faster than fp32's."""
    bf16 = machine("zen5", tmp_path / "zen5").figure("bf16", "linear_bfloat16_ms")
    assert bf16 is not None
    faster = report("zen5", tmp_path / "faster", runs=int8_in(bf16 / 2))
    assert f"one small linear takes {milliseconds(bf16 / 2)} instead of {milliseconds(bf16)}, and a bench" in faster
    slower = report("zen5", tmp_path / "slower", runs=int8_in(bf16 * 1.1))
    assert "--accel linear=dynamic_int8" not in slower
    fp32 = report("skylake-avx2", tmp_path / "fp32", runs=int8_in(1.5))
    assert "one small linear takes 1.5 ms instead of 3 ms" in fp32


def test_what_a_benchmark_found_here_counts_more_than_the_small_test(tmp_path: Path) -> None:
    found = machine("skylake-avx2", tmp_path, runs=int8_in(1.0))
    plan = make_plan(found, model())

    def told(speedup: float) -> list[str]:
        figures: doctor.Measured = {("transformer", "linear", "dynamic_int8"): ranking.Figures(speedup, 0.01, None)}
        lines = doctor.sections(found, plan, model(), figures)[doctor.COULD]
        return [line for line in lines if "dynamic_int8" in line]

    (line,) = told(1.16)
    assert line.endswith("; the benchmark of this machine found this model's linears 1.16 times as fast with it.")
    assert told(1.03) == [], "under 5 % it is no gain"


def test_main_reads_what_was_measured_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine("skylake-avx2", tmp_path)
    linear = replace(CALL, kind="linear", title="linear")
    calls = (row("stock", 3, call=linear), row("dynamic_int8", 2, gain=1.5, speedup=1.5, call=linear, exact=False))
    made = Measurement("m", "a clip", "today", True, ranking.classes(model()), {"transformer": "float32"}, calls)
    monkeypatch.setattr(doctor, "probe", lambda **_: found)
    store.save(Results(store.place(found), measurements=(made,)), tmp_path / "kept")
    lines: list[str] = []
    doctor.main(traits=model(), write=lines.append, results=tmp_path / "kept")
    assert "1.50 times as fast" in " ".join("\n".join(lines).split())


def test_a_variable_that_is_set_to_nothing_is_told_so(tmp_path: Path) -> None:
    text = report("skylake-avx2", tmp_path, environ={"CUDA_VISIBLE_DEVICES": ""})
    assert "CUDA_VISIBLE_DEVICES is set to nothing: it hides or reorders NVIDIA GPUs." in text


def test_untried_tests_are_named(tmp_path: Path) -> None:
    found = probe(host=Recorded(record("mi355x")), cache_folder=tmp_path, patience=0.0)
    missing = doctor.sections(found, make_plan(found, model()))[doctor.MISSING]
    assert any(line.startswith("Not tried yet, for want of time: torch, fp32") for line in missing)
    assert any("may compile for 5 minutes; `python -m accel.doctor --patience 600`" in line for line in missing)


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that the tests of this machine share, so that its small runs happen once."""
    return tmp_path_factory.mktemp("proofs")


@pytest.mark.parametrize("as_json", [False, True])
def test_main_writes_for_this_machine_without_loading_torch(as_json: bool, proofs: Path) -> None:
    code = (
        f"import sys; from accel import doctor; code = doctor.main(as_json={as_json}); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    environ = {**os.environ, "ACCEL_CACHE": str(proofs)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    if as_json:
        assert set(json.loads(done.stdout)) == {"have", "use", "missing", "could", "machine", "plan"}
    else:
        assert done.stdout.startswith(doctor.HAVE)
