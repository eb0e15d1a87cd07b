"""What is read of a pipeline: shapes, reach of its attention, sizes; before and after an installation alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import accel
from accel.types import LinearShape, ModelTraits
from tests import builders


def transformer_of(module: Any, **more: Any) -> Any:
    traits = accel.traits_of(SimpleNamespace(transformer=module, **more), width=64, height=64, frames=5)
    stage = traits.stage("transformer")
    assert stage is not None
    return stage


def test_a_whole_pipeline() -> None:
    pipeline = builders.wan()
    traits = accel.traits_of(pipeline, width=64, height=32, frames=5)
    assert traits.class_name == "WanPipeline"
    assert traits.family == "Wan"
    assert [stage.stage for stage in traits.stages] == ["text_encoder", "transformer", "vae"]
    encoder, transformer, vae = traits.stages
    assert encoder.class_name == "UMT5EncoderModel"
    assert (encoder.heads > 0, encoder.head_dim > 0, encoder.reachable) == (True, True, False)
    assert transformer.reachable
    assert transformer.attention_calls == 2 * len(pipeline.transformer.blocks)
    config = pipeline.transformer.config
    assert (transformer.heads, transformer.head_dim) == (config.num_attention_heads, config.attention_head_dim)
    assert vae.conv3d > 0
    assert sum(shape.count for shape in transformer.linears) == sum(
        type(module).__name__ == "Linear" for module in pipeline.transformer.modules()
    )
    assert transformer.parameters == sum(item.numel() for item in pipeline.transformer.parameters())
    assert ModelTraits.from_dict(traits.to_dict()) == traits


def test_tokens_are_those_the_transformer_sees() -> None:
    pipeline = builders.wan()
    seen: list[int] = []
    hook = pipeline.transformer.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    builders.run_wan(pipeline, steps=1)
    hook.remove()
    stage = accel.traits_of(pipeline, width=64, height=32, frames=5).stage("transformer")
    assert stage is not None
    assert set(seen) == {stage.tokens}


def test_sizes_default_to_the_pipelines_own() -> None:
    pipeline = builders.wan()
    assert accel.traits_of(pipeline) == accel.traits_of(pipeline, width=832, height=480, frames=81)


@pytest.mark.parametrize(
    ("build", "reachable"),
    [
        (builders.wan_transformer, True),
        (builders.ltx_transformer, True),
        (builders.cogvideox_transformer, False),
        (builders.mochi_transformer, False),
    ],
)
def test_which_models_attention_can_be_reached(build: Any, reachable: bool) -> None:
    stage = transformer_of(build())
    assert stage.reachable == reachable
    assert stage.attention_calls > 0
    assert (stage.heads, stage.head_dim) == (2, 32)
    assert reachable or f"0 of {stage.attention_calls} modules can be reached" in stage.reach


def test_an_installation_changes_nothing_that_is_read() -> None:
    pipeline = builders.wan()
    before = accel.traits_of(pipeline)
    installation = accel.install(pipeline, builders.plan(attention="sdpa"))
    assert accel.traits_of(pipeline) == before
    installation.remove()


def test_linears_are_counted_by_shape() -> None:
    from torch import nn

    module = nn.Sequential(nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(4, 8, bias=False))
    stage = transformer_of(module)
    assert stage.linears == (LinearShape(8, 4, 1, False), LinearShape(8, 4, 2, True))


def test_a_pipeline_without_a_component() -> None:
    assert accel.traits_of(SimpleNamespace(transformer=None, vae=None)).stages == ()
