"""The bench from end to end on works so small that their figures mean nothing, and what its tables say."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accel import bench
from accel.benching import gpu_profile, sections
from accel.benching.sections import SECTIONS, Settings, fitting
from accel.benching.work import WORKS
from accel.types import Fact, Gpu, Memory
from tests import builders
from tests.accel.recorded import machine
from tests.app.tiny import build_tiny_pipeline


@pytest.mark.long
def test_a_shape_and_a_clip_are_raced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_tiny_pipeline().save_pretrained(tmp_path / "model")
    out = tmp_path / "out.json"
    line = f"encode clip --model {tmp_path / 'model'} --scale tiny --rounds 1 --contenders plain-fp32,fp32 --json {out}"
    assert bench.main([*line.split(), "--profile", "--budget", "20"]) == 0
    found = json.loads(out.read_text())
    text = capsys.readouterr().out
    for name, phases in (("encode", {"total", "cpu"}), ("clip", {"total", "text", "denoise", "decode", "cpu"})):
        rows = found["sections"][name]["rows"]
        assert list(rows) == ["plain-fp32", "fp32"]
        assert rows["plain-fp32"]["seconds"].keys() == phases
        assert rows["fp32"]["error"] < 1e-4
        assert rows["plain-fp32"]["plan"] is None
        assert rows["fp32"]["plan"]["stages"]
        assert rows["fp32"]["profile"][0]["op"] == "all"
        assert f"{name}: " in text
    assert "ms on the calling thread: " in text
    assert found["sections"]["clip"]["rows"]["fp32"]["report"]["attention"]["transformer"]["served"] > 0


@pytest.mark.parametrize("line", ["nonsense", "clip", "encode --contenders nobody"])
def test_what_can_not_be_measured_is_refused(line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(line.split())
    assert ended.value.code == 2


def settings(tmp_path: Path, **changes: Any) -> Settings:
    return replace(Settings(machine("sapphire-rapids", tmp_path)), **changes)


def test_as_much_of_a_model_is_run_as_memory_and_time_allow(tmp_path: Path) -> None:
    work, known = WORKS["step-5b"], settings(tmp_path)
    assert fitting(known, work, 3, 1e6) == 30
    assert fitting(known, work, 3, 0.0) == 2
    cuts = [fitting(known, work, 3, seconds) for seconds in (1, 3, 10, 30, 100)]
    assert cuts == sorted(cuts)
    assert len(set(cuts)) > 2
    poor = replace(known.machine, memory=Memory(2**34, 2**34, "16 GiB"))
    assert work.parameters(fitting(replace(known, machine=poor), work, 3, 1e6)) * 8 < 2**34
    assert fitting(replace(known, machine=poor, layers=20), work, 3, 1.0) == 20, "what was asked for is run"
    assert fitting(replace(known, layers=99), work, 3, 1.0) == 30
    assert fitting(replace(known, machine=poor, cut=1), WORKS["decode"], 3, 1.0) == WORKS["decode"].cuts[1]
    assert fitting(replace(known, cut=99), work, 3, 9e9) == work.cuts[-1]


def test_every_contender_gets_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    known = settings(tmp_path)
    assert "OMP_WAIT_POLICY" not in known.job("plain-fp32")[1]
    assert known.job("auto")[1]["GOMP_SPINCOUNT"] == known.job("auto", "brief")[1]["GOMP_SPINCOUNT"] == "1000"
    assert "OMP_WAIT_POLICY" not in known.job("auto", "active")[1]
    assert known.job("auto")[1]["OMP_NUM_THREADS"] == "112"


def test_time_left_over_goes_to_the_sections_that_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[float] = []

    def section(known: Settings, end: float) -> dict[str, Any]:
        ends.append(end)
        return {"title": "nothing", "rows": {}}

    monkeypatch.setattr(bench, "SECTIONS", {"a": (1.0, section), "b": (3.0, section), "c": (1.0, section)})
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    bench.measure(settings(tmp_path), ["a", "b", "c"], 100.0)
    assert ends == [20.0, 75.0, 100.0]


def test_the_table_tells_medians_ratios_errors_and_failures() -> None:
    def row(total: float, **more: Any) -> dict[str, Any]:
        return {"seconds": {"total": {"median": total, "least": total * 0.9, "most": total * 1.1}}, **more}

    rows = {"plain-fp32": row(4.0), "auto": row(1.6, error=0.012), "int8": {"failed": "it would not"}}
    text = bench.table("clip", {"title": "a clip", "rows": rows, "took": 12.3})
    lines = text.splitlines()
    assert lines[0] == "clip: a clip"
    assert lines[1].split() == ["total", "s", "spread", "x", "fp32", "error"]
    assert lines[3].split() == ["auto", "1.600", "20%", "2.50", "1.2e-02"]
    assert lines[4].split(maxsplit=1) == ["int8", "failed: it would not"]


def test_every_section_is_named_and_the_model_is_asked_for_where_needed() -> None:
    assert set(sections.NEEDS_MODEL) < set(SECTIONS)
    assert set(sections.NEEDS_GPU) < set(SECTIONS)
    plain = [name for name in SECTIONS if name not in sections.NEEDS_MODEL + sections.NEEDS_GPU]
    card = Gpu(1, "nvidia", "H200", 2**37, "sm_90", "580", "", Fact(True, "", ""), Fact(True, "", ""))
    on_cpu, on_gpu = builders.machine(), replace(builders.machine(), gpus=(card,))
    assert sections.names([], Settings(on_cpu)) == plain
    assert sections.names([], Settings(on_gpu, Path("model"))) == list(SECTIONS)
    assert sections.names([], Settings(on_gpu, preferences={"device": "cpu"})) == plain
    assert sections.names(["encode"], Settings(on_cpu)) == ["encode"]
    assert (Settings(on_gpu).device, Settings(on_cpu).device) == ("cuda:1", "cpu")


def test_kernels_are_told_apart_by_their_names() -> None:
    kinds = {
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...>>>": "attention",
        "void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel<cutlass::gemm::kernel::Gemm>>": "linears",
        "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNN": "linears",
        "_heads": "quantising alone",
        "triton_red_fused__to_copy_abs_add_amax_clamp_native_layer_norm_0": "compiled, with quantising",
        "triton_red_fused_mean_mul_pow_rsqrt_1": "compiled, without",
        "triton_poi_fused_add_mul_8": "compiled, without",
        "void at::native::vectorized_layer_norm_kernel<float, float>": "norms",
        "Memcpy DtoD (Device -> Device)": "copies",
        "void at::native::elementwise_kernel<128, 4, ...>": "elementwise",
        "spin": "other",
    }
    assert {name: gpu_profile.kind_of(name) for name in kinds} == kinds
