"""Estimates are arithmetic on what was measured here and on what the model's files say, and refusals tell the way."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.fit.needs import PROGRAM
from accel.types import ModelTraits, StageTraits
from app.errors import CannotRunError
from app.estimate import (
    Estimate,
    Measured,
    MemoryNeed,
    Times,
    engaged_key,
    estimate,
    forwards_of,
    memory_need,
    parameters_in,
    refuse_blocked,
    times,
)
from app.request import GenerationRequest

REQUEST = GenerationRequest(prompt="a red ball", width=256, height=160, frames=25, steps=20, guidance=4.0, fps=8.0)
SECONDS = {"load": 1.0, "text": 0.1, "denoise": 8.0, "decode": 2.0, "save": 0.5, "total": 11.6}
MIB = 2**20


def measured(scale: float = 1.0, width: int = 256, steps: int = 20, engaged: str = "e", memory: int = 0) -> Measured:
    seconds = {name: value * scale for name, value in SECONDS.items()}
    return Measured("starter", engaged, width, 160, 25, steps, 2 * steps, seconds, memory)


# -- seconds ----------------------------------------------------------------------------------------------------------


def test_nothing_measured_is_no_guess() -> None:
    found = times([], REQUEST, "e")
    assert found.seconds is None
    assert "not known" in found.basis


def test_the_same_kind_of_clip_gives_the_middle_of_its_times() -> None:
    found = times([measured(1.0, memory=5), measured(3.0, memory=9), measured(2.0), measured(width=512)], REQUEST, "e")
    assert found.stages["denoise"] == 16.0
    assert found.stages["load"] == 1.5, "the middle of all four: it goes by no size"
    assert "total" not in found.stages
    assert found.seconds == pytest.approx(1.5 + 0.2 + 16 + 4 + 1)
    assert found.basis == "from 3 clips made here"
    assert found.memory == 9


def test_another_size_and_other_steps_are_scaled_and_said() -> None:
    double = REQUEST.model_copy(update={"width": 512, "steps": 10})
    found = times([measured()], double, "e")
    assert found.stages["denoise"] == pytest.approx(8.0 * 2 / 2)
    assert found.stages["decode"] == pytest.approx(4.0)
    assert found.stages["text"] == pytest.approx(0.1)
    assert found.basis == "from 1 clip of another size made here"
    assert found.memory == 0, "a peak of another size is no peak of this one"


def test_frames_count_as_the_latents_do_where_denoising_is_reckoned() -> None:
    """The starter on two cores: 3.8 s for 25 frames of 20 steps, 1.9 s for 9, of which 25 to 9 would have made 1.4."""
    short = REQUEST.model_copy(update={"frames": 9})
    found = times([measured()], short, "e", frame_step=4)
    assert found.stages["denoise"] == pytest.approx(8.0 * 3 / 7)
    assert found.stages["decode"] == pytest.approx(2.0 * 9 / 25)


def test_loading_is_told_by_clips_that_loaded_and_waits_for_an_import_that_is_to_come() -> None:
    def clip(**timings: float) -> Measured:
        return replace(measured(), timings={"denoise": 8.0, **timings})

    stayed = [clip(**{"import": 4.0}) for _ in range(9)]
    assert "load" not in times(stayed, REQUEST, "e").stages
    loaded = [*stayed, clip(load=0.3), clip(load=0.5), clip(load=9.0)]
    assert times(loaded, REQUEST, "e").stages["load"] == 0.5
    assert times(loaded, REQUEST, "e", imported=False).stages["load"] == 4.5


def planned(dtype: str, linear: str = "stock", attention: str = "sdpa", threads: str = "2") -> str:
    choices = {"device": "cpu", "dtype": dtype, "linear": linear, "cache": "none", "attention": attention}
    stage = {"stage": "transformer"} | {name: {"engaged": value} for name, value in choices.items()}
    return engaged_key({"stages": [stage], "threads": {"engaged": threads}})


def test_of_other_accelerators_the_most_alike_are_reckoned_from() -> None:
    """After slow bf16 runs a faster plan was told twice too long."""
    earlier = [
        *[measured(9.0, engaged=planned("bfloat16"))] * 5,
        measured(1.0, engaged=planned("float32")),
        measured(4.0, engaged=planned("float32", linear="dynamic_int8")),
    ]
    for wanted, denoise in ((("float32", "stock", "sliced"), 8.0), (("float32", "dynamic_int8", "sliced"), 32.0)):
        found = times(earlier, REQUEST, planned(*wanted))
        assert found.stages["denoise"] == denoise
        assert found.basis == "from 1 clip with other accelerators made here"


def test_what_an_earlier_version_measured_with_the_same_plan_still_counts() -> None:
    earlier = [measured(9.0, engaged=planned("bfloat16")), measured(1.0, engaged=planned("float32").split()[0])]
    found = times(earlier, REQUEST, planned("float32"))
    assert (found.stages["denoise"], found.basis) == (8.0, "from 1 clip made here")


def test_other_accelerators_count_only_where_there_is_nothing_better() -> None:
    found = times([measured(9.0, engaged="other"), measured(1.0)], REQUEST, "e")
    assert found.stages["denoise"] == 8.0
    found = times([measured(9.0, engaged="other")], REQUEST, "e")
    assert found.stages["denoise"] == 72.0
    assert "with other accelerators" in found.basis


@given(
    st.lists(
        st.builds(measured, st.floats(0.01, 100), st.integers(1, 20).map(lambda k: 32 * k), st.integers(1, 50)),
        min_size=1,
        max_size=8,
    ),
    st.integers(2, 16),
    st.integers(1, 100),
)
def test_more_work_never_takes_less(earlier: list[Measured], wide: int, steps: int) -> None:
    less = REQUEST.model_copy(update={"width": 32 * wide, "steps": steps})
    more = less.model_copy(update={"steps": steps + 1})
    one, other = times(earlier, less, "e"), times(earlier, more, "e")
    assert one.seconds is not None
    assert other.seconds is not None
    assert 0 < one.seconds <= other.seconds


def test_guidance_doubles_the_forwards() -> None:
    assert forwards_of(REQUEST) == 40
    assert forwards_of(REQUEST.model_copy(update={"guidance": 1.0})) == 20
    assert forwards_of(REQUEST.model_copy(update={"prompt": " "})) == 20


def test_a_plan_s_key_is_what_it_engages() -> None:
    def plan(engaged: str, reason: str) -> dict[str, Any]:
        choice = {"stage": "vae", "setting": "vae", "engaged": engaged, "reasons": [reason]}
        return {"stages": [{"stage": "vae", "vae": choice}], "threads": {"engaged": "2"}}

    assert engaged_key(plan("stock", "a")) == engaged_key(plan("stock", "b"))
    assert engaged_key(plan("stock", "a")) != engaged_key(plan("fast", "a"))
    assert engaged_key(plan("stock", "a") | {"offload": {"engaged": "group"}}) != engaged_key(plan("stock", "a"))
    assert engaged_key({}) == engaged_key({})


# -- memory -----------------------------------------------------------------------------------------------------------


def component(folder: Path, shapes: dict[str, list[int]]) -> None:
    folder.mkdir(parents=True)
    header = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    text = json.dumps({"__metadata__": {"a": "b"}, **header}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def plan_of(dtype: str, vae: str = "direct_conv3d", device: str = "cpu") -> dict[str, Any]:
    def stage(name: str) -> dict[str, Any]:
        return {
            "stage": name,
            "dtype": {"engaged": dtype},
            "device": {"engaged": device},
            "vae": {"engaged": vae if name == "vae" else "stock"},
        }

    return {"stages": [stage(name) for name in ("text_encoder", "transformer", "vae")]}


TRAITS = ModelTraits(
    "Wan",
    "WanPipeline",
    (
        StageTraits("transformer", "T", heads=4, head_dim=32, tokens=1000),
        StageTraits("vae", "V", channels=16),
    ),
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    component(tmp_path / "transformer", {"a": [1000, 1000], "b": [1000]})
    component(tmp_path / "vae", {"c": [500, 2]})
    (tmp_path / "scheduler").mkdir()
    return tmp_path


def test_weights_are_counted_from_headers_alone(model: Path) -> None:
    assert parameters_in(model / "transformer") == 1_001_000
    assert memory_need(model, TRAITS, plan_of("float32"), REQUEST).weights == 4 * 1_002_000
    assert memory_need(model, TRAITS, plan_of("bfloat16"), REQUEST).weights == 2 * 1_002_000


@pytest.mark.parametrize("content", [b"", b"short", struct.pack("<Q", 10**15) + b"{}", struct.pack("<Q", 2) + b"[]"])
def test_a_broken_file_counts_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert parameters_in(tmp_path) == 0


def test_larger_clips_and_plainer_backends_need_more(model: Path) -> None:
    small = memory_need(model, TRAITS, plan_of("float32"), REQUEST).activations
    large = memory_need(model, TRAITS, plan_of("float32"), REQUEST.model_copy(update={"frames": 49})).activations
    stock = memory_need(model, TRAITS, plan_of("float32", "stock"), REQUEST).activations
    half = memory_need(model, TRAITS, plan_of("bfloat16"), REQUEST).activations
    assert half < small < large
    assert small < stock


def test_what_is_done_to_fit_counts(model: Path) -> None:
    plan, request = plan_of("float32"), REQUEST.model_copy(update={"width": 832, "height": 480})
    kept = memory_need(model, TRAITS, plan, request)
    tiled = memory_need(model, TRAITS, plan | {"tiling": {"engaged": "on"}}, request)
    assert tiled.activations < kept.activations
    component(model / "text_encoder", {"a": [4000, 1000]})
    both = memory_need(model, TRAITS, plan, REQUEST)
    freed = memory_need(model, TRAITS, plan | {"text_encoder": {"engaged": "free"}}, REQUEST)
    assert both.weights == 4 * 5_002_000
    assert freed.weights == 4 * 4_001_000, "the text encoder, and the VAE that is there with each"
    gpu = plan_of("float32", device="cuda:0")
    whole, moved = (
        memory_need(model, TRAITS, gpu | {"offload": {"engaged": way}}, REQUEST, 2**34) for way in ("none", "model")
    )
    assert whole.on_device - moved.on_device == 4 * 5_001_000, "decoding is the largest turn, beside the VAE alone"
    assert moved.host >= whole.host


def test_beside_a_gpu_the_host_holds_the_weights_only(model: Path) -> None:
    need = memory_need(model, TRAITS, plan_of("bfloat16", device="cuda:0"), REQUEST, gpu_memory=8 * 2**30)
    assert (need.device, need.device_memory) == ("cuda:0", 8 * 2**30)
    assert need.host == PROGRAM + need.weights
    assert replace(need, processes=2).host == 2 * need.host, "each of two that make it together holds them"


# -- all of it --------------------------------------------------------------------------------------------------------


def together(need: MemoryNeed, free: int, reckoned: Times | None = None, **more: Any) -> Estimate:
    return estimate(REQUEST, Path("/tmp"), need, reckoned or Times(), (free, "the machine"), **more)


def test_what_fits_is_not_blocked() -> None:
    found = together(MemoryNeed(50 * MIB, 70 * MIB), 2000 * MIB)
    assert found.fits
    refuse_blocked(found)
    assert (found.memory, found.memory_free) == (PROGRAM + 120 * MIB, 2000 * MIB)
    assert found.disk > 0
    assert found.disk_free > 0


@pytest.mark.parametrize(
    ("need", "knob"),
    [
        (MemoryNeed(50 * MIB, 4000 * MIB), "try a smaller size or fewer frames"),
        (MemoryNeed(4000 * MIB, 50 * MIB), "--accel dtype=bfloat16"),
    ],
)
def test_too_little_memory_says_how_much_and_which_knob(need: MemoryNeed, knob: str) -> None:
    found = together(need, 1000 * MIB)
    assert not found.fits
    with pytest.raises(CannotRunError) as refused:
        refuse_blocked(found)
    text = str(refused.value)
    assert "256x160, 25 frames" in text
    assert "4.4 GiB" in text
    assert "the machine has 1000 MiB free" in text
    assert knob in text


def test_too_small_a_gpu_is_said() -> None:
    need = MemoryNeed(6 * 2**30, 0, device="cuda:0", device_memory=8 * 2**30, on_device=10 * 2**30)
    found = together(need, 64 * 2**30)
    assert found.blocked[0].startswith("Not enough memory on cuda:0 for this clip")
    assert "10.0 GiB of 8.0 GiB" in found.blocked[0]


def test_a_measured_peak_counts_more_than_the_reckoning() -> None:
    reckoned = times([measured(memory=700 * MIB)], REQUEST, "e")
    found = together(MemoryNeed(50 * MIB, 4000 * MIB), 1000 * MIB, reckoned)
    assert found.fits
    assert found.memory == round(700 * MIB * 1.1)


def test_a_loaded_model_takes_no_time_to_load() -> None:
    reckoned = times([measured()], REQUEST, "e")
    cold, warm = (together(MemoryNeed(1, 1), 2000 * MIB, reckoned, loaded=loaded) for loaded in (False, True))
    assert cold.seconds is not None
    assert warm.seconds == pytest.approx(cold.seconds - 1.0)
    assert together(MemoryNeed(1, 1), 2000 * MIB, loaded=True).seconds is None


def test_a_folder_in_the_way_is_blocked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    need = MemoryNeed(1, 1)
    found = estimate(REQUEST, tmp_path / "file" / "clips", need, Times(), (2**40, "the machine"))
    assert "not a folder" in found.blocked[0]


def test_a_missing_encoder_is_blocked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Case 32: the page says it with the estimate, and no clip begins that could not be written."""
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "gone"))
    found = together(MemoryNeed(1, 1), 2**40)
    assert [reason.startswith(f"ffmpeg at {tmp_path / 'gone'} does not start") for reason in found.blocked] == [True]
