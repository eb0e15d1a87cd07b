"""Step caches in tiny pipelines: what they reuse, that clips don't feel each other, and that nothing stays behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from accel import caches, caching, magnitudes
from accel.errors import AccelError
from accel.install import install
from tests import builders
from tests.accel.installed import INT8, assert_bits, bits

STEPS = 10
EAGER = {"first_block": "first_block:0.9", "mag": "mag:1", "taylorseer": "taylorseer:3", "pyramid": "pyramid:3"}
"""Strengths at which a random model reuses something."""


@pytest.fixture(autouse=True)
def no_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("ACCEL_CACHE", str(tmp_path / "proofs"))
    monkeypatch.setattr(magnitudes, "MEASURED", {})


def wan(layers: int = 3) -> Any:
    """A pipeline whose transformer has more than the two blocks of the tiny one."""
    pipeline = builders.wan()
    torch.manual_seed(0)
    kind, config = type(pipeline.transformer), dict(pipeline.transformer.config)
    pipeline.register_modules(transformer=kind.from_config({**config, "num_layers": layers}).eval())
    return pipeline


def run(pipeline: Any, **more: Any) -> Any:
    return builders.run_wan(pipeline, steps=STEPS, **more)


@pytest.mark.parametrize("name", caches.NAMES)
def test_a_cache_reuses_clips_repeat_and_it_leaves_no_trace(name: str) -> None:
    pipeline = wan()
    before, stock = bits(pipeline), run(pipeline)
    traces = [(module, set(vars(module))) for module in pipeline.transformer.modules()]
    installation = install(pipeline, builders.plan(cache=EAGER[name]))
    first = run(pipeline)  # MagCache measures the model in it
    if name == "mag":
        assert np.array_equal(first, stock)
        assert installation.report()["cache"]["transformer"]["measuring"]
    installation.reset()
    second = run(pipeline)
    told = installation.report()["cache"]["transformer"]
    third = run(pipeline)  # without a reset: a new clip shows itself
    run(pipeline, seed=5)
    installation.reset()
    again = run(pipeline)
    assert told["served"] + told["computed"] == told["calls"] == 2 * STEPS * (3 if name == "pyramid" else 1)
    assert 0 < told["steps_reused"] < told["steps"] == STEPS
    assert str(told["served"]) in told["summary"]
    assert "measuring" not in told
    assert not np.array_equal(second, stock)
    assert np.array_equal(second, third)
    assert np.array_equal(second, again)
    assert installation.remove() == []
    assert_bits(pipeline, before)
    assert np.array_equal(run(pipeline), stock)
    pipeline.maybe_free_model_hooks()
    assert {name for module, names in traces for name in set(vars(module)) - names} <= {"_diffusers_hook"}
    assert not any("forward" in vars(module) for module, _ in traces)


def test_pyramid_attention_keeps_the_guided_pass_apart() -> None:
    """diffusers' own hook counts calls: with every second one skipped, the unguided pass would get the guided one's."""
    pipeline = wan()
    seen: list[float] = []
    installation = install(pipeline, builders.plan(cache="pyramid:2"))
    hooks = list(caching._hooks(pipeline.transformer, "PyramidAttentionBroadcastHook"))
    pipeline.transformer.register_forward_hook(lambda *_: seen.append(float(hooks[-1].state.cache.sum())))
    run(pipeline)
    told = installation.report()["cache"]["transformer"]
    assert told["served"] > 0
    assert all(cond != uncond for cond, uncond in zip(seen[::2], seen[1::2], strict=True))


@pytest.mark.parametrize("name", caches.NAMES)
def test_caches_work_with_other_backends(name: str) -> None:
    pipeline = wan()
    installation = install(pipeline, builders.plan(cache=EAGER[name], **INT8))
    for _ in range(2):
        installation.reset()
        clip = run(pipeline)
    report = installation.report()
    assert np.isfinite(clip).all()
    assert report["cache"]["transformer"]["served"] > 0
    calls = report["linear"]["transformer"]["calls"]
    assert calls > 0
    installation.remove()
    whole = install(pipeline, builders.plan(**INT8))
    run(pipeline)
    assert calls < whole.report()["linear"]["transformer"]["calls"]
    whole.remove()


def test_a_cancelled_clip_leaves_nothing_and_measures_nothing() -> None:
    pipeline = wan()
    installation = install(pipeline, builders.plan(cache="mag:1"))

    def stop(pipeline: Any, step: int, *_: Any) -> dict[str, Any]:
        if step == 4:
            raise KeyboardInterrupt
        return {}

    with pytest.raises(KeyboardInterrupt):
        run(pipeline, callback_on_step_end=stop)
    assert magnitudes.MEASURED == {}
    run(pipeline)
    assert len(next(iter(magnitudes.MEASURED.values()))) == STEPS
    installation.reset()
    whole = run(pipeline)
    with pytest.raises(KeyboardInterrupt):
        run(pipeline, callback_on_step_end=stop)
    installation.reset()
    assert np.array_equal(run(pipeline), whole)


def test_with_a_lora_the_model_is_measured_anew() -> None:
    peft = pytest.importorskip("peft")
    pipeline = wan()
    installation = install(pipeline, builders.plan(cache="mag:1"))
    run(pipeline)
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["to_q"]), pipeline.transformer)
    installation.reset()
    run(pipeline)
    assert len(magnitudes.MEASURED) == 2


def test_another_number_of_steps_and_another_process_use_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = wan()
    install(pipeline, builders.plan(cache="mag:1"))
    run(pipeline)
    monkeypatch.setattr(magnitudes, "MEASURED", {})
    other = wan()
    installation = install(other, builders.plan(cache="mag:1"))
    builders.run_wan(other, steps=14)
    told = installation.report()["cache"]["transformer"]
    assert told["steps"] == 14
    assert told["served"] > 0


def test_two_transformers_share_the_steps() -> None:
    pipeline = wan()
    torch.manual_seed(1)
    second = type(pipeline.transformer).from_config(dict(pipeline.transformer.config)).eval()
    both = type(pipeline)(**pipeline.components | {"transformer_2": second}, boundary_ratio=0.8)
    installation = install(both, builders.plan(cache="mag:1"))
    for _ in range(2):
        installation.reset()
        run(both)
    told = installation.report()["cache"]
    assert told["transformer"]["steps"] + told["transformer_2"]["steps"] == STEPS
    assert told["transformer"]["steps"] > 1
    assert told["transformer_2"]["served"] > 0


# -- what can't be ----------------------------------------------------------------------------------------------------


def test_models_say_which_caches_they_take() -> None:
    assert all(caching.why_not(name, builders.wan_transformer()) == "" for name in caches.NAMES)
    assert all(caching.why_not(name, builders.cogvideox_transformer()) == "" for name in caches.NAMES)
    assert "1 blocks" in caching.why_not("first_block", builders.wan_transformer(layers=1))
    assert "not one of the models" in caching.why_not("pyramid", torch.nn.Linear(2, 2))


def test_diffusers_no_ops_and_errors_are_refused() -> None:
    """Classes of diffusers whose blocks its caches don't know, with no more than their structure."""
    from diffusers import LTX2VideoTransformer3DModel, SkyReelsV2Transformer3DModel, WanVACETransformer3DModel

    torch.manual_seed(0)
    small: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 12, "num_layers": 2}
    wan: dict[str, Any] = {"ffn_dim": 16, "text_dim": 8, "freq_dim": 8, "in_channels": 4, "out_channels": 4}
    skyreels = SkyReelsV2Transformer3DModel(**small, **wan)
    assert "SkyReelsV2TransformerBlock" in caching.why_not("first_block", skyreels)
    assert "SkyReelsV2TransformerBlock" in caching.why_not("mag", skyreels)
    assert caching.why_not("taylorseer", skyreels) == caching.why_not("pyramid", skyreels) == ""
    with torch.device("meta"):
        vace = WanVACETransformer3DModel(**small, **wan, vace_layers=[0], vace_in_channels=4)
        sound = LTX2VideoTransformer3DModel(num_layers=2)
    assert "vace_blocks" in caching.why_not("first_block", vace)
    assert "audio_proj_out" in caching.why_not("taylorseer", sound)


