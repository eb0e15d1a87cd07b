"""Masks and every attention backend: kept, or left to one that keeps them and counted; never dropped. Emulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from accel.backends import aiter_ops, backend, backends, fa3_fp8
from accel.checking.line import relative
from accel.contract import AttentionCall, attend
from accel.install import install
from accel.ops import ATTENTION, AttentionSlot, attention
from accel.report import Tally
from tests import builders, tiny
from tests.emulators import sgl_kernel_cpu
from tests.emulators.every import emulated

pytestmark = pytest.mark.skipif(sgl_kernel_cpu.real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")

NAMES = tuple(item.name for item in backends("attention"))
SHAPE = (2, 10, 8, 64)
SEEN = torch.arange(10) < 6
"""All keys but the last four."""


@pytest.fixture(autouse=True)
def _emulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few keys are no reason against anything."""
    monkeypatch.setattr(fa3_fp8, "FEWEST_KEYS", 1)
    monkeypatch.setattr(aiter_ops, "FEWEST_KEYS", 1)
    with emulated(request.node.callspec.params["name"]):
        yield


@pytest.mark.parametrize(
    "mask",
    [
        SEEN.expand(2, 10),
        SEEN.expand(2, 1, 1, 10),
        SEEN.expand(2, 1, 10, 10),
        SEEN.expand(2, 8, 1, 10),
        torch.zeros(2, 1, 1, 10, dtype=torch.bfloat16).masked_fill(~SEEN, float("-inf")),
        torch.zeros(2, 1, 1, 10, dtype=torch.bfloat16).masked_fill(~SEEN, -10000.0),
    ],
    ids=["by item", "by key", "by query", "by head", "additive", "additive, finite"],
)
@pytest.mark.parametrize("name", NAMES)
def test_hidden_keys_take_no_part_emulated(name: str, mask: torch.Tensor) -> None:
    """Case 12: equal to the reference without those keys, and each call is served or counted with its reason."""
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(SHAPE, generator=draw).bfloat16() for _ in range(3))
    tally = Tally("transformer", "attention", name)
    slot = ATTENTION.add(AttentionSlot(backend("attention", name), tally))  # type: ignore[arg-type]
    try:
        got = attention(query, key, value, mask, None, False, slot)
    finally:
        ATTENTION.remove(slot)
    want = attend(AttentionCall(query.double(), key.double()[:, :6], value.double()[:, :6]))
    assert relative(got, want) < 1e-2
    assert tally.calls == 1
    assert not tally.reasons or "mask" in next(iter(tally.reasons)), tally.summary()


PROMPTS = ("a red ball", "a yellow rocket flies up into the dark blue sky and two stars at night " * 3)


@pytest.fixture(scope="module")
def pipeline() -> Any:
    """LTX, which hides padded text by a mask, with heads that every kernel takes."""
    from diffusers import LTXVideoTransformer3DModel

    made = tiny.build("ltx")
    torch.manual_seed(0)
    made.transformer = LTXVideoTransformer3DModel(
        in_channels=128,
        out_channels=128,
        num_attention_heads=8,
        attention_head_dim=128,
        cross_attention_dim=1024,
        num_layers=1,
        caption_channels=32,
    ).eval()
    made.set_progress_bar_config(disable=True)
    return made


def latents(pipeline: Any, texts: torch.Tensor, seen: torch.Tensor, seeds: tuple[int, ...]) -> torch.Tensor:
    out = pipeline(
        prompt_embeds=texts,
        prompt_attention_mask=seen,
        height=64,
        width=96,
        num_frames=9,
        num_inference_steps=2,
        guidance_scale=1.0,
        output_type="latent",
        generator=[torch.Generator().manual_seed(seed) for seed in seeds],
    )
    found: torch.Tensor = out.frames.float()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_two_prompts_in_one_batch_are_as_each_alone_emulated(name: str, pipeline: Any) -> None:
    """Case 12: a short and a long prompt together, and each without the other and without a padded token."""
    installation = install(pipeline, builders.plan(attention=name, dtype="bfloat16", threads="1"))
    try:
        with torch.inference_mode():
            texts, seen, _, _ = pipeline.encode_prompt(list(PROMPTS), do_classifier_free_guidance=False)
            texts, seen = texts.bfloat16(), seen.bool()
            lengths = seen.sum(1).tolist()
            assert lengths[0] < 10 < 40 < lengths[1] < texts.shape[1]
            both = latents(pipeline, texts, seen, (1, 2))
            report = installation.report()["attention"]["transformer"]
            apart = []
            for item, length in enumerate(lengths):
                alone = latents(pipeline, texts[item, :length][None], seen[item, :length][None], (item + 1,))
                apart.append(relative(both[item : item + 1], alone))
            unmasked = latents(pipeline, texts, torch.ones_like(seen), (1, 2))
    finally:
        installation.remove()
    dropped = relative(unmasked[:1], both[:1])
    print(f"{apart} apart, {dropped} without a mask; {report['summary']}")
    assert max(apart) < 1e-2 < 2e-2 < dropped
    assert report["calls"] == 4
    assert report["served"] + report["fallen_back"] == 4
