"""Plans for recorded machines, forced choices, and what may never happen: auto failing, or a backend engaged that said
no."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel import advice
from accel.backends import REGISTRY, backend
from accel.errors import PlanError
from accel.plan import ANY_MODEL, make_plan
from accel.readouts.ranking import Rank, Readouts
from accel.types import STAGES, Kind, LinearShape, Machine, ModelTraits, Plan, Preferences, StageTraits
from tests.accel.recorded import NAMES, engaged, machine, model, refusals

LONG, SHORT = 7800, 704

EXPECTED: list[tuple[str, int, dict[str, str]]] = [
    # machine, tokens, what is engaged. te, tr, vae = text encoder, transformer, VAE
    (
        "skylake-avx2",
        LONG,
        {
            "te.dtype": "float32",
            "te.linear": "stock",
            "tr.dtype": "float32",
            "tr.attention": "sdpa",
            "tr.linear": "stock",
            "vae.dtype": "float32",
            "vae.vae": "direct_conv3d",
            "vae.memory_format": "channels_last_3d",
            "threads": "4",
        },
    ),
    ("zen3", SHORT, {"tr.dtype": "float32", "tr.linear": "stock", "vae.vae": "direct_conv3d", "threads": "2"}),
    (
        "zen5",
        SHORT,
        {
            "te.dtype": "bfloat16",
            "te.linear": "onednn_bf16",
            "tr.dtype": "bfloat16",
            "tr.attention": "sdpa",
            "tr.linear": "onednn_bf16",
            "vae.dtype": "bfloat16",
            "vae.vae": "bf16_channels_last",
            "threads": "16",
        },
    ),
    (
        "sapphire-rapids",
        LONG,
        {
            "te.dtype": "bfloat16",
            "te.linear": "onednn_bf16",
            "tr.attention": "sgl_amx",
            "tr.linear": "stock",
            "vae.vae": "bf16_channels_last",
            "threads": "112",
        },
    ),
    ("sapphire-rapids", SHORT, {"tr.attention": "sdpa", "tr.linear": "onednn_bf16", "tr.dtype": "bfloat16"}),
    (
        "lying-amx",
        LONG,
        {
            "te.dtype": "float32",
            "tr.dtype": "float32",
            "tr.attention": "sdpa",
            "tr.linear": "stock",
            "vae.dtype": "float32",
            "vae.vae": "direct_conv3d",
        },
    ),
    ("graviton3", LONG, {"tr.dtype": "bfloat16", "tr.linear": "stock", "vae.dtype": "float32"}),
    ("apple-m3", LONG, {"tr.device": "mps", "tr.dtype": "float32", "tr.attention": "sdpa", "vae.vae": "stock"}),
    (
        "h100",
        LONG,
        {
            "te.device": "cuda:0",
            "tr.device": "cuda:0",
            "tr.dtype": "bfloat16",
            "vae.dtype": "float32",
            "vae.vae": "stock",
        },
    ),
    ("h200", LONG, {"tr.device": "cuda:0", "tr.dtype": "bfloat16", "tr.linear": "stock"}),
    ("rtx4090-windows", LONG, {"tr.device": "cuda:0", "tr.dtype": "bfloat16"}),
    ("rtx5090", LONG, {"tr.device": "cuda:0", "tr.dtype": "bfloat16"}),
    ("rtx5090-old-torch", LONG, {"tr.device": "cpu", "tr.dtype": "bfloat16", "tr.linear": "onednn_bf16"}),
    ("mi300x", LONG, {"tr.device": "cuda:0", "tr.dtype": "bfloat16", "threads": "96"}),
    ("mi355x", LONG, {"tr.device": "cuda:0", "tr.dtype": "bfloat16"}),
]


@pytest.mark.parametrize(("name", "tokens", "wanted"), EXPECTED, ids=lambda value: str(value)[:20])
def test_auto_on_recorded_machines(name: str, tokens: int, wanted: dict[str, str], tmp_path: Path) -> None:
    plan = make_plan(machine(name, tmp_path), model(tokens))
    assert {where: engaged(plan, where) for where in wanted} == wanted


@pytest.mark.parametrize("name", NAMES)
def test_every_choice_has_a_reason_and_survives_json(name: str, tmp_path: Path) -> None:
    plan = make_plan(machine(name, tmp_path), model())
    for choice in plan.choices():
        assert choice.engaged, choice
        assert choice.reasons, choice
        assert all(reason.strip() for reason in choice.reasons), choice
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize("name", NAMES)
def test_auto_is_never_approximate(name: str, tmp_path: Path) -> None:
    approximate = {item.name for item in REGISTRY if not item.exact}
    assert approximate, "int8 backends exist"
    plan = make_plan(machine(name, tmp_path), model())
    assert not approximate & {choice.engaged for choice in plan.choices()}


# -- properties --

SHAPES = st.lists(st.builds(LinearShape, st.integers(1, 9000), st.integers(1, 9000), st.integers(1, 50)), max_size=4)
DTYPES = st.lists(st.sampled_from(["float32", "bfloat16", "float16"]), min_size=1, max_size=3, unique=True)


@st.composite
def models(draw: st.DrawFn) -> ModelTraits:
    stages = [
        StageTraits(
            stage=stage,
            class_name="Model",
            dtypes=tuple(draw(DTYPES)),
            heads=draw(st.integers(0, 64)),
            head_dim=draw(st.integers(0, 300)),
            tokens=draw(st.integers(0, 200_000)),
            kv_tokens=draw(st.integers(0, 200_000)),
            attention_calls=draw(st.integers(0, 80)),
            reachable=draw(st.booleans()),
            linears=tuple(draw(SHAPES)),
            conv3d=draw(st.integers(0, 60)),
        )
        for stage in draw(st.lists(st.sampled_from(STAGES), unique=True))
    ]
    return ModelTraits("Family", "Pipeline", tuple(stages))


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Machine]:
    return {name: machine(name, tmp_path_factory.mktemp(name)) for name in NAMES}


@given(traits=models(), name=st.sampled_from(NAMES))
def test_auto_never_fails_and_engages_nothing_that_said_no(
    traits: ModelTraits, name: str, machines: dict[str, Machine]
) -> None:
    found = machines[name]
    plan = make_plan(found, traits)
    kinds: tuple[Kind, ...] = ("attention", "linear", "vae")
    for stage, kind in itertools.product(plan.stages, kinds):
        chosen, asked = getattr(stage, kind).engaged, traits.stage(stage.stage)
        assert asked is not None
        assert stage.dtype.engaged in asked.dtypes
        if chosen != "stock":
            item = backend(kind, chosen)
            assert item.why_not(found, asked) == []
            assert stage.dtype.engaged in item.dtypes
            assert stage.device.engaged.partition(":")[0] in item.devices


WORDS = st.sampled_from(["auto", "sdpa", "stock", "sgl_amx", "onednn_bf16", "dynamic_int8", "direct_conv3d", "", "x"])


@given(
    wishes=st.builds(
        Preferences, WORDS, WORDS, WORDS, WORDS, st.sampled_from(["auto", "bf16", "float32", "x"]), WORDS, WORDS, WORDS
    ),
    name=st.sampled_from(NAMES),
)
def test_a_wish_is_kept_or_refused_with_reasons(wishes: Preferences, name: str, machines: dict[str, Machine]) -> None:
    refused: list[str] = []
    try:
        plan = make_plan(machines[name], model(), wishes)
    except PlanError as error:
        refused = [*error.reasons, str(error)]
    if refused:
        assert refused[-1] == "; ".join(refused[:-1])
        return
    transformer = plan.stage("transformer")
    assert transformer is not None
    for wish, choice in ((wishes.attention, transformer.attention), (wishes.linear, transformer.linear)):
        assert wish in ("auto", choice.engaged)


# -- forced choices --


def test_a_forced_backend_that_can_not_run_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    (reason,) = refusals(machine("zen5", tmp_path), attention="sgl_amx", dtype="bf16")
    assert reason == "attention=sgl_amx can't be used here: this CPU has no amx_tile"
    bare = machine("sapphire-rapids", tmp_path, distributions={"sglang-kernel-cpu": None})
    (reason,) = refusals(bare, attention="sgl_amx", dtype="bf16")
    assert reason == f"attention=sgl_amx can't be used here: sgl_kernel is not installed; {advice.SGL_CPU}"


def test_a_backend_for_another_device_says_which_one_and_where_the_work_is(tmp_path: Path) -> None:
    (reason,) = refusals(machine("zen5", tmp_path), attention="cudnn", dtype="bf16")
    assert reason == "attention=cudnn can't be used here: it needs a GPU, and the transformer is planned for the CPU"


def test_all_refusals_come_at_once(tmp_path: Path) -> None:
    found = refusals(machine("zen3", tmp_path), attention="x", linear="y", compile="perhaps", threads="0", device="tpu")
    wishes = ["attention=x", "compile=perhaps", "device=tpu", "linear=y", "threads=0"]
    assert sorted(reason.partition(" ")[0] for reason in found) == wishes
    assert all("allowed are" in reason or "possible are" in reason for reason in found)


def test_of_unknown_backends_those_that_run_here_are_told(tmp_path: Path) -> None:
    (reason,) = refusals(machine("zen5", tmp_path), attention="wonder")
    assert reason.startswith("attention=wonder is not known: possible are auto, sdpa; `python -m accel.backends` lists")
    (reason,) = refusals(machine("sapphire-rapids", tmp_path), attention="wonder")
    assert "possible are auto, sdpa, sgl_amx;" in reason


def test_an_approximate_backend_is_engaged_when_forced_and_says_so(tmp_path: Path) -> None:
    plan = make_plan(machine("skylake-avx2", tmp_path), model(), Preferences(linear="dynamic_int8"))
    stage = plan.stage("transformer")
    assert stage is not None
    assert stage.linear.engaged == "dynamic_int8"
    assert any("approximate" in reason for reason in stage.linear.reasons)
    encoder = plan.stage("text_encoder")
    assert encoder is not None
    assert encoder.linear.engaged == "stock", "the text encoder has a toggle of its own"


def test_a_forced_backend_decides_the_dtype_of_its_stage_alone(tmp_path: Path) -> None:
    plan = make_plan(machine("zen5", tmp_path), model(), Preferences(linear="dynamic_int8"))
    assert engaged(plan, "tr.dtype") == "float32"
    assert engaged(plan, "te.dtype") == "bfloat16"
    stage = plan.stage("transformer")
    assert stage is not None
    assert "linear=dynamic_int8 was asked for" in stage.dtype.reasons[0]


def test_two_forced_choices_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    found = refusals(machine("sapphire-rapids", tmp_path), linear="sgl_amx_int8", dtype="float32")
    assert any("was asked for too" in reason for reason in found)


def test_a_model_that_bypasses_the_dispatcher(tmp_path: Path) -> None:
    reach = "CogVideoXTransformer3DModel does not ask diffusers' dispatcher: 0 of 60 calls can be reached"
    traits = model(reachable=False, reach=reach)
    found = machine("sapphire-rapids", tmp_path)
    stage = make_plan(found, traits).stage("transformer")
    assert stage is not None
    assert (stage.attention.engaged, stage.attention.reasons) == ("stock", (reach,))
    assert reach in refusals(found, traits, attention="sgl_amx")[0]
    forced = make_plan(found, traits, Preferences(attention="sdpa")).stage("transformer")
    assert forced is not None
    assert (forced.attention.requested, forced.attention.engaged) == ("sdpa", "stock"), "it calls PyTorch's by itself"
    assert reach in forced.attention.reasons


def test_only_the_transformers_attention_is_exchanged(tmp_path: Path) -> None:
    plan = make_plan(machine("sapphire-rapids", tmp_path), model(LONG), Preferences(attention="sgl_amx"))
    assert engaged(plan, "tr.attention") == "sgl_amx"
    assert engaged(plan, "te.attention") == "stock"
    assert engaged(plan, "vae.attention") == "stock"


def test_compile_needs_a_compiler(tmp_path: Path) -> None:
    assert "C++ compiler" in refusals(machine("zen5", tmp_path, programs=[]), compile="yes")[0]
    plan = make_plan(machine("zen5", tmp_path), model(), Preferences(compile="yes"))
    assert [engaged(plan, f"{stage}.compile") for stage in ("te", "tr", "vae")] == ["no", "yes", "no"]
    assert engaged(make_plan(machine("zen5", tmp_path), model()), "tr.compile") == "no"
    assert "triton" in refusals(machine("rtx4090-windows", tmp_path), compile="yes")[0]


def test_the_packed_path_must_beat_torch_in_the_machines_own_test(tmp_path: Path) -> None:
    """Case 2: AVX512_BF16 without AMX (sglang issue 11044) fell to a path 30 times slower, with no message."""
    slow = {"result": {"ok": True, "reason": "ran", "figures": {"linear_plain_ms": 0.6, "linear_packed_ms": 18.0}}}
    stage = make_plan(machine("zen5", tmp_path, runs={"packed_bf16": slow}), model()).stage("transformer")
    assert stage is not None
    assert stage.linear.engaged == "stock"
    assert "not onednn_bf16: slower in the machine's own test: 18 ms, 0.6 ms without" in stage.linear.reasons
    quick = make_plan(machine("zen5", tmp_path / "quick"), model()).stage("transformer")
    assert quick is not None
    assert "in the machine's own test 0.58 ms, 0.62 ms without" in quick.linear.reasons


@pytest.mark.parametrize(("packed", "wanted"), [(0.5, "onednn_bf16"), (0.75, "onednn_bf16"), (0.8, "stock")])
def test_a_difference_inside_the_tests_spread_changes_no_choice(packed: float, wanted: str, tmp_path: Path) -> None:
    result = {"ok": True, "reason": "ran", "figures": {"linear_plain_ms": 0.62, "linear_packed_ms": packed}}
    found = machine("zen5", tmp_path, runs={"packed_bf16": {"result": result}})
    assert engaged(make_plan(found, model()), "tr.linear") == wanted


@pytest.mark.parametrize(
    ("wish", "engaged_device"), [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:3", "cuda:3"), ("cpu", "cpu")]
)
def test_devices(wish: str, engaged_device: str, tmp_path: Path) -> None:
    plan = make_plan(machine("mi300x", tmp_path), model(), Preferences(device=wish))
    assert engaged(plan, "tr.device") == engaged_device


def test_a_gpu_that_can_not_be_used_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (reason,) = refusals(machine("rtx5090-old-torch", tmp_path), device="cuda:0")
    assert "allowed are auto, cpu" in reason
    assert "no sm_120 code" in reason
    assert "pip install" in reason
    stage = make_plan(machine("rtx5090-old-torch", tmp_path), model()).stage("transformer")
    assert stage is not None
    assert "no sm_120 code" in stage.device.reasons[0]


def test_what_apple_s_gpu_can_not_compute_goes_to_the_cpu_and_that_is_said(tmp_path: Path) -> None:
    """Case 52: found out by a small run of a product and a convolution, before any clip."""
    assert engaged(make_plan(machine("apple-m3", tmp_path / "can"), model()), "tr.device") == "mps"
    run = {"result": {"ok": False, "reason": "conv3d is not implemented for MPS"}}
    plan = make_plan(machine("apple-m3", tmp_path / "can't", runs={"gpu:mps": run}), model())
    for stage in plan.stages:
        assert stage.device.engaged == "cpu"
        assert "conv3d is not implemented for MPS" in stage.device.reasons[0]


CHOICES = (
    *((item.kind, item.name) for item in REGISTRY),
    *(("text_encoder_linear", item.name) for item in REGISTRY if item.kind == "linear"),
    *(("offload", name) for name in ("none", "model", "group", "sequential")),
    *(("dtype", name) for name in ("fp32", "bf16", "fp16")),
    ("attention", "fp8"),
    ("tiling", "on"),
    ("text_encoder", "free"),
    ("threads", "1"),
    ("device", "cuda"),
)


@given(name=st.sampled_from(NAMES), wishes=st.lists(st.sampled_from(CHOICES), max_size=3, unique_by=lambda it: it[0]))
def test_what_any_model_is_refused_no_model_gets(
    name: str, wishes: list[tuple[str, str]], machines: dict[str, Machine]
) -> None:
    """Case 7: else a model would not be fetched that could have run."""
    found = machines[name]
    try:
        make_plan(found, ANY_MODEL, Preferences(**dict(wishes)))
    except PlanError:
        refusals(found, None, **dict(wishes))


# -- readouts --


def test_readouts_decide_once_they_exist(tmp_path: Path) -> None:
    found = machine("sapphire-rapids", tmp_path)
    measured = (
        Rank("stock", True, 0.040, "reference"),
        Rank("sgl_amx_int8", False, 0.005, "faster"),
        Rank("sgl_amx_bf16", True, 0.031, "faster"),
    )
    readouts = Readouts({("transformer", "linear", "bfloat16", "cpu"): measured})
    stage = make_plan(found, model(LONG), readouts=readouts).stage("transformer")
    assert stage is not None
    assert stage.linear.engaged == "sgl_amx_bf16", "int8 is faster, and approximate"
    assert "measured here: sgl_amx_int8 5 ms, sgl_amx_bf16 31 ms, stock 40 ms" in stage.linear.reasons


@pytest.mark.parametrize(
    ("rank", "linear", "told"),
    [
        (Rank("onednn_bf16", True, 2.0, "slower", "slower measured here"), "stock", "slower measured here"),
        (Rank("onednn_bf16", True, 0.98, "no gain", "no gain measured here"), "stock", "no gain measured here"),
        (Rank("onednn_bf16", True, 0.7, "faster"), "onednn_bf16", "the fastest measured on this machine"),
    ],
)
def test_without_amx_a_packed_path_is_what_was_measured(rank: Rank, linear: str, told: str, tmp_path: Path) -> None:
    """Case 2: AVX512_BF16 without AMX, once this machine was measured: nothing else decides, and the reason says so."""
    ranks = (Rank("stock", True, 1.0, "reference"), rank)
    readouts = Readouts({(stage, "linear", "bfloat16", "cpu"): ranks for stage in ("text_encoder", "transformer")})
    stage = make_plan(machine("zen5", tmp_path), model(), readouts=readouts).stage("transformer")
    assert stage is not None
    assert stage.linear.engaged == linear
    assert told in "; ".join(stage.linear.reasons)


@dataclass(frozen=True)
class Wonder:
    """A backend that always can, for orders that only readouts can give."""

    name: str = "wonder"
    title: str = "Wonder"
    kind: Kind = "attention"
    exact: bool = True
    reference: bool = False
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    devices: tuple[str, ...] = ("cpu",)
    runs_on: str = "any machine"
    comes_with: str = "PyTorch"

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        return []


def test_a_backend_outside_the_table_needs_a_wish_or_a_readout(tmp_path: Path) -> None:
    found, registry = machine("zen3", tmp_path), (*REGISTRY, Wonder())
    options: dict[str, Any] = {"registry": registry}
    assert engaged(make_plan(found, model(), **options), "tr.attention") == "sdpa"
    assert engaged(make_plan(found, model(), Preferences(attention="wonder"), **options), "tr.attention") == "wonder"
    ranks = (Rank("sdpa", True, 2.0, "reference"), Rank("wonder", True, 1.0, "faster"))
    readouts = Readouts({("transformer", "attention", "float32", "cpu"): ranks})
    assert engaged(make_plan(found, model(), readouts=readouts, **options), "tr.attention") == "wonder"


def test_preferences_are_text() -> None:
    with pytest.raises(TypeError, match=r"Preferences\.linear must be text, got 3"):
        Preferences(linear=3)  # type: ignore[arg-type]