def test_a_model_that_can_t_is_left_as_it_was() -> None:
    pipeline = wan(layers=1)
    before = bits(pipeline)
    with pytest.raises(AccelError, match=r"first_block can't be put into transformer: .* has 1 blocks"):
        install(pipeline, builders.plan(cache="first_block"))
    assert_bits(pipeline, before)


def test_a_cache_that_a_person_put_in_is_named() -> None:
    from diffusers import FirstBlockCacheConfig

    pipeline = wan()
    pipeline.transformer.enable_cache(FirstBlockCacheConfig())
    with pytest.raises(AccelError, match="a cache is in it already"):
        install(pipeline, builders.plan(cache="mag"))


class OwnBlock:
    """Mixed into a block's class, as fused blocks are."""


def test_blocks_whose_class_was_exchanged_are_cached() -> None:
    pipeline = wan()
    kind = type(pipeline.transformer.blocks[0])
    for block in pipeline.transformer.blocks:
        block.__class__ = type("Own", (OwnBlock, kind), {})
    installation = install(pipeline, builders.plan(cache="first_block:0.9"))
    run(pipeline)
    assert installation.report()["cache"]["transformer"]["served"] > 0
    installation.remove()
    from diffusers.hooks._helpers import TransformerBlockRegistry

    assert not any(issubclass(kind, OwnBlock) for kind in TransformerBlockRegistry._registry)


# -- compiled ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [cache.name for cache in caches.CACHES if not cache.attention])
def test_compiled_blocks_are_compiled_once_and_still_skipped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    from accel import compiling

    monkeypatch.setattr(compiling, "OPTIONS", {})
    stock = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda inner, fullgraph, options: stock(inner, fullgraph=True, backend="eager")
    )
    torch._dynamo.reset()
    counters.clear()
    pipeline = wan(layers=4)
    installation = install(pipeline, builders.plan(cache=EAGER[name], compile="yes"))
    for _ in range(2):
        installation.reset()
        run(pipeline)
    assert installation.report()["cache"]["transformer"]["served"] > 0
    assert counters["stats"]["unique_graphs"] == 1
    assert installation.remove() == []
    assert all(block._compiled_call_impl is None for block in pipeline.transformer.blocks)
    torch._dynamo.reset()
