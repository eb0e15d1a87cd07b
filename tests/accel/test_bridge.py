"""diffusers' dispatcher: each call arrives with its mask, unreachable ones are counted, all is undone."""

from __future__ import annotations

import copy
import gc
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

from accel import bridge
from accel.backends import backend
from accel.checking.line import relative
from accel.contract import AttentionCall, Refused
from accel.install import install
from accel.ops import ATTENTION, AttentionSlot
from accel.report import Tally
from tests import builders


class Recording:
    """The reference, noting what it is given; refuses calls with a mask if told to."""

    name = "recording"
    reference = False

    def __init__(self, refuse_masks: bool = False) -> None:
        self.calls: list[AttentionCall] = []
        self.refuse_masks = refuse_masks

    def run(self, call: AttentionCall) -> torch.Tensor:
        self.calls.append(call)
        if self.refuse_masks and call.mask is not None:
            raise Refused("a mask")
        sdpa: Any = backend("attention", "sdpa")
        return sdpa.run(call)


def put(model: Any, recording: Recording) -> tuple[bridge.AttentionPatch, Tally]:
    tally = Tally("transformer", "attention", recording.name)
    return bridge.AttentionPatch(model, "transformer", AttentionSlot(recording, tally)), tally  # type: ignore[arg-type]


def registry() -> tuple[Any, ...]:
    maps = (_AttentionBackendRegistry._backends, _AttentionBackendRegistry._constraints)
    return (
        *(dict(entries) for entries in maps),
        dict(_AttentionBackendRegistry._supported_arg_names),
        set(_AttentionBackendRegistry._supports_context_parallel),
        _AttentionBackendRegistry._active_backend,
        dict(AttentionBackendName._member_map_),
        dict(AttentionBackendName._value2member_map_),
    )


