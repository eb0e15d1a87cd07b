"""LoRAs on a pipeline: what they add, that nothing stays of them, and that another model's are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from accel.fit.moving import Offloading
from accel.install import install
from app.engine import loras as engine_loras
from app.engine.loras import Adapters, parts_of
from app.errors import UsageError
from app.loras import LoraFile
from app.request import Lora
from tests import builders, tiny
from tests.app import lora_files

plans = pytest.mark.parametrize("linear", ["stock", "dynamic_int8"])


def file(path: Path, weight: float = 1.0, **more: Any) -> LoraFile:
    return LoraFile(Lora(name=path.name, weight=weight, **more), path)


def run(pipeline: Any, name: str = "transformer") -> torch.Tensor:
    with torch.inference_mode():
        return getattr(pipeline, name)(**builders.wan_inputs())[0]


@pytest.fixture
def soft(tmp_path: Path) -> Path:
    return lora_files.save(tmp_path / "soft.safetensors", lora_files.tensors())


def in_plain_diffusers(path: Path, weight: float, load: Callable[[Any], None] | None = None) -> torch.Tensor:
    """What diffusers' own few lines give."""
    pipeline = builders.wan()
    pipeline.load_lora_weights(str(path), adapter_name="a")
    pipeline.set_adapters(["a"], [weight])
    return run(pipeline)


@pytest.mark.parametrize("weight", [1.0, 0.3, -2.0])
def test_equal_to_diffusers_own_way(soft: Path, weight: float) -> None:
    pipeline = builders.wan()
    base = run(pipeline)
    assert Adapters(pipeline, "Tiny").use([file(soft, weight)]) == ()
    got = run(pipeline)
    assert torch.equal(got, in_plain_diffusers(soft, weight))
    assert not torch.equal(got, base)


@plans
def test_taken_off_nothing_stays_and_no_strength_is_none(soft: Path, linear: str) -> None:
    pipeline = builders.wan()
    installation = install(pipeline, builders.plan(linear=linear))
    before = {name: tensor.clone() for name, tensor in pipeline.transformer.state_dict().items()}
    base, adapters = run(pipeline), Adapters(pipeline, "Tiny")
    adapters.use([file(soft, 0.0)])
    assert torch.equal(run(pipeline), base)
    adapters.use([file(soft, 0.7)])
    strong = run(pipeline)
    assert not torch.equal(strong, base)
    adapters.use([])
    assert torch.equal(run(pipeline), base)
    after = pipeline.transformer.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    adapters.use([file(soft, 0.7)])
    assert torch.equal(run(pipeline), strong)
    installation.remove()
    adapters.use([])
    assert torch.equal(run(pipeline), run(builders.wan()))


def test_packed_linears_serve_under_a_lora(soft: Path) -> None:
    plain, packed = builders.wan(), builders.wan()
    installation = install(packed, builders.plan(linear="dynamic_int8"))
    for pipeline in (plain, packed):
        Adapters(pipeline, "Tiny").use([file(soft)])
    installation.reset()
    want, got, base = run(plain), run(packed), run(builders.wan())
    error, effect = float((got - want).norm()), float((want - base).norm())
    print(f"int8 differs by {error:.4f}, the LoRA by {effect:.4f}")
    assert error < 0.2 * effect
    report = installation.report()["linear"]["transformer"]
    assert report["served"] == report["calls"] > 0


def test_packed_again_under_a_lora_each_linear_finds_its_exact_weight_in_its_file(tmp_path: Path, soft: Path) -> None:
    """As the engine does when numbers went wrong: everything out, one more try, everything in again."""
    from app.engine import loading

    folder = tiny.save("wan-t2v", tmp_path / "model")
    pipeline = loading.load_pipeline(folder, {})
    Adapters(pipeline, "Tiny").use([file(soft)])
    installation = install(pipeline, builders.plan(linear="dynamic_int8"))
    report = installation.report()["linear"]["transformer"]
    assert report["packed"] > 0
    assert report["kept_bytes"] == 0, "nothing is held twice"
    installation.remove()


def test_norms_that_diffusers_leaves_out_are_told_unless_they_change_nothing(tmp_path: Path) -> None:
    found = lora_files.native(lora_files.tensors())
    norm = "diffusion_model.blocks.0.self_attn.norm_q.diff"
    changed = lora_files.save(tmp_path / "changed.safetensors", {**found, norm: torch.ones(64)})
    same = lora_files.save(tmp_path / "same.safetensors", {**found, norm: torch.zeros(64)})
    adapters = Adapters(builders.wan(), "Tiny")
    assert adapters.use([file(same)]) == ()
    (said,) = adapters.use([file(changed)])
    assert said.reason == (
        "Not all of the LoRA 'changed.safetensors' acts on Tiny: blocks.0.self_attn.norm_q have no effect."
    )


