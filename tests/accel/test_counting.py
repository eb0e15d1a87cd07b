"""Counts of what ran are the profiler's, compiled or not; fallbacks and unreached attention are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accel.install import install
from tests import builders
from tests.accel.installed import BF16, INT8, SGL, needs_bf16
from tests.emulators import sgl_kernel_cpu as emulator


def profiled(model: Any, inputs: dict[str, Any]) -> dict[str, int]:
    with torch.inference_mode(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model(**inputs)
    return {event.key: event.count for event in profile.key_averages()}


@pytest.mark.parametrize(
    ("settings", "linear"),
    [
        pytest.param(INT8, "quantized::linear_dynamic", id="int8"),
        pytest.param(BF16, "mkldnn::_linear_pointwise", id="bf16", marks=needs_bf16),
    ],
)
@pytest.mark.parametrize("compiled", ["no", "yes"])
def test_counts_are_the_profilers(settings: dict[str, str], linear: str, compiled: str) -> None:
    """Compiled too, and with fullgraph: no graph break, and the counters sit where the compiler can't drop them."""
    torch.compiler.reset()
    model = builders.wan_transformer()
    installation = install(builders.Holder(transformer=model), builders.plan(**settings, compile=compiled))
    inputs = builders.wan_inputs(dtype=model.dtype)
    with torch.inference_mode():
        first = model(**inputs)[0]
    installation.reset()
    events, report = profiled(model, inputs), installation.report()
    attention, linears = report["attention"]["transformer"], report["linear"]["transformer"]
    print(attention["summary"], linears["summary"], sep="\n")
    assert attention["served"] == events["accel::attention"] == events["aten::scaled_dot_product_attention"] == 4
    assert linears["served"] == events["accel::packed_linear"] == events[linear] > 0
    assert linears["fallen_back"] == attention["fallen_back"] == 0
    assert torch.isfinite(first).all()
    installation.remove()
    torch.compiler.reset()


def test_fallbacks_are_counted_with_their_reason() -> None:
    with emulator.installed():
        model = builders.wan_transformer(heads=1, head_dim=40)
        installation = install(builders.Holder(transformer=model), builders.plan(**SGL))
        with torch.inference_mode():
            model(**builders.wan_inputs(dtype=torch.bfloat16))
        entry = installation.report()["attention"]["transformer"]
        assert (entry["served"], entry["fallen_back"]) == (0, 4)
        assert entry["reasons"] == {"head size 40 is not one of 32, 64, ... 256": 4}
        assert "0 of 4 calls, 4 fell back" in entry["summary"]
        skipped = installation.report()["linear"]["transformer"]["skipped"]
        assert "40 outputs are no multiple of 16" in skipped
        assert skipped["kept in float32 by the model"] == 2
        installation.remove()


def test_an_input_that_is_not_finite_falls_back_and_does_not_spread() -> None:
    """Case 9: int8 has one scale for all rows, so a NaN row goes to the reference with them."""
    model = builders.wan_transformer()
    installation = install(builders.Holder(transformer=model), builders.plan(linear="dynamic_int8"))
    linear, inputs = model.blocks[0].attn1.to_q, torch.randn(4, 64)
    inputs[2] = float("nan")
    out = linear(inputs)
    assert out.isnan().all(1).tolist() == [False, False, True, False]
    assert installation.report()["linear"]["transformer"]["reasons"] == {"an input that is not finite": 1}
    installation.remove()


def test_only_the_transformers_attention_is_patched() -> None:
    """A kernel that can't take the text encoder's or the VAE's head size must never see it."""
    pipeline = builders.wan()
    with emulator.installed() as calls:
        installation = install(pipeline, builders.plan(**SGL))
        builders.run_wan(pipeline)
        report = installation.report()["attention"]
        installation.remove()
    # 2 steps, 2 forwards each (guidance), 2 blocks of self and cross attention
    assert list(report) == ["transformer"]
    assert report["transformer"]["served"] == calls["flash_attn_varlen_func"] == 16


@pytest.mark.parametrize("engaged", ["sdpa", "stock"])
def test_unreachable_attention_is_reported(engaged: str) -> None:
    model = builders.cogvideox_transformer()
    installation = install(builders.Holder(transformer=model), builders.plan(attention=engaged))
    with torch.inference_mode():
        model(**builders.cogvideox_inputs())
    entry = installation.report()["attention"]["transformer"]
    assert entry["unreached"]["summary"].startswith("not reachable, 0 of 2 calls")
    assert "served" not in entry
    installation.remove()


def test_exchanged_processors_are_reported() -> None:
    from diffusers.models.transformers.transformer_wan import WanAttnProcessor

    model = builders.wan_transformer()
    installation = install(builders.Holder(transformer=model), builders.plan(attention="sdpa"))
    model.blocks[0].attn1.set_processor(WanAttnProcessor())
    assert "1 processors were exchanged" in installation.report()["attention"]["transformer"]["replaced"]
    installation.remove()
