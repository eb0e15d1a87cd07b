"""A plan put into a pipeline and taken out again: bit for bit, counted, with the original weights in every file."""

from __future__ import annotations

import gc
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from accel.checking.line import relative
from accel.errors import AccelError
from accel.install import Installation, install
from accel.originals import same_bits
from accel.packed import PackedLinear
from tests import builders
from tests.accel.installed import COMPONENTS, INT8, assert_bits, bits, plans, sgl_plans, slots
from tests.emulators import sgl_kernel_cpu as emulator


def cycle(settings: dict[str, str]) -> None:
    """Case 11: on, off, on leaves the fixed-seed clip bit-equal to the first run and the weights as they were."""
    pipeline, free = builders.wan(), slots()
    before, stock = bits(pipeline), builders.run_wan(pipeline)
    classes = [type(m) for name in COMPONENTS for m in getattr(pipeline, name).modules()]
    clips = []
    for _ in range(2):
        installation = install(pipeline, builders.plan(**settings))
        clips.append(builders.run_wan(pipeline))
        assert installation.remove() == []
        assert_bits(pipeline, before)
        assert slots() == free
        assert np.array_equal(builders.run_wan(pipeline), stock)
    print(f"largest difference to stock {np.abs(clips[0] - stock).max():.1e}")
    assert np.array_equal(*clips)
    assert not np.array_equal(clips[0], stock)
    assert np.abs(clips[0] - stock).max() < 0.05
    assert [type(m) for name in COMPONENTS for m in getattr(pipeline, name).modules()] == classes


@plans
def test_on_off_on(settings: dict[str, str]) -> None:
    cycle(settings)