def run(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    with torch.inference_mode():
        return model(**inputs)[0]


def test_this_diffusers_is_known() -> None:
    assert bridge.why_not() == ""


@pytest.mark.parametrize(
    ("version", "words"), [("0.43.0", "0.42.x"), ("0.41.2", "install diffusers 0.42.1"), ("0.420.0", "not one whose")]
)
def test_another_diffusers_is_refused_in_one_sentence(
    version: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert words in bridge.why_not()
    assert "\n" not in bridge.why_not()


def test_a_changed_dispatcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_AttentionBackendRegistry, "_constraints")
    assert "has changed its attention dispatcher: no _constraints" in bridge.why_not()


def test_wan_calls_arrive_and_everything_is_undone() -> None:
    model, before, slots = builders.wan_transformer(), registry(), len(ATTENTION)
    want = run(model, builders.wan_inputs())
    recording = Recording()
    patch, tally = put(model, recording)
    got = run(model, builders.wan_inputs())
    assert torch.equal(got, want)
    # two blocks of self and cross attention: 32 video tokens, 12 of text
    shapes = [(tuple(call.query.shape), call.key.shape[1], call.mask) for call in recording.calls]
    assert shapes == [((1, 32, 2, 32), 32, None), ((1, 32, 2, 32), 12, None)] * 2
    assert (patch.reached, tally.served_calls, tally.fallen_back, patch.unreached) == (4, 4, 0, None)
    patch.undo()
    assert registry() == before
    assert len(ATTENTION) == slots
    assert not any("_attention_backend" in vars(m.processor) for _, m in bridge.attention_modules(model))
    assert torch.equal(run(model, builders.wan_inputs()), want)
    assert len(recording.calls) == 4


def test_masks_arrive() -> None:
    """LTX hides padded text with a float mask; a backend that never saw it would be off by 0.05."""
    model = builders.ltx_transformer()
    want = run(model, builders.ltx_inputs())
    inputs = builders.ltx_inputs()
    inputs["encoder_attention_mask"] = torch.ones_like(inputs["encoder_attention_mask"])
    unmasked = run(model, inputs)
    for refuse in (False, True):
        recording = Recording(refuse_masks=refuse)
        patch, tally = put(model, recording)
        got = run(model, builders.ltx_inputs())
        patch.undo()
        masked = [call for call in recording.calls if call.mask is not None]
        print(f"with mask {relative(got, want):.1e}, without it would be {relative(unmasked, want):.1e}")
        assert torch.equal(got, want)
        assert relative(unmasked, want) > 1e-3
        assert len(masked) == 2
        assert (tally.served_calls, tally.fallen_back) == ((2, 2) if refuse else (4, 0))
        assert dict(tally.reasons) == ({"a mask": 2} if refuse else {})


@pytest.mark.parametrize(
    ("build", "inputs", "pooling"),
    [
        (builders.cogvideox_transformer, builders.cogvideox_inputs, 0),
        # Mochi pools its text by one attention of its own, which is no attention module
        (builders.mochi_transformer, builders.mochi_inputs, 1),
    ],
)
@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_models_that_pass_the_dispatcher_by_are_counted(
    build: Any, inputs: Any, pooling: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, slots = build(), len(ATTENTION)
    want = run(model, inputs())
    calls: list[int] = []
    stock = F.scaled_dot_product_attention

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls.append(1)
        return stock(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    patch, tally = put(model, Recording())
    assert torch.equal(run(model, inputs()), want)
    unreached = patch.unreached
    assert unreached is not None
    print(unreached.summary())
    assert patch.reached == 0
    assert tally.calls == 0
    assert unreached.calls == len(calls) - pooling == 2
    assert unreached.summary().startswith("not reachable, 0 of 2 calls: ")
    assert len(ATTENTION) == slots
    patch.undo()
    run(model, inputs())
    assert unreached.calls == 2


def test_the_users_own_choice_comes_back() -> None:
    model = builders.wan_transformer()
    mine = AttentionBackendName._NATIVE_MATH
    for _, module in bridge.attention_modules(model)[:2]:
        module.processor._attention_backend = mine
    patch, _ = put(model, Recording())
    patch.undo()
    fields = [vars(module.processor).get("_attention_backend") for _, module in bridge.attention_modules(model)]
    assert fields == [mine, mine, None, None]


def test_other_models_are_left_alone() -> None:
    one, other = builders.wan_transformer(), builders.wan_transformer()
    recording = Recording()
    patch, _ = put(one, recording)
    run(other, builders.wan_inputs())
    F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 4, 8))
    assert recording.calls == []
    patch.undo()


def test_two_models_at_once_and_undone_in_any_order() -> None:
    before = registry()
    models = [builders.wan_transformer() for _ in range(2)]
    recordings = [Recording(), Recording()]
    patches = [put(model, recording)[0] for model, recording in zip(models, recordings, strict=True)]
    run(models[1], builders.wan_inputs())
    assert [len(recording.calls) for recording in recordings] == [0, 4]
    patches[0].undo()
    run(models[1], builders.wan_inputs())
    assert [len(recording.calls) for recording in recordings] == [0, 8]
    patches[1].undo()
    assert registry() == before


def test_exchanged_processors_are_noticed() -> None:
    model = builders.wan_transformer()
    patch, _ = put(model, Recording())
    assert patch.replaced() == 0
    from diffusers.models.transformers.transformer_wan import WanAttnProcessor

    model.blocks[0].attn1.set_processor(WanAttnProcessor())
    assert patch.replaced() == 1
    patch.undo()


def test_a_dropped_model_leaves_nothing_in_the_registry() -> None:
    before, slots = registry(), len(ATTENTION)
    model = builders.wan_transformer()
    put(model, Recording())
    assert len(ATTENTION) == slots + 1
    del model
    gc.collect()
    assert len(ATTENTION) == slots
    assert registry() == before


def test_a_deep_copy_keeps_working_after_the_original_is_undone() -> None:
    model, recording, before = builders.wan_transformer(), Recording(), registry()
    want = run(model, builders.wan_inputs())
    patch, _ = put(model, recording)
    twin = copy.deepcopy(model)
    assert torch.equal(run(twin, builders.wan_inputs()), want)
    patch.undo()
    assert torch.equal(run(model, builders.wan_inputs()), want)
    assert torch.equal(run(twin, builders.wan_inputs()), want)
    assert len(recording.calls) == 8
    del twin
    gc.collect()
    assert registry() == before


def test_dropout_and_context_parallelism_are_refused_loudly() -> None:
    model = builders.wan_transformer()
    patch, _ = put(model, Recording())
    function = _AttentionBackendRegistry._backends[patch.member]
    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(RuntimeError, match="does not do dropout"):
        function(q, q, q, dropout_p=0.1)
    with pytest.raises(RuntimeError, match="does not do diffusers' context parallelism"):
        function(q, q, q, _parallel_config=object())
    patch.undo()


def test_a_model_with_context_parallelism_keeps_its_own_attention() -> None:
    pipeline = builders.wan()
    assert bridge.why_not_model(pipeline.transformer) == ""
    for _, module in bridge.attention_modules(pipeline.transformer):
        module.processor._parallel_config = SimpleNamespace(context_parallel_config=object())
    installation = install(pipeline, builders.plan(attention="sdpa"))
    (note,) = installation.report()["notes"]
    assert note.startswith("transformer's attention is left alone: it runs with context parallelism")
    processors = [module.processor for _, module in bridge.attention_modules(pipeline.transformer)]
    assert all(getattr(processor, bridge.FIELD) is None for processor in processors)
    installation.remove()


def test_diffusers_refuses_to_begin_context_parallelism_under_a_backend_of_ours() -> None:
    model = builders.wan_transformer()
    patch, _ = put(model, Recording())
    assert not _AttentionBackendRegistry._is_context_parallel_available(patch.member)
    patch.undo()