def test_a_strength_changes_without_reading_the_file_again(soft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = builders.wan()
    adapters = Adapters(pipeline, "Tiny")
    adapters.use([file(soft)])
    monkeypatch.setattr(engine_loras, "_converted", lambda *_: pytest.fail("read again"))
    adapters.use([file(soft, 0.3)])
    assert torch.equal(run(pipeline), in_plain_diffusers(soft, 0.3))
    assert adapters.report()[0]["weight"] == 0.3


def test_several_add_up_and_a_changed_file_is_read_again(soft: Path, tmp_path: Path) -> None:
    hard = lora_files.save(tmp_path / "hard.safetensors", lora_files.tensors(seed=2, rank=4))
    pipeline = builders.wan()
    adapters = Adapters(pipeline, "Tiny")
    adapters.use([file(soft)])
    alone = run(pipeline)
    adapters.use([file(soft), file(hard)])
    both = run(pipeline)
    assert not torch.equal(alone, both)
    adapters.use([file(soft), file(hard, 0.0)])
    assert torch.equal(run(pipeline), alone)
    lora_files.save(soft, lora_files.tensors(seed=3, rank=3))
    adapters.use([file(soft)])
    assert torch.equal(run(pipeline), in_plain_diffusers(soft, 1.0))
    assert adapters.report() == [{"name": "soft.safetensors", "weight": 1.0, "layers": {"transformer": 6}}]


@pytest.mark.parametrize("named", ["native", "bare native", "bare", "peft", "musubi", "half", "alphas"])
def test_every_trainer_s_names_mean_the_same(tmp_path: Path, soft: Path, named: str) -> None:
    if named == "musubi":  # whose converter wants all layers of a block
        soft = lora_files.save(soft, lora_files.tensors(layers=lora_files.NATIVE))
    found = lora_files.tensors(layers=lora_files.NATIVE if named == "musubi" else lora_files.LAYERS)
    bare = {key.removeprefix("transformer."): tensor for key, tensor in found.items()}
    twice = {key: tensor * 2 for key, tensor in found.items() if "lora_B" in key}
    renamed = {
        "native": lambda: lora_files.native(found),
        "bare native": lambda: lora_files.native(found, ""),
        "bare": lambda: bare,
        "peft": lambda: {f"base_model.model.{key}": tensor for key, tensor in bare.items()},
        "musubi": lambda: lora_files.musubi(found, alpha=2.0),
        "half": lambda: {key: tensor.half() for key, tensor in found.items()},
        "alphas": lambda: (
            found
            | twice
            | {key.replace("lora_B.weight", "alpha"): torch.tensor(1.0) for key in found if "lora_B" in key}
        ),
    }[named]()
    path = lora_files.save(tmp_path / "other.safetensors", renamed)
    pipeline = builders.wan()
    assert Adapters(pipeline, "Tiny").use([file(path)]) == ()
    assert all(p.dtype == torch.float32 for name, p in pipeline.transformer.named_parameters() if "lora_" in name)
    torch.testing.assert_close(
        run(pipeline), in_plain_diffusers(soft, 1.0), atol=2e-3 if named == "half" else 1e-5, rtol=0
    )


def test_rank_and_alpha_in_the_file_s_header_count(tmp_path: Path) -> None:
    layers = [f"blocks.{block}.{layer}" for block in range(2) for layer in lora_files.LAYERS]
    about = {"transformer.r": 2, "transformer.lora_alpha": 1, "transformer.target_modules": layers}
    path = lora_files.save(tmp_path / "a.safetensors", lora_files.tensors(), about)
    pipeline = builders.wan()
    Adapters(pipeline, "Tiny").use([file(path)])
    assert torch.equal(run(pipeline), in_plain_diffusers(path, 1.0))
    plain = lora_files.save(tmp_path / "b.safetensors", lora_files.tensors())
    assert torch.equal(run(pipeline), in_plain_diffusers(plain, 0.5))


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (lambda: lora_files.tensors(width=48), "its blocks.0.attn1.to_q takes 48 numbers, that of Tiny 64"),
        (
            lambda: {key.replace("blocks", "layers"): tensor for key, tensor in lora_files.tensors().items()},
            "Tiny has none of its 6 layers (layers.0.attn1.to_q, layers.0.attn2.to_v, layers.0.ffn.net.0.proj and 3 ",
        ),
        (
            lambda: {"diffusion_model.blocks.0.wonder.lora_A.weight": torch.zeros(2, 64)},
            "is not named as LoRAs of this kind of model are",
        ),
        (
            lambda: {"unet.x.lora_down.weight": torch.zeros(2, 64)},
            "is for another model: Tiny has none of its 1 layers",
        ),
        (
            lambda: {key: tensor * float("inf" if "ffn" in key else 1) for key, tensor in lora_files.tensors().items()},
            "is broken: 4 of its 12 tensors hold values that are no finite numbers (transformer.blocks.0.ffn.net.0",
        ),
    ],
)
def test_another_model_s_lora_is_refused_and_leaves_nothing(
    tmp_path: Path, soft: Path, found: Callable[[], dict[str, Any]], says: str
) -> None:
    path = lora_files.save(tmp_path / "other.safetensors", found())
    pipeline = builders.wan()
    base, adapters = run(pipeline), Adapters(pipeline, "Tiny")
    adapters.use([file(soft)])
    with pytest.raises(UsageError, match=r"^LoRA 'other.safetensors' ") as caught:
        adapters.use([file(soft), file(path)])
    assert says in str(caught.value)
    assert torch.equal(run(pipeline), base)
    adapters.use([file(soft)])
    assert torch.equal(run(pipeline), in_plain_diffusers(soft, 1.0))


