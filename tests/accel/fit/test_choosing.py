"""What is chosen to fit into memory: the first way that fits, in an order that costs least; figures in the reasons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel import make_plan
from accel.errors import PlanError
from accel.fit.choosing import DEVICE_RESERVE, LADDER, Way, by_stage, choose, on_device, on_host
from accel.fit.needs import PROGRAM, Needs, needs, stage_of
from accel.types import Fact, Gpu, LinearShape, ModelTraits, Plan, Preferences, Proof, Room, StageTraits
from tests import builders
from tests.accel.probing.test_limits import MEMORY_MAX, V2
from tests.accel.recorded import machine

GIB = 2**30
CPU = builders.machine()
GPU = replace(
    CPU,
    gpus=(Gpu(0, "nvidia", "a card", 24 * GIB, "sm_89", "1", "13", Fact(True, "", ""), Fact(True, "it ran", "")),),
    proofs={"gpu:0": Proof(True, "ran", {"linear_float32_ms": 2.0, "linear_bfloat16_ms": 1.0})},
    compiler="g++",
)
STAGES = (
    StageTraits("text_encoder", "UMT5EncoderModel", parameters=5_700_000_000, heads=64, head_dim=64, tokens=512),
    StageTraits("transformer", "Wan", parameters=14_300_000_000, heads=40, head_dim=128, tokens=32_760, blocks=40),
    StageTraits("vae", "AutoencoderKLWan", parameters=127_000_000, channels=96, tiles=True, frames_at_once=4),
)
COMPONENTS = {"text_encoder": 5_700_000_000, "transformer": 14_300_000_000, "vae": 127_000_000}
LARGE = ModelTraits("Wan", "WanPipeline", STAGES, COMPONENTS, 832, 480, 81)


def plan(machine: Any, host: float = 0, device: float = 0, traits: ModelTraits = LARGE, **wishes: str) -> Plan:
    """host, device: GiB that may be held."""
    preferences = Preferences(**{"dtype": "auto", **wishes})
    return make_plan(machine, traits, preferences, room=Room(int(host * GIB), int(device * GIB)))


def engaged(*args: Any, **more: Any) -> tuple[str, str, str]:
    found = plan(*args, **more)
    return found.offload.engaged, found.tiling.engaged, found.text_encoder.engaged


def test_room_decides_on_a_gpu() -> None:
    assert engaged(GPU, 200, 80) == ("none", "off", "keep")
    assert engaged(GPU, 200, 36) == ("model", "off", "keep")
    assert engaged(GPU, 200, 16) == ("group", "on", "keep")
    assert engaged(GPU, 30, 80) == ("none", "off", "free"), "the machine can't hold both, the card the rest"
    assert engaged(GPU, 200, 6)[0] == "sequential"


def test_room_decides_on_a_cpu() -> None:
    parts = {"text_encoder": 2 * GIB, "transformer": GIB, "vae": 10**8}  # in float32: 8, 4 and 0.4 GiB
    small = replace(LARGE, components=parts, width=256, height=160, frames=25)
    assert engaged(CPU, 64, traits=small) == ("none", "off", "keep")
    assert engaged(CPU, 12, traits=small) == ("none", "off", "free"), "no pixel changes"
    large = replace(small, width=832, height=480, frames=81)  # 41 GiB for decoding
    assert engaged(CPU, 24, traits=large) == ("none", "on", "keep")
    tight = plan(CPU, 16, traits=large)
    assert (tight.tiling.engaged, tight.text_encoder.engaged) == ("on", "free")
    assert "GiB of 16 GiB of the machine's memory" in " ".join(tight.tiling.reasons)
    assert "seams may show" in tight.tiling.reasons[0]


def test_a_container_s_limit_makes_the_plan_and_not_the_host_s_memory(tmp_path: Path) -> None:
    """Case 4: 6 GiB on a host of 64."""
    parts = {"text_encoder": GIB, "transformer": GIB // 2, "vae": 10**8}  # in float32: 4, 2 and 0.4 GiB
    stages = tuple(replace(stage, tokens=512 if stage.tokens else 0) for stage in STAGES)
    small = replace(LARGE, stages=stages, components=parts, width=128, height=64, frames=9)
    host = {"numbers": {"memory": 64 * GIB}}
    outside = make_plan(machine("skylake-avx2", tmp_path, **host), small)
    inside = make_plan(machine("skylake-avx2", tmp_path, **host, files={**V2, MEMORY_MAX: f"{6 * GIB}\n"}), small)
    assert (outside.text_encoder.engaged, inside.text_encoder.engaged) == ("keep", "free")
    assert "GiB of 6 GiB of the machine's memory" in " ".join(inside.text_encoder.reasons)
    assert "nothing makes it fit" not in " ".join(inside.text_encoder.reasons)


def test_unknown_memory_holds_everything() -> None:
    assert engaged(GPU) == engaged(CPU) == ("none", "off", "keep")


def test_without_a_room_machine_and_card_are_taken_as_free() -> None:
    assert make_plan(GPU, LARGE).offload.engaged == "sequential" or CPU.memory.usable >= 16 * GIB
    told = " ".join(make_plan(GPU, LARGE).offload.reasons)
    assert "of 24 GiB on a card" in told
    assert "of 16 GiB of the machine's memory" in told


def test_what_nothing_makes_fit_is_said_with_figures() -> None:
    found = plan(GPU, 4, 1)
    told = " ".join(found.offload.reasons)
    assert "nothing makes it fit" in told
    assert "of 1 GiB on a card" in told


def test_wishes_are_kept() -> None:
    assert engaged(GPU, 200, 80, offload="sequential", tiling="on", text_encoder="free") == ("sequential", "on", "free")
    assert engaged(GPU, 30, 80, text_encoder="keep")[2] == "keep"
    assert engaged(GPU, 200, 16, offload="none")[0] == "none"
    found = plan(GPU, 200, 80, offload="model")
    assert found.offload.requested == "model"
    assert found.offload.reasons[0] == "asked for"
    assert Plan.from_dict(found.to_dict()) == found


@pytest.mark.parametrize(
    ("machine", "wishes", "says"),
    [
        (GPU, {"offload": "disk"}, "offload=disk is not known, allowed are auto, none, model, group, sequential"),
        (GPU, {"tiling": "yes"}, "tiling=yes is not known, allowed are auto, on, off"),
        (GPU, {"text_encoder": "drop"}, "text_encoder=drop is not known, allowed are auto, keep, free"),
        (CPU, {"offload": "model"}, "offload=model can't be used here: the CPU computes in the machine's own memory"),
    ],
)
def test_wishes_that_can_t_be_are_refused(machine: Any, wishes: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError) as refused:
        plan(machine, **wishes)
    assert says in str(refused.value)


def test_what_does_not_go_together_is_refused_and_never_chosen() -> None:
    proved = replace(GPU, proofs={**GPU.proofs, "triton.kernel": Proof(True, "ran")})
    with pytest.raises(
        PlanError, match=r"offload=group can't be used here: blocks that compile=yes .* choose compile=no"
    ):
        plan(proved, 200, 80, offload="group", compile="yes")
    assert engaged(proved, 200, 16, compile="yes")[0] in ("none", "model")
    assert engaged(proved, 200, 80, offload="model", compile="yes")[0] == "model"


@pytest.mark.parametrize("linear", ["fp8", "torchao_int8", "onednn_bf16"])
@pytest.mark.parametrize("offload", ["model", "group", "sequential"])
def test_packed_weights_are_never_moved(linear: str, offload: str) -> None:
    """Case 47: packed weights and each way of offloading exclude each other, asked for or chosen."""
    stages = builders.plan(linear=linear).stages
    asked = choose(LARGE, stages, Preferences(offload=offload), Room(2**40, 2**30), GPU.gpus[0])
    assert asked.refusals == (
        f"offload={offload} can't be used here: weights packed by linear={linear} stay where they are; choose "
        "linear=stock",
    )
    assert choose(LARGE, stages, Preferences(), Room(2**40, 2**30), GPU.gpus[0]).offload.engaged == "none"


def test_packed_weights_leave_room_for_what_works_beside_them() -> None:
    linears = (LinearShape(13_000_000, 1000),)
    stages = (STAGES[0], replace(STAGES[1], linears=linears), STAGES[2])
    traits, dtypes = replace(LARGE, stages=stages), dict.fromkeys(COMPONENTS, "bfloat16")
    kept = Way("none", False, False)
    plain, packed = (
        on_device(needs(traits, dtypes, linears={"transformer": linear}), kept, True) for linear in ("stock", "fp8")
    )
    assert plain - packed == pytest.approx(13e9, rel=0.3)
    assert packed >= 2 * sum(COMPONENTS.values()), "all of them are there before they are packed"


def test_a_model_without_tiles_or_text() -> None:
    bare = replace(LARGE, stages=STAGES[1:2])
    with pytest.raises(PlanError, match="tiling=on can't be used here: a model without a VAE has no tiles"):
        plan(CPU, traits=bare, tiling="on")
    with pytest.raises(PlanError, match="text_encoder=free can't be used here: the model has none"):
        plan(CPU, traits=bare, text_encoder="free")
    assert engaged(CPU, 1, traits=bare) == ("none", "off", "keep")


def test_the_second_transformer_counts_and_each_takes_its_turn() -> None:
    both = replace(LARGE, components={**COMPONENTS, "transformer_2": 14_300_000_000, "image_encoder": 600_000_000})
    one, two = (needs(traits, dict.fromkeys(COMPONENTS, "bfloat16")) for traits in (LARGE, both))
    assert stage_of("transformer_2") == "transformer"
    assert stage_of("image_encoder") == stage_of("text_encoder_3") == "text_encoder"
    kept, moved = Way("none", False, False), Way("model", False, False)
    assert on_device(two, kept, True) - on_device(one, kept, True) == 2 * (14_300_000_000 + 600_000_000)
    assert on_device(two, moved, True) == on_device(one, moved, True)


sizes = st.integers(0, 2**40)


@given(
    st.builds(lambda t, d, v: {"text_encoder": t, "transformer": d, "vae": v}, sizes, sizes, sizes), sizes, sizes, sizes
)
def test_each_way_needs_no_more_than_keeping_everything(
    weights: dict[str, int], text: int, steps: int, vae: int
) -> None:
    found = Needs(
        weights, {"text_encoder": text, "transformer": steps, "vae": vae}, vae // 4, 1000, {"transformer": 40}
    )
    for gpu in (True, False):
        most = on_device(found, Way("none", False, False), gpu)
        for offload, tiling in LADDER if gpu else (("none", False), ("none", True)):
            for freed in (False, True):
                way = Way(offload, tiling, freed)
                assert on_device(found, way, gpu) <= most
                assert on_host(found, way, gpu) >= PROGRAM


@given(st.integers(1, 4096), st.integers(1, 4096), st.booleans())
def test_the_chosen_way_fits_unless_it_says_that_nothing_does(host: int, device: int, gpu: bool) -> None:
    found = make_plan(GPU if gpu else CPU, LARGE, room=Room(host * GIB // 16, device * GIB // 16))
    told = " ".join((*found.offload.reasons, *found.tiling.reasons))
    dtypes: dict[str, str] = {stage.stage: stage.dtype.engaged for stage in found.stages}
    need = needs(LARGE, dtypes, "stock" if gpu else found.stages[2].vae.engaged, on_cpu=not gpu)
    way = Way(found.offload.engaged, found.tiling.engaged == "on", found.text_encoder.engaged == "free")
    fits = on_host(need, way, gpu) <= host * GIB // 16
    fits = fits and (not gpu or on_device(need, way, gpu) + DEVICE_RESERVE <= device * GIB // 16)
    assert fits != ("nothing makes it fit" in told)


def test_stages_are_moved_as_they_can_be() -> None:
    table = {offload: [by_stage(offload, stage.stage) for stage in STAGES] for offload, _ in LADDER}
    assert table == {
        "none": ["none", "none", "none"],
        "model": ["model", "model", "model"],
        "group": ["sequential", "group", "model"],
        "sequential": ["sequential", "sequential", "model"],
    }
