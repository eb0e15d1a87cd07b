"""Plans for recorded machines, and what may never happen: auto failing, or a backend engaged that said no."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
