"""What a packed weight looks like from outside: read, written, copied, saved and lost like any weight."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from accel.backends import backend
from accel.checking.line import relative
from accel.install import install
from accel.linears import pack_linears
from accel.originals import same_bits
from accel.packed import PackedLinear, PackedWeight
from accel.report import Tally
from tests import builders
from tests.accel.installed import BF16, COMPONENTS, INT8, assert_bits, bits, needs_bf16, plans


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
    """Case 11: saved while packed, read again and compared bit for bit."""
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


@plans
def test_packing_a_second_time_changes_nothing(settings: dict[str, str]) -> None:
    """Case 11: the function that packs, called twice on one model."""
    model = builders.wan_transformer().to(getattr(torch, settings.get("dtype", "float32"))).requires_grad_(False)
    inputs = torch.randn(5, 64, dtype=model.dtype)
    linear = model.blocks[0].attn1.to_q
    before, chosen = linear.weight.data.clone(), backend("linear", settings["linear"])
    first = pack_linears(model, chosen, Tally("t", "linear", chosen.name), None)  # type: ignore[arg-type]
    want, number = linear(inputs), linear.accel_number
    second = pack_linears(model, chosen, Tally("t", "linear", chosen.name), None)  # type: ignore[arg-type]
    assert (second.packed, first.packed > 0) == (0, True)
    assert (linear.accel_number is number, torch.equal(linear(inputs), want)) == (True, True)
    second.undo()
    assert same_bits(linear.weight.data, before)
    first.undo()
    assert type(linear) is nn.Linear
    assert same_bits(linear.weight.data, before)


@plans
def test_a_model_that_is_loaded_twice_gives_one_clip(settings: dict[str, str], tmp_path: Path) -> None:
    """Case 11: two of the same in one process, each packed by itself, one of them given back first."""
    from diffusers import DiffusionPipeline

    builders.wan().save_pretrained(tmp_path)
    pipelines = [DiffusionPipeline.from_pretrained(tmp_path) for _ in range(2)]
    before = bits(pipelines[0])
    one, other = (install(pipeline, builders.plan(**settings)) for pipeline in pipelines)
    clips = [builders.run_wan(pipeline) for pipeline in pipelines]
    one.remove()
    clips.append(builders.run_wan(pipelines[1]))
    other.remove()
    assert all((clip == clips[0]).all() for clip in clips)
    for pipeline in pipelines:
        assert_bits(pipeline, before)


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
