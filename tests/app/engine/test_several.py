"""Who may share a clip is told before anything loads: GPUs there are, heads, models, caches, accelerators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import accel
from accel.parallel import sharing
from accel.types import Machine, ModelTraits, Preferences
from app.engine import several
from app.engine.watcher import Stop
from app.errors import CannotRunError, PlanRefusedError
from app.request import AccelPreferences, GenerationRequest
from tests.accel.recorded import machine, model


@pytest.fixture(scope="module")
def h200(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return machine("h200", tmp_path_factory.mktemp("probed"))


def with_gpus(found: Machine, count: int) -> Machine:
    """An H200's machine with as many of them."""
    return replace(found, gpus=tuple(replace(found.gpus[0], index=index) for index in range(count)))


def asked(gpus: int, guidance: float = 4.0) -> GenerationRequest:
    return GenerationRequest(prompt="a ball", guidance=guidance, accel=AccelPreferences(gpus=gpus))


def with_heads(heads: int, kind: str = "WanTransformer3DModel") -> ModelTraits:
    traits = model()
    stages = tuple(
        replace(one, heads=heads, kv_heads=heads, class_name=kind) if one.stage == "transformer" else one
        for one in traits.stages
    )
    return replace(traits, stages=stages)


def planned(shared: several.Sharing, on: Machine, **wishes: Any) -> accel.Plan:
    return shared.plan(lambda traits, preferences: accel.make_plan(on, traits, preferences), Preferences(**wishes))


@pytest.mark.parametrize(
    ("there", "wanted", "said"),
    [
        (1, 2, "gpus=2: this machine has one GPU that can be used; take at most 1."),
        (2, 4, "gpus=4: this machine has 2 GPUs that can be used; take at most 2."),
        (0, 2, "gpus=2: this machine has no GPU that can be used here; leave it at 1, which runs on the CPU."),
    ],
)
def test_too_few_gpus_are_one_sentence(
    there: int, wanted: int, said: str, monkeypatch: pytest.MonkeyPatch, h200: Machine
) -> None:
    monkeypatch.delenv(several.ON_CPU, raising=False)
    with pytest.raises(CannotRunError) as refused:
        several.sharing_for(with_gpus(h200, there), with_heads(40), asked(wanted))
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("traits", "gpus", "guidance", "said"),
    [
        (with_heads(40, "LTXVideoTransformer3DModel"), 2, 4.0, "LTXVideoTransformer3DModel can't be run on several"),
        (with_heads(2), 8, 4.0, "2 heads can't be dealt to 4 GPUs: take at most 2"),
        (with_heads(2), 3, 4.0, "2 heads can't be dealt to 3 GPUs"),
    ],
)
def test_models_that_cannot_be_shared_are_refused(
    traits: ModelTraits, gpus: int, guidance: float, said: str, h200: Machine
) -> None:
    with pytest.raises(PlanRefusedError, match=said):
        several.sharing_for(with_gpus(h200, 8), traits, asked(gpus, guidance))


def test_each_rank_plans_with_its_own_heads(h200: Machine) -> None:
    shared = several.sharing_for(with_gpus(h200, 8), with_heads(40), asked(8))
    assert shared is not None
    assert [one.stage("transformer").heads for one in shared.seen] == [10]  # type: ignore[union-attr]
    assert shared.how == "guidance's two branches apart, each forward's tokens dealt to 4"
    uneven = several.sharing_for(with_gpus(h200, 8), with_heads(40), asked(3))
    assert uneven is not None
    assert [one.stage("transformer").heads for one in uneven.seen] == [14, 13]  # type: ignore[union-attr]


def test_every_rank_has_the_plan_on_its_own_device(h200: Machine) -> None:
    on = with_gpus(h200, 4)
    shared = several.sharing_for(on, with_heads(40), asked(2))
    assert shared is not None
    plan = planned(shared, on)
    devices = [{stage.device.engaged for stage in shared.on(plan, rank).stages} for rank in range(2)]
    assert devices == [{"cuda:0"}, {"cuda:1"}]
    assert several.ran_on(on, "cuda:0", shared) == f"2 x {on.gpus[0].name}"
    assert several.ran_on(on, "cuda:0", None) == on.gpus[0].name