@sgl_plans
@pytest.mark.skipif(emulator.real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")
def test_on_off_on_emulated(settings: dict[str, str]) -> None:
    with emulator.installed() as calls:
        cycle(settings)
    assert calls["flash_attn_varlen_func"] == 2 * 16


@plans
def test_installing_twice_is_one_installation(settings: dict[str, str]) -> None:
    """Case 11: what is packed is not packed again."""
    pipeline = builders.wan()
    before = bits(pipeline)
    installation = install(pipeline, builders.plan(**settings))
    packed = installation.report()["linear"]["transformer"]["packed"]
    assert install(pipeline, builders.plan(**settings)) is installation
    assert installation.report()["linear"]["transformer"]["packed"] == packed > 0
    installation.remove()
    installation.remove()
    assert_bits(pipeline, before)


def test_another_plan_takes_the_first_one_out() -> None:
    pipeline, free = builders.wan(), slots()
    before = bits(pipeline)
    first = install(pipeline, builders.plan(**INT8))
    second = install(pipeline, builders.plan(attention="sdpa"))
    assert (first.active, second.active) == (False, True)
    assert_bits(pipeline, before)
    assert not any(isinstance(module, PackedLinear) for module in pipeline.transformer.modules())
    second.remove()
    assert slots() == free


def test_a_sibling_pipeline_shares_the_installation() -> None:
    """Image-to-video is built from the modules of text-to-video: they are accelerated once."""
    pipeline = builders.wan()
    installation = install(pipeline, builders.plan(**INT8))
    sibling = builders.Holder(**{name: getattr(pipeline, name) for name in COMPONENTS})
    assert install(sibling, builders.plan(**INT8)) is installation
    installation.remove()


def test_transformer_2_and_more_text_encoders_are_served() -> None:
    parts = {"transformer": builders.wan_transformer(), "transformer_2": builders.wan_transformer()}
    pipeline = builders.Holder(**parts, text_encoder_2=nn.Sequential(nn.Linear(64, 64)))
    before = [parameter.clone() for part in parts.values() for parameter in part.parameters()]
    installation = install(pipeline, builders.plan(linear="dynamic_int8", attention="sdpa"))
    with torch.inference_mode():
        parts["transformer_2"](**builders.wan_inputs())
    report = installation.report()
    assert report["linear"]["transformer_2"]["packed"] == report["linear"]["transformer"]["packed"] > 0
    assert (report["attention"]["transformer"]["calls"], report["attention"]["transformer_2"]["calls"]) == (0, 4)
    installation.remove()
    after = [parameter for part in parts.values() for parameter in part.parameters()]
    assert all(map(same_bits, after, before))


class Tied(nn.Module):
    """Two linears on one weight, and one on an embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 64)
        self.blocks = nn.ModuleList([nn.Linear(64, 64, bias=False), nn.Linear(64, 64), nn.Linear(64, 96, bias=False)])
        self.blocks[1].weight = self.blocks[0].weight
        self.blocks[2].weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_tied_weights_stay_tied() -> None:
    model: Any = Tied().requires_grad_(False)
    parameter, before, inputs = model.blocks[0].weight, model.blocks[0].weight.clone(), torch.randn(3, 64)
    want = model(inputs)
    installation = install(builders.Holder(transformer=model), builders.plan(linear="dynamic_int8"))
    linear = installation.report()["linear"]["transformer"]
    assert linear["packed"] == 2
    assert linear["skipped"] == {"its weight is shared with a module that is no packable linear": 1}
    assert linear["packed_bytes"] == 64 * 64 + 64 * 4
    assert model.blocks[0].weight is model.blocks[1].weight
    assert relative(model(inputs), want) < 5e-2
    installation.remove()
    assert model.blocks[0].weight is model.blocks[1].weight is parameter
    assert model.blocks[2].weight is model.embedding.weight
    assert same_bits(model.blocks[0].weight, before)
    assert torch.equal(model(inputs), want)


# -- failing and forgetting --------------------------------------------------------------------------------------------


def test_a_step_that_fails_leaves_the_pipeline_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from accel.backends.dynamic_int8 import DynamicInt8

    pipeline, count = builders.wan(), 0
    free = slots()
    before = bits(pipeline)
    stock = DynamicInt8.pack

    def pack(self: Any, weight: torch.Tensor) -> Any:
        nonlocal count
        count += 1
        if count == 5:
            raise MemoryError("no memory left")
        return stock(self, weight)

    monkeypatch.setattr(DynamicInt8, "pack", pack)
    with pytest.raises(AccelError, match="could not be put into WanPipeline: no memory left"):
        install(pipeline, builders.plan(**INT8))
    assert slots() == free
    assert_bits(pipeline, before)
    builders.run_wan(pipeline)


@plans
def test_a_dropped_pipeline_leaves_nothing(settings: dict[str, str]) -> None:
    pipeline, free = builders.wan(), slots()
    installation: Installation | None = install(pipeline, builders.plan(**settings))
    builders.run_wan(pipeline)
    assert slots() != free
    del pipeline, installation
    gc.collect()
    assert slots() == free


def test_each_stage_works_with_its_number_of_threads_and_the_old_one_comes_back() -> None:
    pipeline, before = builders.wan(), torch.get_num_threads()
    seen: dict[str, int] = {}
    written = builders.plan(threads="1")
    fewer = tuple(
        replace(stage, threads=replace(stage.threads, engaged=count))
        for stage, count in zip(written.stages, ("1", "2", "3"), strict=True)
    )
    installation = install(pipeline, replace(written, stages=fewer))
    for name, module in (
        ("text", pipeline.text_encoder.encoder),
        ("denoise", pipeline.transformer.blocks[0]),
        ("decode", pipeline.vae.decoder.conv_in),
    ):
        module.register_forward_pre_hook(lambda *_, name=name: seen.update({name: torch.get_num_threads()}))
    builders.run_wan(pipeline)
    assert seen == {"text": 1, "denoise": 2, "decode": 3}
    assert pickle.loads(pickle.dumps(pipeline.vae.encoder)) is not None
    installation.remove()
    assert torch.get_num_threads() == before
    builders.run_wan(pipeline)
    assert set(seen.values()) == {before}
