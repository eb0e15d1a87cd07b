"""Forced choices: kept as they were wished, or refused with what is missing, on recorded machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from accel import advice
from accel.errors import PlanError
from accel.plan import make_plan
from accel.types import Preferences
from tests.accel.recorded import engaged, machine, model, refusals

LONG, SHORT = 7800, 704


def test_a_forced_backend_that_can_not_run_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    (reason,) = refusals(machine("zen5", tmp_path), attention="sgl_amx", dtype="bf16")
    assert reason == "attention=sgl_amx can't be used here: this CPU has no amx_tile"
    bare = machine("sapphire-rapids", tmp_path, distributions={"sglang-kernel-cpu": None})
    (reason,) = refusals(bare, attention="sgl_amx", dtype="bf16")
    assert reason == f"attention=sgl_amx can't be used here: sgl_kernel is not installed; {advice.SGL_CPU}"


def test_a_backend_for_another_device_says_which_one_and_where_the_work_is(tmp_path: Path) -> None:
    (reason,) = refusals(machine("zen5", tmp_path), attention="cudnn", dtype="bf16")
    assert reason == "attention=cudnn can't be used here: it needs a GPU, and the transformer is planned for the CPU"


def test_all_refusals_come_at_once(tmp_path: Path) -> None:
    found = refusals(machine("zen3", tmp_path), attention="x", linear="y", compile="perhaps", threads="0", device="tpu")
    wishes = ["attention=x", "compile=perhaps", "device=tpu", "linear=y", "threads=0"]
    assert sorted(reason.partition(" ")[0] for reason in found) == wishes
    assert all("allowed are" in reason or "possible are" in reason for reason in found)


NOWHERE = {
    "attention": "x",
    "linear": "x",
    "vae": "x",
    "dtype": "int3",
    "compile": "perhaps",
    "cache": "tea",
    "offload": "disk",
    "tiling": "yes",
    "text_encoder": "drop",
}


@pytest.mark.parametrize(("setting", "wish"), [*NOWHERE.items(), ("cache", "mag:strong")])
def test_what_there_is_on_no_machine_is_told_apart_from_what_this_one_lacks(
    setting: str, wish: str, tmp_path: Path
) -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(machine("zen5", tmp_path), model(), Preferences(**{"device": "cuda", setting: wish}))
    (unknown,) = caught.value.unknown
    assert unknown.startswith(f"{setting}={wish} ")
    assert len(caught.value.reasons) > 1


def test_a_backend_of_which_nothing_was_found_out_is_no_unknown_one(tmp_path: Path) -> None:
    found = machine("sapphire-rapids", tmp_path, runs={"sgl_kernel": {"timeout": True}})
    with pytest.raises(PlanError, match=r"sgl_amx can't be used here: .* is not known yet") as caught:
        make_plan(found, model(), Preferences(attention="sgl_amx"))
    assert not caught.value.unknown


def test_of_unknown_backends_those_that_run_here_are_told(tmp_path: Path) -> None:
    (reason,) = refusals(machine("zen5", tmp_path), attention="wonder")
    assert reason.startswith("attention=wonder is not known: possible are auto, sdpa; `")
    (reason,) = refusals(machine("sapphire-rapids", tmp_path), attention="wonder")
    assert "possible are auto, sdpa, sgl_amx;" in reason


def test_an_approximate_backend_is_engaged_when_forced_and_says_so(tmp_path: Path) -> None:
    plan = make_plan(machine("skylake-avx2", tmp_path), model(), Preferences(linear="dynamic_int8"))
    stage = plan.stage("transformer")
    assert stage is not None
    assert stage.linear.engaged == "dynamic_int8"
    assert any("approximate" in reason for reason in stage.linear.reasons)
    encoder = plan.stage("text_encoder")
    assert encoder is not None
    assert encoder.linear.engaged == "stock", "the text encoder has a toggle of its own"


def test_a_forced_backend_decides_the_dtype_of_its_stage_alone(tmp_path: Path) -> None:
    plan = make_plan(machine("zen5", tmp_path), model(), Preferences(linear="dynamic_int8"))
    assert engaged(plan, "tr.dtype") == "float32"
    assert engaged(plan, "te.dtype") == "bfloat16"
    stage = plan.stage("transformer")
    assert stage is not None
    assert "linear=dynamic_int8 was asked for" in stage.dtype.reasons[0]


def test_two_forced_choices_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    found = refusals(machine("sapphire-rapids", tmp_path), linear="sgl_amx_int8", dtype="float32")
    told = "dtype=float32 for the transformer: linear=sgl_amx_int8 runs in bfloat16 only"
    assert any(told in reason for reason in found)


def test_a_forced_bf16_backend_says_where_bf16_is_slow(tmp_path: Path) -> None:
    """oneDNN packs on any CPU with AVX512; without AVX512_BF16 its products are slower than plain fp32."""
    slow = machine("zen5", tmp_path)
    figures = {**slow.proofs["bf16"].figures, "linear_float32_ms": 1.0, "linear_bfloat16_ms": 4.0}
    slow = replace(slow, proofs={**slow.proofs, "bf16": replace(slow.proofs["bf16"], figures=figures)})
    for asked, known in ((slow, True), (machine("zen5", tmp_path), False)):
        stage = make_plan(asked, model(), Preferences(linear="onednn_bf16")).stage("transformer")
        assert stage is not None
        print(stage.linear.reasons)
        assert any("times slower than fp32 here" in reason for reason in stage.linear.reasons) == known


def test_a_model_that_bypasses_the_dispatcher(tmp_path: Path) -> None:
    reach = "CogVideoXTransformer3DModel does not ask diffusers' dispatcher: 0 of 60 calls can be reached"
    traits = model(reachable=False, reach=reach)
    found = machine("sapphire-rapids", tmp_path)
    stage = make_plan(found, traits).stage("transformer")
    assert stage is not None
    assert (stage.attention.engaged, stage.attention.reasons) == ("stock", (reach,))
    assert reach in refusals(found, traits, attention="sgl_amx")[0]
    forced = make_plan(found, traits, Preferences(attention="sdpa")).stage("transformer")
    assert forced is not None
    assert (forced.attention.requested, forced.attention.engaged) == ("sdpa", "stock"), "it calls PyTorch's by itself"
    assert reach in forced.attention.reasons


def test_only_the_transformers_attention_is_exchanged(tmp_path: Path) -> None:
    plan = make_plan(machine("sapphire-rapids", tmp_path), model(LONG), Preferences(attention="sgl_amx"))
    assert engaged(plan, "tr.attention") == "sgl_amx"
    assert engaged(plan, "te.attention") == "stock"
    assert engaged(plan, "vae.attention") == "stock"


def test_compile_needs_a_compiler(tmp_path: Path) -> None:
    assert "C++ compiler" in refusals(machine("zen5", tmp_path, programs=[]), compile="yes")[0]
    plan = make_plan(machine("zen5", tmp_path), model(), Preferences(compile="yes"))
    assert [engaged(plan, f"{stage}.compile") for stage in ("te", "tr", "vae")] == ["no", "yes", "no"]
    assert engaged(make_plan(machine("zen5", tmp_path), model()), "tr.compile") == "no"
    assert "triton" in refusals(machine("rtx4090-windows", tmp_path), compile="yes")[0]


def test_the_packed_path_must_beat_torch_in_the_machines_own_test(tmp_path: Path) -> None:
    """Case 2: AVX512_BF16 without AMX (sglang issue 11044) fell to a path 30 times slower, with no message."""
    slow = {"result": {"ok": True, "reason": "ran", "figures": {"linear_plain_ms": 0.6, "linear_packed_ms": 18.0}}}
    stage = make_plan(machine("zen5", tmp_path, runs={"packed_bf16": slow}), model()).stage("transformer")
    assert stage is not None
    assert stage.linear.engaged == "stock"
    assert "not onednn_bf16: slower in the machine's own test: 18 ms, 0.6 ms without" in stage.linear.reasons
    quick = make_plan(machine("zen5", tmp_path / "quick"), model()).stage("transformer")
    assert quick is not None
    assert "in the machine's own test 0.58 ms, 0.62 ms without" in quick.linear.reasons


@pytest.mark.parametrize(("packed", "wanted"), [(0.5, "onednn_bf16"), (0.75, "onednn_bf16"), (0.8, "stock")])
def test_a_difference_inside_the_tests_spread_changes_no_choice(packed: float, wanted: str, tmp_path: Path) -> None:
    result = {"ok": True, "reason": "ran", "figures": {"linear_plain_ms": 0.62, "linear_packed_ms": packed}}
    found = machine("zen5", tmp_path, runs={"packed_bf16": {"result": result}})
    assert engaged(make_plan(found, model()), "tr.linear") == wanted


@pytest.mark.parametrize(
    ("wish", "engaged_device"), [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:3", "cuda:3"), ("cpu", "cpu")]
)
def test_devices(wish: str, engaged_device: str, tmp_path: Path) -> None:
    plan = make_plan(machine("mi300x", tmp_path), model(), Preferences(device=wish))
    assert engaged(plan, "tr.device") == engaged_device


def test_a_gpu_that_can_not_be_used_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (reason,) = refusals(machine("rtx5090-old-torch", tmp_path), device="cuda:0")
    assert "allowed are auto, cpu" in reason
    assert "no sm_120 code" in reason
    assert "pip install" in reason
    stage = make_plan(machine("rtx5090-old-torch", tmp_path), model()).stage("transformer")
    assert stage is not None
    assert "no sm_120 code" in stage.device.reasons[0]


def test_what_apple_s_gpu_can_not_compute_goes_to_the_cpu_and_that_is_said(tmp_path: Path) -> None:
    """Case 52: found out by a small run of a product and a convolution, before any clip."""
    assert engaged(make_plan(machine("apple-m3", tmp_path / "can"), model()), "tr.device") == "mps"
    run = {"result": {"ok": False, "reason": "conv3d is not implemented for MPS"}}
    plan = make_plan(machine("apple-m3", tmp_path / "can't", runs={"gpu:mps": run}), model())
    for stage in plan.stages:
        assert stage.device.engaged == "cpu"
        assert "conv3d is not implemented for MPS" in stage.device.reasons[0]
