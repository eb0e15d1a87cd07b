"""A plan put into a pipeline and taken out again: bit for bit, counted, with the original weights in every file."""

from __future__ import annotations

import copy
import gc
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from accel import ops
from accel.errors import AccelError
from accel.install import Installation, install
from accel.originals import same_bits
from accel.packed import PackedLinear, PackedWeight
from accel.selfcheck import relative
from tests import builders
from tests.emulators import sgl_kernel_cpu as emulator

BF16_HERE = torch.ops.mkldnn._is_mkldnn_bf16_supported()
needs_bf16 = pytest.mark.skipif(not BF16_HERE, reason="oneDNN packs bf16 only with AVX512_BF16 or AMX")

INT8 = {"linear": "dynamic_int8", "text_encoder_linear": "dynamic_int8", "attention": "sdpa", "vae": "direct_conv3d"}
BF16 = {
    "linear": "onednn_bf16",
    "text_encoder_linear": "onednn_bf16",
    "attention": "sdpa",
    "vae": "bf16_channels_last",
    "dtype": "bfloat16",
    "text_encoder_dtype": "bfloat16",
    "vae_dtype": "bfloat16",
}
SGL = {"linear": "sgl_amx_bf16", "attention": "sgl_amx", "dtype": "bfloat16"}
SGL_INT8 = {"linear": "sgl_amx_int8", "attention": "sgl_amx", "dtype": "bfloat16"}

plans = pytest.mark.parametrize(
    "settings", [pytest.param(INT8, id="int8"), pytest.param(BF16, id="bf16", marks=needs_bf16)]
)
sgl_plans = pytest.mark.parametrize("settings", [pytest.param(SGL, id="sgl"), pytest.param(SGL_INT8, id="sgl_int8")])
COMPONENTS = ("text_encoder", "transformer", "vae")


def bits(pipeline: Any) -> dict[str, torch.Tensor]:
    return {
        f"{component}.{name}": tensor.clone()
        for component in COMPONENTS
        for name, tensor in getattr(pipeline, component).state_dict().items()
    }


def assert_bits(pipeline: Any, before: dict[str, torch.Tensor]) -> None:
    now = bits(pipeline)
    assert now.keys() == before.keys()
    assert [name for name in before if not same_bits(now[name], before[name])] == []


def slots() -> tuple[int, int, int]:
    return len(ops.ATTENTION), len(ops.LINEARS), len(ops.CONVS)


def cycle(settings: dict[str, str]) -> None:
    """Must show 3: on, off, on leaves the fixed-seed clip bit-equal to the first run and the weights as they were."""
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
    pipeline = builders.wan()
    before = bits(pipeline)
    first = install(pipeline, builders.plan(**INT8))
    second = install(pipeline, builders.plan(attention="sdpa"))
    assert (first.active, second.active) == (False, True)
    assert_bits(pipeline, before)
    assert not any(isinstance(module, PackedLinear) for module in pipeline.transformer.modules())
    second.remove()
    assert slots() == (0, 0, 0)


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


# -- what a packed weight looks like from outside ----------------------------------------------------------------------


@plans
def test_state_dict_copies_and_pickles_hold_the_original_weights(settings: dict[str, str]) -> None:
    pipeline = builders.wan()
    install(pipeline, builders.plan(dtype=settings.get("dtype", "float32"))).remove()
    installation = install(pipeline, builders.plan(**(settings | {"vae": "stock"})))
    transformer = pipeline.transformer
    state = transformer.state_dict()
    assert not any(isinstance(tensor, PackedWeight) for tensor in state.values())
    with torch.inference_mode():
        dtype = transformer.dtype
        twin = copy.deepcopy(transformer)
        linear = pickle.loads(pickle.dumps(transformer.blocks[0].ffn.net[0].proj))
        assert type(twin.blocks[0].ffn.net[0].proj) is type(linear) is nn.Linear
        assert same_bits(linear.weight, transformer.blocks[0].ffn.net[0].proj.weight.data)
        assert all(same_bits(twin.state_dict()[name], tensor) for name, tensor in state.items())
        twin(**builders.wan_inputs(dtype=dtype))
    installation.remove()
    with torch.inference_mode():
        twin(**builders.wan_inputs(dtype=dtype))


@plans
def test_save_pretrained_writes_the_original_weights(settings: dict[str, str], tmp_path: Path) -> None:
    from diffusers import DiffusionPipeline

    builders.wan().save_pretrained(tmp_path / "stock")
    dtypes = {name: getattr(torch, settings.get(key, "float32")) for name, key in
              (("transformer", "dtype"), ("text_encoder", "text_encoder_dtype"), ("vae", "vae_dtype"))}  # fmt: skip
    pipeline = DiffusionPipeline.from_pretrained(tmp_path / "stock", dtype=dtypes)
    before = bits(pipeline)
    installation = install(pipeline, builders.plan(**settings))
    pipeline.save_pretrained(tmp_path / "installed")
    installation.remove()
    again = DiffusionPipeline.from_pretrained(tmp_path / "installed", dtype=dtypes)
    assert_bits(again, before)


def test_weights_are_read_again_from_their_file_and_not_kept(tmp_path: Path) -> None:
    from diffusers import DiffusionPipeline

    builders.wan().save_pretrained(tmp_path)
    pipeline = DiffusionPipeline.from_pretrained(tmp_path)
    before = bits(pipeline)
    installation = install(pipeline, builders.plan(**INT8, dtype="float32"))
    restoring = installation.report()["restoring"]
    assert (restoring["kept_bytes"], restoring["reread_tensors"] > 0) == (0, True)
    installation.remove()
    assert_bits(pipeline, before)


