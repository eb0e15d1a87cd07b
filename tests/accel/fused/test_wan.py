"""Wan's blocks in fused passes: right against the same blocks as diffusers wrote them, counted, and taken out again.

Emulated: FP8 products and attention, see tests/emulators/sgl_kernel_cuda.py; the passes are their plain torch forms.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from accel import blocks
from accel.backends import fa3_fp8
from accel.checking.line import relative
from accel.fused.wan import why_not_block
from accel.install import install
from accel.originals import same_bits
from accel.types import Preferences, StageTraits
from tests import builders
from tests.accel.recorded import machine
from tests.emulators import sgl_kernel_cuda as emulator
from tests.emulators.sgl_kernel_cpu import real_build

pytestmark = pytest.mark.skipif(real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")
FP8 = {"linear": "fp8", "dtype": "bfloat16", "threads": "1"}
PLANS = ({**FP8, "attention": "sdpa"}, {**FP8, "attention": "fa3_fp8"}, {**FP8, "attention": "fa3"})


def transformer() -> Any:
    return builders.wan_transformer(heads=4, head_dim=64, layers=3, ffn=512)


def run(model: Any, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    with torch.inference_mode():
        return model(**builders.wan_inputs(dtype=dtype))[0]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan["attention"])
def test_fused_blocks_are_as_right_as_stock_ones_emulated(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fa3_fp8, "FEWEST_KEYS", 16)
    model = transformer()
    exact = run(model, torch.float32)
    holder = builders.Holder(transformer=model)
    with emulator.installed():
        stock = install(holder, builders.plan(**plan))
        want, counts = run(model), stock.report()
        fused = install(holder, builders.plan(**plan, compile="fused"))
        got, report = run(model), fused.report()
        fused.remove()
    ours, theirs = relative(got, exact), relative(want, exact)
    print(f"relative error {ours:.2e} fused, {theirs:.2e} stock, {relative(got, want):.2e} apart")
    assert ours < 1.15 * theirs
    assert relative(got, want) < 3e-2
    assert report["blocks"]["transformer"]["served"] == 3
    assert report["notes"] == []
    assert report["linear"]["transformer"] == counts["linear"]["transformer"]
    fused_calls, stock_calls = report["attention"]["transformer"], counts["attention"]["transformer"]
    for one in (fused_calls, stock_calls):
        assert one["served"] + sum(one["reasons"].values()) == 6
    # queries come in FP8 already, so few keys are no reason
    assert fused_calls["served"] == (6 if plan["attention"] == "fa3_fp8" else stock_calls["served"])


def test_a_time_for_each_token_emulated() -> None:
    model = transformer()
    inputs = builders.wan_inputs(dtype=torch.bfloat16)
    tokens = inputs["hidden_states"][0, 0].numel() // 4
    inputs["timestep"] = torch.linspace(0, 900, tokens).expand(inputs["hidden_states"].shape[0], -1).bfloat16()
    holder = builders.Holder(transformer=model)
    with emulator.installed(), torch.inference_mode():
        install(holder, builders.plan(**FP8))
        want = model(**inputs)[0]
        fused = install(holder, builders.plan(**FP8, compile="fused"))
        got = model(**inputs)[0]
        assert fused.report()["blocks"]["transformer"]["served"] == 3
        fused.remove()
    assert relative(got, want) < 3e-2
    assert not torch.equal(got, want * 0)


def test_exact_steps_leave_queries_unquantised_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fa3_fp8, "FEWEST_KEYS", 16)
    model = transformer()
    with emulator.installed() as calls:
        fused = install(builders.Holder(transformer=model), builders.plan(**PLANS[1], compile="fused"))
        slot = fused.patches["transformer"].slot
        assert slot is not None
        run(model)
        assert [one["q"].dtype for one in calls] == [torch.float8_e4m3fn] * 6, "self and cross attention"
        slot.aside = "kept exact as asked"
        calls.clear()
        run(model)
        assert {one["q"].dtype for one in calls} == {torch.bfloat16}
        assert fused.report()["attention"]["transformer"]["reasons"]["kept exact as asked"] == 6
        fused.remove()


def test_lengths_that_the_kernel_spoils_are_attended_in_bf16_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 14: fused blocks hand queries over in FP8, past the op that other models' calls go through."""
    monkeypatch.setattr(fa3_fp8, "FEWEST_KEYS", 16)
    fwd = emulator._fwd

    def spoilt(**given: Any) -> list[torch.Tensor]:
        out, *others = fwd(**given)
        return [out if given["k_descale"] is None else out.fill_(float("nan")), *others]

    monkeypatch.setattr(emulator, "_fwd", spoilt)
    model = transformer()
    with emulator.installed() as calls:
        fused = install(builders.Holder(transformer=model), builders.plan(**PLANS[1], compile="fused"))
        assert run(model).isfinite().all()
        report = fused.report()["attention"]["transformer"]
        fused.remove()
    assert [one["q"].dtype for one in calls].count(torch.float8_e4m3fn) == 2, "known after the first of each length"
    assert report["reasons"]["it gave values that are not finite for 32 tokens and 32 keys"] == 3