def test_caches_that_look_at_tokens_are_refused_where_tokens_are_shared(h200: Machine) -> None:
    on = with_gpus(h200, 4)
    known = replace(with_heads(40).stage("transformer"), caches={"first_block": ""}, blocks=40)  # type: ignore[type-var]
    traits = with_heads(40)
    traits = replace(traits, stages=tuple(known if one.stage == "transformer" else one for one in traits.stages))  # type: ignore[misc]
    tokens, branches = (several.sharing_for(on, traits, asked(2, guidance)) for guidance in (1.0, 4.0))
    assert tokens is not None
    assert branches is not None
    with pytest.raises(PlanRefusedError, match=r"gpus=2: cache=first_block.* looks at tokens"):
        planned(tokens, on, cache="first_block")
    plan = planned(branches, on, cache="first_block").stage("transformer")
    assert plan is not None
    assert plan.cache.engaged.startswith("first_block")


def test_gpus_of_one_architecture_are_taken_and_no_others(h200: Machine) -> None:
    """One plan is made for all of them: FP8 for instance is not there on every one."""
    older = replace(h200.gpus[0], name="NVIDIA A100", arch="sm_80")
    mixed = replace(h200, gpus=tuple(replace(gpu, index=at) for at, gpu in enumerate((older, *h200.gpus, *h200.gpus))))
    assert several.alike(mixed) == list(mixed.gpus[1:])
    shared = several.sharing_for(mixed, with_heads(40), asked(2))
    assert shared is not None
    assert shared.devices == ("cuda:1", "cuda:2")
    with pytest.raises(CannotRunError) as refused:
        several.sharing_for(mixed, with_heads(40), asked(3, guidance=1.0))
    assert str(refused.value) == (
        "gpus=3: GPUs that share a clip must be of one architecture, and this machine has NVIDIA A100, "
        f"{h200.gpus[0].name}; take at most 2."
    )


def test_gpus_that_can_not_be_used_and_apple_s_are_not_alike(h200: Machine) -> None:
    (gpu,) = h200.gpus
    broken = replace(gpu, usable=replace(gpu.usable, value=False))
    assert several.alike(replace(h200, gpus=(broken, gpu))) == [gpu]
    assert several.alike(replace(h200, gpus=(replace(gpu, vendor="apple"),) * 2)) == []


def test_attention_that_not_all_ranks_would_choose_is_said_to_be_nobodys_wish(h200: Machine) -> None:
    on = with_gpus(h200, 3)
    shared = several.sharing_for(on, with_heads(40), asked(3))
    assert shared is not None

    def make(traits: ModelTraits, wishes: Preferences) -> accel.Plan:
        plan = accel.make_plan(on, traits, wishes)
        if wishes.attention != "auto" or traits.stage("transformer").heads != 14:  # type: ignore[union-attr]
            return plan
        stages = tuple(replace(one, attention=replace(one.attention, engaged="fa3")) for one in plan.stages)
        return replace(plan, stages=stages)

    choice = shared.plan(make, Preferences()).stage("transformer").attention  # type: ignore[union-attr]
    assert (choice.requested, choice.engaged) == ("auto", "sdpa")
    assert choice.reasons[0].startswith("it would be fa3 here and sdpa there, since not all GPUs have as many heads")


def test_a_recorded_step_cache_that_can_not_be_shared_is_left_out(h200: Machine) -> None:
    tokens, branches = (several.sharing_for(with_gpus(h200, 2), with_heads(40), asked(2, one)) for one in (1.0, 4.0))
    assert tokens is not None
    assert branches is not None
    recorded = Preferences(cache="first_block", attention="sdpa")
    assert tokens.possible(recorded) == Preferences(attention="sdpa")
    assert branches.possible(recorded) == recorded


def test_one_gpu_is_not_shared(h200: Machine) -> None:
    assert several.sharing_for(with_gpus(h200, 1), with_heads(40), asked(1)) is None


@pytest.mark.parametrize(("count", "guided", "share"), [(2, True, 1), (2, False, 2), (3, True, 3), (8, True, 4)])
def test_among_how_many_tokens_are_dealt(count: int, guided: bool, share: int) -> None:
    assert sharing.token_ranks(count, guided) == share


@pytest.mark.parametrize(("found", "resumes"), [([True, False], True), ([False, True], False)])
def test_all_ranks_go_on_from_latents_where_the_first_has_them(
    monkeypatch: pytest.MonkeyPatch, found: list[bool], resumes: bool
) -> None:
    """Case 52: it alone decodes; the others' devices have other names, so they look for other files."""
    from app.engine.together import Together

    together = Together.__new__(Together)
    words: list[dict[str, Any]] = [{"is": "going on", "found": one} for one in found]
    monkeypatch.setattr(together, "_exchange", lambda word: words)
    assert [together.resumes(one) for one in found] == [resumes] * 2
    monkeypatch.setattr(together, "_exchange", lambda word: [word, {"is": "stopped"}])
    with pytest.raises(Stop):
        together.resumes(True)