def test_weights_are_kept_when_the_file_differs(tmp_path: Path) -> None:
    from diffusers import DiffusionPipeline

    builders.wan().save_pretrained(tmp_path)
    pipeline = DiffusionPipeline.from_pretrained(tmp_path)
    changed = pipeline.transformer.blocks[0].attn1.to_q.weight
    changed.data[0, 0] += 1
    before, size = bits(pipeline), changed.numel() * 4
    installation = install(pipeline, builders.plan(linear="dynamic_int8"))
    assert installation.report()["restoring"]["kept_bytes"] == size
    installation.remove()
    assert_bits(pipeline, before)


@needs_bf16
def test_casting_back_reads_the_file(tmp_path: Path) -> None:
    from diffusers import DiffusionPipeline

    builders.wan().save_pretrained(tmp_path)
    pipeline = DiffusionPipeline.from_pretrained(tmp_path)
    before = bits(pipeline)
    installation = install(pipeline, builders.plan(**BF16))
    assert installation.report()["restoring"]["kept_bytes"] == 0
    assert pipeline.transformer.dtype == pipeline.vae.dtype == pipeline.text_encoder.dtype == torch.bfloat16
    # what diffusers keeps in float32 stays so, here as in from_pretrained(dtype=torch.bfloat16)
    loaded = DiffusionPipeline.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for component in COMPONENTS:
        ours, theirs = (getattr(p, component).state_dict() for p in (pipeline, loaded))
        assert {name: t.dtype for name, t in ours.items()} == {name: t.dtype for name, t in theirs.items()}
    assert installation.remove() == []
    assert_bits(pipeline, before)


def test_a_lost_file_is_said_in_one_sentence(tmp_path: Path) -> None:
    from diffusers import DiffusionPipeline

    builders.wan().save_pretrained(tmp_path)
    pipeline = DiffusionPipeline.from_pretrained(tmp_path)
    installation = install(pipeline, builders.plan(linear="dynamic_int8"))
    for file in (tmp_path / "transformer").glob("*.safetensors"):
        file.unlink()
    with pytest.raises(RuntimeError, match=r"blocks\.\d.* can't be read again from .*; load the model anew"):
        installation.remove()


@plans
def test_weights_can_be_read_and_written_while_packed(settings: dict[str, str]) -> None:
    pipeline = builders.wan()
    installation = install(pipeline, builders.plan(**settings))
    linear = pipeline.transformer.blocks[0].attn1.to_q
    assert isinstance(linear, PackedLinear)
    before, inputs = linear.weight.data, torch.randn(5, 64).to(linear.weight.dtype)
    assert (linear.weight.shape, linear.weight.dtype, linear.weight.device.type) == ((64, 64), before.dtype, "cpu")
    assert linear in pipeline.transformer.modules()
    assert sum(p.numel() for p in linear.parameters()) == 64 * 64 + 64
    ways = {
        "data +=": lambda: setattr(linear.weight, "data", linear.weight.data + 0.5),
        "add_": lambda: linear.weight.add_(0.5),
        "copy_": lambda: linear.weight.copy_(before),
        "weight =": lambda: setattr(linear, "weight", nn.Parameter(before + 1, requires_grad=False)),
        "load_state_dict": lambda: linear.load_state_dict({"weight": before, "bias": linear.bias}),
    }
    with torch.no_grad():
        for way, write in ways.items():
            write()  # type: ignore[no-untyped-call]
            want = {"data +=": before + 0.5, "add_": before + 0.5 + 0.5, "weight =": before + 1}.get(way, before)
            assert same_bits(linear.weight.data, want), way
            plain = nn.functional.linear(inputs, want, linear.bias)
            assert relative(linear(inputs), plain) < 4e-2, way
    with pytest.raises(RuntimeError, match=r"shape \(64, 64\) can't become \(2, 64\)"):
        linear.weight.data = before[:2]
    assert installation.report()["linear"]["transformer"]["rewritten"] == len(ways)
    installation.remove()
    assert same_bits(linear.weight.data.to(before.dtype), before)


@plans
def test_the_packed_copy_replaces_the_weight_in_memory(settings: dict[str, str], tmp_path: Path) -> None:
    from diffusers import DiffusionPipeline

    builders.wan().save_pretrained(tmp_path)
    pipeline = DiffusionPipeline.from_pretrained(tmp_path)
    installation = install(pipeline, builders.plan(**settings))
    linears = installation.linears["transformer"]
    assert linears.packings
    assert sum(packing.parameter.untyped_storage().nbytes() for packing in linears.packings) == 0
    assert linears.kept_bytes == 0
    elements = sum(packing.shape.numel() for packing in linears.packings)
    print(f"{elements} elements in {sum(packing.matrix.nbytes for packing in linears.packings)} bytes")
    assert sum(packing.matrix.nbytes for packing in linears.packings) < 2.5 * elements
    installation.remove()


@plans
def test_moving_to_where_it_is_works_and_casting_is_refused(settings: dict[str, str]) -> None:
    pipeline = builders.wan()
    installation = install(pipeline, builders.plan(**settings))
    pipeline.to("cpu")
    pipeline.transformer.to(pipeline.transformer.dtype)
    builders.run_wan(pipeline)
    with pytest.raises(RuntimeError, match=r"call remove\(\) on the installation before"):
        pipeline.transformer.half()
    installation.remove()


# -- counting
# -----------------------------------------------------------------------------------------------------------


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


# -- failing and forgetting --------------------------------------------------------------------------------------------


def test_a_step_that_fails_leaves_the_pipeline_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from accel.backends.dynamic_int8 import DynamicInt8

    pipeline, count = builders.wan(), 0
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
    assert slots() == (0, 0, 0)
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
    installation.remove()
    assert torch.get_num_threads() == before
    builders.run_wan(pipeline)
    assert set(seen.values()) == {before}