def test_removing_and_copying_give_stock_blocks_emulated() -> None:
    model = transformer()
    plain = install(builders.Holder(transformer=model), builders.plan(dtype="bfloat16"))
    want = run(model)
    plain.remove()
    before, stock = {n: t.clone() for n, t in model.state_dict().items()}, run(model, torch.float32)
    with emulator.installed():
        fused = install(builders.Holder(transformer=model), builders.plan(**FP8, compile="fused"))
        assert not torch.equal(run(model).float(), stock)
        copied = copy.deepcopy(model)
        assert type(copied.blocks[0]).__name__ == "WanTransformerBlock"
        assert relative(run(copied), want) < 1e-2
        assert fused.remove() == []
    assert all(same_bits(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(run(model, torch.float32), stock)


def test_what_cannot_be_fused_runs_as_written_and_is_counted_emulated() -> None:
    model = transformer()
    with emulator.installed():
        fused = install(builders.Holder(transformer=model), builders.plan(**FP8, compile="fused"))
        with torch.enable_grad():
            model(**builders.wan_inputs(dtype=torch.bfloat16))
        model.blocks[0].attn1.to_q = copy.deepcopy(model.blocks[0].attn1.to_q)
        run(model)
        reasons = fused.report()["blocks"]["transformer"]["reasons"]
        assert reasons == {"gradients are wanted": 3, "a linear is wrapped or unpacked, by a LoRA for example": 1}


def test_blocks_of_another_kind_are_left_and_that_is_said_emulated() -> None:
    model = builders.wan_transformer(heads=1, head_dim=64, layers=2, ffn=128)  # too narrow for FP8 linears
    with emulator.installed():
        fused = install(builders.Holder(transformer=model), builders.plan(**FP8, compile="fused"))
    assert fused.report()["notes"] == ["transformer's blocks are not fused: not all of its linears are packed in FP8"]
    assert "transformer" not in fused.report()["blocks"]
    odd = builders.wan_transformer(heads=4, head_dim=96, layers=1, ffn=512)
    with emulator.installed():
        install(builders.Holder(transformer=odd), builders.plan(**FP8))
        assert why_not_block(odd.blocks[0]) == "its heads of 96 channels are no power of two"


@pytest.mark.parametrize(
    ("compile_", "linear", "class_name", "engaged", "refusal"),
    [
        ("auto", "fp8", "WanTransformer3DModel", "fused", ""),
        ("auto", "stock", "WanTransformer3DModel", "no", ""),
        ("auto", "fp8", "MochiTransformer3DModel", "no", ""),
        ("no", "fp8", "WanTransformer3DModel", "no", ""),
        ("fused", "stock", "WanTransformer3DModel", "fused", "go with linear=fp8, the linears are stock"),
        ("fused", "fp8", "MochiTransformer3DModel", "fused", "MochiTransformer3DModel has no fused form"),
        ("maybe", "fp8", "WanTransformer3DModel", "no", "allowed are auto, yes, no, fused"),
    ],
)
def test_the_plan(tmp_path: Path, compile_: str, linear: str, class_name: str, engaged: str, refusal: str) -> None:
    there = machine("h200", tmp_path)
    choice, said = blocks.choose(
        Preferences(compile=compile_), there, StageTraits("transformer", class_name), there.gpus[0], linear
    )
    assert choice.engaged == engaged
    assert refusal in said
    assert bool(refusal) == bool(said)
