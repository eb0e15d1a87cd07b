"""FP8 attention at lengths around its kernels' tiles: right, or left to bf16 and counted. Emulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from accel.backends import aiter_ops, backend, fa3_fp8
from accel.checking.line import relative
from accel.contract import AttentionCall, attend
from accel.install import install
from accel.ops import ATTENTION, AttentionSlot, attention
from accel.report import Tally
from tests import builders
from tests.emulators import aiter, sgl_kernel_cuda
from tests.emulators.sgl_kernel_cpu import real_build

pytestmark = pytest.mark.skipif(real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")

LENGTHS = (1, 15, 16, 17, 127, 129, *range(241, 256), 256, 257, 1560)
NAMES = ("fa3_fp8", "aiter_fmha_fp8", "aiter_mla_fp8")
ERROR, ROUNDING = 8e-2, 1e-2
"""What accel states for FP8 attention, and what bf16 rounds."""


@pytest.fixture(autouse=True)
def _emulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Both vendors' kernels, which are asked however few the keys are; spoilt before they are put in place."""
    if "_wrong_just_under_a_tile" in request.fixturenames:
        request.getfixturevalue("_wrong_just_under_a_tile")
    monkeypatch.setattr(fa3_fp8, "FEWEST_KEYS", 1)
    monkeypatch.setattr(aiter_ops, "FEWEST_KEYS", 1)
    with sgl_kernel_cuda.installed(), aiter.installed():
        yield


def call(tokens: int, keys: int, size: int, heads: int = 8) -> AttentionCall:
    draw = torch.Generator().manual_seed(tokens + 7 * keys)
    query = torch.randn(1, tokens, heads, size, generator=draw).bfloat16()
    key, value = torch.randn(2, 1, keys, heads, size, generator=draw).bfloat16()
    return AttentionCall(query, key, value)


def error_of(out: torch.Tensor, one: AttentionCall) -> float:
    return relative(out, attend(AttentionCall(one.query.float(), one.key.float(), one.value.float())))


@contextmanager
def slot_of(name: str) -> Iterator[tuple[int, Tally]]:
    tally = Tally("transformer", "attention", name)
    number = ATTENTION.add(AttentionSlot(backend("attention", name), tally))  # type: ignore[arg-type]
    try:
        yield number, tally
    finally:
        ATTENTION.remove(number)


def run(one: AttentionCall, slot: int) -> torch.Tensor:
    return attention(one.query, one.key, one.value, None, None, False, slot)


@pytest.mark.parametrize("kind", ["self", "cross"])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("name", NAMES)
def test_every_length_is_right_or_told_emulated(name: str, size: int, kind: str) -> None:
    """Case 14: lengths around a tile of keys, each finite and within FP8's error, or in bf16 with its reason."""
    served, heads = size == 128 or name == "fa3_fp8", 8 if name == "aiter_mla_fp8" else 2
    with slot_of(name) as (slot, tally):
        for length in LENGTHS:
            one = call(length if kind == "self" else 300, length, size, heads)
            out = run(one, slot)
            assert out.isfinite().all(), length
            assert error_of(out, one) < (ERROR if served else ROUNDING), length
    fallen = {} if served else {f"head size {size} is not 128": len(LENGTHS)}
    assert (tally.served_calls, dict(tally.reasons)) == (len(LENGTHS) * served, fallen)


def spoiled(out: torch.Tensor, keys: int) -> torch.Tensor:
    """What a kernel gives that is wrong for a tile of keys which is not quite full."""
    return out.fill_(float("nan")) if 241 <= keys <= 255 else out


@pytest.fixture
def _wrong_just_under_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    fwd, fmha, mla = (
        sgl_kernel_cuda._fwd,
        aiter.Gpu.flash_attn_fp8_pertensor_func,
        aiter.Gpu.mla_prefill_ps_asm_fwd,
    )

    def wrong_fwd(**given: Any) -> list[torch.Tensor]:
        out, *others = fwd(**given)
        return [spoiled(out, given["k"].shape[1]) if given["k_descale"] is not None else out, *others]

    def wrong_fmha(self: Any, query: torch.Tensor, key: torch.Tensor, *others: Any, **more: Any) -> torch.Tensor:
        return spoiled(fmha(self, query, key, *others, **more), key.shape[1])

    def wrong_mla(self: Any, query: torch.Tensor, key: torch.Tensor, *others: Any, **more: Any) -> None:
        mla(self, query, key, *others, **more)
        for written in (others[9], others[11]):  # partial results, and those of tiles that are not split
            spoiled(written, key.shape[0])

    monkeypatch.setattr(sgl_kernel_cuda, "_fwd", wrong_fwd)
    monkeypatch.setattr(aiter.Gpu, "flash_attn_fp8_pertensor_func", wrong_fmha)
    monkeypatch.setattr(aiter.Gpu, "mla_prefill_ps_asm_fwd", wrong_mla)


@pytest.mark.usefixtures("_wrong_just_under_a_tile")
@pytest.mark.parametrize("name", NAMES)
def test_a_length_that_the_kernel_spoils_goes_to_bf16_and_is_counted_emulated(name: str) -> None:
    """Case 14: NaN just under one tile of 256 keys never comes through, and the other lengths stay in FP8."""
    with slot_of(name) as (slot, tally):
        for keys, limit in ((240, ERROR), (250, ROUNDING), (250, ROUNDING), (256, ERROR)):
            one = call(40, keys, 128)
            assert error_of(run(one, slot), one) < limit
        assert "2 fell back: it gave values that are not finite for 40 tokens and 250 keys (2)" in tally.summary()
        assert tally.served_calls == 2
        one = call(40, 256, 128)
        one.query[0, 3] = float("nan")
        assert run(one, slot)[0, 3].isnan().all()
    assert tally.fallen_back == 2, "what came in spoilt is not held against the kernel"


@pytest.mark.usefixtures("_wrong_just_under_a_tile")
def test_a_spoilt_length_in_a_model_is_judged_anew_for_each_clip_emulated() -> None:
    """Case 14: through diffusers' dispatcher, with the count that page and batch show."""
    model = builders.wan_transformer(heads=8, head_dim=128)
    inputs = {**builders.wan_inputs(dtype=torch.bfloat16), "encoder_hidden_states": torch.randn(1, 250, 32).bfloat16()}
    installation = install(
        builders.Holder(transformer=model), builders.plan(attention="aiter_fmha_fp8", dtype="bfloat16", threads="1")
    )
    with torch.inference_mode():
        assert model(**inputs)[0].isfinite().all()
        report = installation.report()["attention"]["transformer"]
        assert (report["served"], report["fallen_back"]) == (2, 2), "self attention, and cross attention to 250 keys"
        slot = installation.patches["transformer"].slot
        assert slot is not None
        assert len(slot.judged) == 2
        installation.reset()
        assert slot.judged == {}
    installation.remove()
