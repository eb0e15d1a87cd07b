"""What is recorded without weights is what a real pass does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from accel.errors import AccelError
from accel.measuring import calls
from accel.measuring.calls import listened, record, within
from accel.readouts.results import Call
from tests import builders

SIZE = (64, 32, 5)


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return builders.wan()


def counted(found: Any, stage: str) -> dict[tuple[Any, ...], int]:
    return {(one.kind, *one.sizes.items()): one.count for one in found if one.stage == stage}


def test_calls_without_weights_are_those_of_a_real_pass(pipeline: Any) -> None:
    recorded = record(pipeline, SIZE)
    assert recorded.notes == ()
    for stage in ("transformer", "text_encoder"):
        module = getattr(pipeline, stage)
        given: list[Any] = []
        hook = module.register_forward_pre_hook(lambda _, *call: given.append(call), with_kwargs=True)  # noqa: B023
        builders.run_wan(pipeline, steps=1)
        hook.remove()
        args, kwargs = given[0]
        with torch.inference_mode():
            heard = listened(stage, module, lambda: module(*args, **kwargs))  # noqa: B023
        assert counted(heard, stage) == counted(recorded.calls, stage)
    attention = {one.title.split(",")[0] for one in recorded.calls if one.kind == "attention"}
    assert attention == {"self attention", "cross attention"}


def test_another_transformer_is_recorded_from_what_the_pipeline_gives_it(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = counted(record(pipeline, SIZE).calls, "transformer")
    monkeypatch.setattr(calls, "DRIVES", {})
    captured = record(pipeline, SIZE, {"max_sequence_length": 64})
    assert counted(captured.calls, "transformer") == known
    blank = type(pipeline.transformer).from_config
    with torch.device("meta"):
        empty = builders.Holder(transformer=blank(pipeline.transformer.config))
    with pytest.raises(AccelError, match="load it first"):
        record(empty, SIZE)


def test_masks_and_tokens_of_other_families_are_seen() -> None:
    module = builders.ltx_transformer()
    heard = listened("transformer", module, lambda: module(**builders.ltx_inputs()))
    attention = {one.title.split(",")[0]: one for one in heard if one.kind == "attention"}
    assert attention["cross attention"].mask == "keys"
    assert attention["self attention"].mask == ""
    assert attention["cross attention"].sizes["batch"] == 2


def test_linears_are_named_by_their_place_and_known_to_be_in_blocks(pipeline: Any) -> None:
    found = {one.title.split(",")[0]: one for one in record(pipeline, SIZE).calls if one.kind == "linear"}
    assert found["attn1.to_q"].blocks
    assert found["attn1.to_q"].count == 2 * (4 + 2 + 2), "those of both attentions and of the feed-forward"
    assert not found["proj_out"].blocks
    assert found["attn1.to_q"].sizes == {"rows": 6, "in_features": 64, "out_features": 64, "bias": 1}


def test_a_vae_that_can_not_be_recorded_is_noted(pipeline: Any) -> None:
    found = record(builders.Holder(vae=nn.Linear(2, 2, device="meta")), SIZE)
    assert "the vae's calls could not be recorded: AttributeError" in found.notes[0]


@pytest.mark.parametrize(
    ("call", "size", "kept"),
    [
        (Call("transformer", "attention", "a", {"heads": 40, "kv_heads": 40}, 40e12), "heads", 10),
        (Call("transformer", "linear", "l", {"rows": 32760}, 40e12), "rows", 8190),
        (Call("vae", "vae", "v", {"height": 480}, 40e12), "height", 120),
    ],
)
def test_a_part_stands_for_what_would_take_too_long(call: Call, size: str, kept: int) -> None:
    assert within(call, 50e12) == call
    part = within(call, 10e12)
    assert part.sizes[size] == kept
    assert part.flops == pytest.approx(10e12)
    assert part.share == pytest.approx(0.25)
    assert part.weight == pytest.approx(4 * call.weight)
    assert part.sizes.get("kv_heads", kept) == kept


def test_heads_that_share_keys_stay_together() -> None:
    call = Call("transformer", "attention", "a", {"heads": 40, "kv_heads": 8}, 40e12)
    assert within(call, 1e12) == call
    small = replace(call, sizes={"heads": 1, "kv_heads": 1})
    assert within(small, 1.0).sizes["heads"] == 1