def test_layers_that_the_model_lacks_are_said(tmp_path: Path) -> None:
    path = lora_files.save(tmp_path / "deep.safetensors", lora_files.tensors(blocks=3))
    pipeline = builders.wan()
    (said,) = Adapters(pipeline, "Tiny").use([file(path)])
    assert (said.field, said.asked, said.used) == ("loras", "9 layers", "6 layers")
    assert "blocks.2.attn1.to_q" in said.reason


def test_a_cancel_between_two_leaves_none(soft: Path) -> None:
    class Stopped(BaseException):
        pass

    calls = iter([None, Stopped()])

    def check() -> None:
        if (error := next(calls)) is not None:
            raise error

    pipeline = builders.wan()
    base, adapters = run(pipeline), Adapters(pipeline, "Tiny")
    with pytest.raises(Stopped):
        adapters.use([file(soft), file(soft)], check)
    assert torch.equal(run(pipeline), base)


@pytest.mark.parametrize(
    ("name", "noise", "parts"),
    [
        ("style.safetensors", "auto", ("transformer", "transformer_2")),
        ("wan22_high_noise.safetensors", "auto", ("transformer",)),
        ("Style-LowNoise-v2.safetensors", "auto", ("transformer_2",)),
        ("lightning/low.safetensors", "auto", ("transformer_2",)),
        ("highland-yellow.safetensors", "auto", ("transformer", "transformer_2")),
        ("Wan2.2_T2V_HIGH_fp16.safetensors", "auto", ("transformer",)),
        ("turbo-low-v1.1.safetensors", "auto", ("transformer_2",)),
        ("low-poly.safetensors", "auto", ("transformer", "transformer_2")),
        ("high_detail/faces.safetensors", "auto", ("transformer", "transformer_2")),
        ("low-poly_high_noise.safetensors", "auto", ("transformer",)),
        ("high-and-low.safetensors", "auto", ("transformer", "transformer_2")),
        ("wan22_high_noise.safetensors", "both", ("transformer", "transformer_2")),
        ("wan22_high_noise.safetensors", "low", ("transformer_2",)),
    ],
)
def test_which_of_two_transformers(name: str, noise: Any, parts: tuple[str, ...]) -> None:
    assert parts_of(Lora(name=name, noise=noise), True, "Tiny") == parts
    if noise == "auto":
        assert parts_of(Lora(name=name), False, "Tiny") == ("transformer",)
    elif noise == "low":
        with pytest.raises(UsageError, match="has one transformer for all noise"):
            parts_of(Lora(name=name, noise=noise), False, "Tiny")


def test_two_transformers_take_each_its_own(tmp_path: Path) -> None:
    pipeline = tiny.build("wan-t2v-two")
    high = lora_files.save(tmp_path / "a_high_noise.safetensors", lora_files.tensors())
    low = lora_files.save(tmp_path / "a_low_noise.safetensors", lora_files.tensors(seed=2))
    adapters = Adapters(pipeline, "Tiny")

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        inputs = builders.wan_inputs()
        inputs["hidden_states"] = inputs["hidden_states"].repeat(1, 2, 1, 1, 1)
        with torch.inference_mode():
            return pipeline.transformer(**inputs)[0], pipeline.transformer_2(**inputs)[0]

    first, second = both()
    adapters.use([file(high)])
    assert not torch.equal(both()[0], first)
    assert torch.equal(both()[1], second)
    adapters.use([file(high, 0.0), file(low)])
    assert torch.equal(both()[0], first)
    assert not torch.equal(both()[1], second)
    adapters.use([])
    assert torch.equal(both()[0], first)
    assert torch.equal(both()[1], second)


@pytest.mark.parametrize("way", ["model", "group", "sequential"])
@pytest.mark.parametrize("linear", ["stock", "dynamic_int8"])
def test_weights_that_move_take_their_lora_along(soft: Path, way: str, linear: str) -> None:
    """On one device, so what is held to is that every hook is where it belongs, before, under and after the LoRA."""
    pipeline, still = builders.wan(), builders.wan()
    for one in (pipeline, still):
        install(one, builders.plan(linear=linear))
    moving = Offloading(pipeline, way, "cpu")
    base, adapters = run(still), Adapters(pipeline, "Tiny")
    assert torch.equal(run(pipeline), base)
    Adapters(still, "Tiny").use([file(soft, 0.5)])
    adapters.use([file(soft, 0.5)])
    assert torch.equal(run(pipeline), run(still))
    adapters.use([])
    assert torch.equal(run(pipeline), base)
    adapters.use([file(soft, 0.5)])
    moving.undo()
    assert torch.equal(run(pipeline), run(still))
    adapters.use([])
    assert torch.equal(run(pipeline), base)
    left = [
        name
        for name, part in pipeline.transformer.named_modules()
        if {"_hf_hook", "_diffusers_hook"} & vars(part).keys()
    ]
    assert left == []
