"""LoRA around an installation, in every order: a fused LoRA is packed, and the way back keeps it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accel.casting import cast_component
from accel.checking.line import relative
from accel.install import install
from accel.originals import same_bits
from accel.packed import PackedLinear
from tests import builders

needs_bf16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN packs bf16 only with AVX512_BF16 or AMX"
)
plans = pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"linear": "dynamic_int8"}, id="int8"),
        pytest.param({"linear": "onednn_bf16", "dtype": "bfloat16"}, id="bf16", marks=needs_bf16),
    ],
)


def lora(strength: float = 0.7) -> dict[str, torch.Tensor]:
    """Rank 2 on the queries and one linear of the feed-forward of both blocks."""
    generator, weights = torch.Generator().manual_seed(7), {}
    for block in range(2):
        for name, ins, outs in (("attn1.to_q", 64, 64), ("ffn.net.0.proj", 64, 64)):
            for part, shape in (("A", (2, ins)), ("B", (outs, 2))):
                key = f"transformer.blocks.{block}.{name}.lora_{part}.weight"
                weights[key] = torch.randn(shape, generator=generator) * strength
    return weights


def pipeline_in(settings: dict[str, str]) -> Any:
    """A pipeline that already has the plan's dtype, so that the plan only packs."""
    pipeline = builders.wan()
    cast_component(pipeline.transformer, getattr(torch, settings.get("dtype", "float32")), None)
    return pipeline


def run(pipeline: Any) -> torch.Tensor:
    with torch.inference_mode():
        return pipeline.transformer(**builders.wan_inputs(dtype=pipeline.transformer.dtype))[0]


def weights(pipeline: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in pipeline.transformer.state_dict().items()}


def assert_same(now: dict[str, torch.Tensor], before: dict[str, torch.Tensor]) -> None:
    assert [name for name in before if not same_bits(now[name], before[name])] == []


@plans
@pytest.mark.parametrize("when", ["fuse first", "load first", "install first"])
def test_a_fused_lora_is_packed_whatever_came_first(settings: dict[str, str], when: str) -> None:
    plain = pipeline_in(settings)
    plain.load_lora_weights(lora(), adapter_name="a")
    plain.fuse_lora(components=["transformer"])
    fused = weights(plain)
    want = run(plain)

    pipeline, plan = pipeline_in(settings), builders.plan(**settings)
    base = run(pipeline)
    installation: Any = None
    for step in {"fuse first": "lfi", "load first": "lif", "install first": "ilf"}[when]:
        if step == "l":
            pipeline.load_lora_weights(lora(), adapter_name="a")
        elif step == "f":
            pipeline.fuse_lora(components=["transformer"])
        else:
            installation = install(pipeline, plan)
    got = run(pipeline)
    assert_same(weights(pipeline), fused)
    report = installation.report()["linear"]["transformer"]
    print(f"packed against plain {relative(got, want):.1e}, the LoRA's own effect {relative(base, want):.1e}")
    assert relative(got, want) < 0.2 * relative(base, want)
    assert report["rewritten"] == (0 if when == "fuse first" else 4)
    assert isinstance(pipeline.transformer.blocks[0].attn1.to_q.base_layer, PackedLinear)
    assert report["skipped"].get("part of a LoRA adapter", 0) == (0 if when == "install first" else 8)
    assert installation.remove() == []
    assert_same(weights(pipeline), fused)
    assert torch.equal(run(pipeline), want)


@plans
def test_fusing_and_unfusing_while_packed_is_what_it_is_without(settings: dict[str, str]) -> None:
    results = []
    for packed in (False, True):
        pipeline = pipeline_in(settings)
        installation = install(pipeline, builders.plan(**settings)) if packed else None
        pipeline.load_lora_weights(lora(), adapter_name="a")
        pipeline.fuse_lora(components=["transformer"], lora_scale=0.5)
        pipeline.unfuse_lora(components=["transformer"])
        pipeline.unload_lora_weights()
        if installation is not None:
            installation.remove()
        results.append(weights(pipeline))
    assert_same(*results)


@plans
def test_an_unfused_lora_runs_over_packed_linears(settings: dict[str, str]) -> None:
    plain, pipeline = pipeline_in(settings), pipeline_in(settings)
    base = run(plain)
    installation = install(pipeline, builders.plan(**settings))
    for one in (plain, pipeline):
        one.load_lora_weights(lora(), adapter_name="a")
        one.set_adapters(["a"], [0.7])
    want, got = run(plain), run(pipeline)
    print(f"packed against plain {relative(got, want):.1e}, the LoRA's own effect {relative(base, want):.1e}")
    assert relative(got, want) < 0.2 * relative(base, want)
    installation.remove()
    assert torch.equal(run(pipeline), want)


@needs_bf16
def test_a_lora_fused_in_a_cast_model_stays_and_is_said() -> None:
    """Loaded in float32, run in bf16, fused there: the exact float32 weights of before must not undo the LoRA."""
    settings = {"linear": "onednn_bf16", "dtype": "bfloat16"}
    pipeline = builders.wan()
    before = weights(pipeline)
    installation = install(pipeline, builders.plan(**settings))
    pipeline.load_lora_weights(lora(), adapter_name="a")
    pipeline.fuse_lora(components=["transformer"])
    fused = {name: tensor for name, tensor in weights(pipeline).items() if "base_layer.weight" in name}
    notes = installation.remove()
    assert notes == ["4 weights of transformer were changed in bfloat16 and keep that value"]
    after = weights(pipeline)
    assert len(fused) == 4
    for name, tensor in fused.items():
        assert same_bits(after[name], tensor.float())
        assert relative(after[name], before[name.replace(".base_layer", "")]) > 1e-2
    untouched = [name for name in before if name in after]
    assert_same({name: after[name] for name in untouched}, {name: before[name] for name in untouched})


@plans
def test_safe_fusing(settings: dict[str, str]) -> None:
    plain, pipeline = pipeline_in(settings), pipeline_in(settings)
    installation = install(pipeline, builders.plan(**settings))
    for one in (plain, pipeline):
        one.load_lora_weights(lora(), adapter_name="a")
        one.fuse_lora(components=["transformer"], safe_fusing=True)
    installation.remove()
    assert_same(weights(pipeline), weights(plain))
