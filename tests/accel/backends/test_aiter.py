"""aiter's attention against float64 on a stand-in: work lists that cover everything once, numbers, refusals, counts.

Everything that runs here is emulated: see tests/emulators/aiter.py.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accel.backends import aiter_mla, aiter_ops, backend
from accel.backends.aiter_mla import HEADS, TILE, Work
from accel.checking.line import relative
from accel.contract import AttentionCall, Refused, attend
from accel.ops import ATTENTION, AttentionSlot, attention
from accel.report import Tally
from tests.emulators import aiter as emulator
from tests.emulators.aiter import Gpu, Row

BF16, FP8 = 1e-2, 8e-2
"""Relative errors that pass: bf16's rounding; FP8's of three operands and of the probabilities."""

NAMES = ("aiter_bf16", "aiter_fmha_fp8", "aiter_mla_fp8")
APPROXIMATE = NAMES[1:]
CPU = torch.device("cpu")
releases = pytest.mark.parametrize("release", list(emulator.RELEASES))


def call(tokens: int = 33, keys: int = 20, batch: int = 2, heads: int = 8, size: int = 128, **more: Any) -> Any:
    draw = torch.Generator().manual_seed(tokens + keys)
    q = torch.randn(batch, tokens, heads, size, generator=draw).bfloat16()
    k, v = torch.randn(2, batch, keys, heads, size, generator=draw).bfloat16()
    return AttentionCall(q, k, v, **more)


def huge() -> AttentionCall:
    return AttentionCall(*torch.empty(3, 1, 2**20, 8, 128, dtype=torch.bfloat16, device="meta"))


def exact(one: AttentionCall) -> torch.Tensor:
    return attend(
        AttentionCall(one.query.double(), one.key.double(), one.value.double(), one.mask, one.scale, one.causal)
    )


def run(name: str, one: AttentionCall) -> torch.Tensor:
    chosen: Any = backend("attention", name)
    return getattr(chosen, "attend", chosen.run)(one)


# -- work lists -------------------------------------------------------------------------------------------------------


def rows_of(gpu: Gpu, lists: Work, heads: int) -> list[Row]:
    with gpu.on(CPU):
        numbers = (lists.queries, lists.keys, lists.pages, lists.starts, lists.rows)
        return gpu.rows(*numbers, heads, lists.partials * TILE)


@settings(max_examples=60)
@given(
    batch=st.integers(1, 3),
    tokens=st.integers(1, 5000),
    keys=st.integers(1, 5000),
    heads=st.integers(1, 8).map(lambda n: HEADS * n),
    units=st.sampled_from([256, 304, 60]),
)
def test_every_query_meets_every_key_once_emulated(batch: int, tokens: int, keys: int, heads: int, units: int) -> None:
    with emulator.installed(Gpu(units=units)) as gpu:
        lists = aiter_mla.work(CPU, batch, tokens, keys, heads)
        rows = rows_of(gpu, lists, heads)
    pieces: dict[tuple[int, int, int], list[Row]] = defaultdict(list)
    for row in rows:
        for head in row.head:
            pieces[head, row.q_start, row.q_end].append(row)
    factor = heads // HEADS
    ends, into = lists.merge_starts.tolist(), lists.merge_into.tolist()
    merged = {
        (start // factor, end // factor): lists.merge_from[first:last].tolist()
        for (first, last), (start, end) in zip(pairwise(ends), into, strict=True)
    }
    assert all(len(places) > 1 for places in merged.values())
    every = [place for places in merged.values() for place in places]
    assert len(set(every)) == len(every) == lists.partials, "two partial results in one place"
    for head in range(heads):
        tiles = sorted(tile[1:] for tile in pieces if tile[0] == head)
        assert [start for start, _ in tiles] + [batch * tokens] == [0] + [end for _, end in tiles]
        for tile in tiles:
            parts = sorted(pieces[head, *tile], key=lambda row: row.k_start)
            cuts = [(row.k_start, row.k_end) for row in parts]
            first = parts[0].item * keys
            assert tile[0] // tokens == (tile[1] - 1) // tokens == parts[0].item
            assert [start for start, _ in cuts] + [first + keys] == [first] + [end for _, end in cuts]
            places = [row.partial * factor for row in parts if row.partial >= 0]
            assert sorted(places) == merged.get(tile, [])
            assert places or len(parts) == 1


@pytest.mark.parametrize("heads", [8, 24, 40, 56])
def test_partial_results_take_what_they_need_emulated(heads: int) -> None:
    """A clip of 720p: aiter's own lists leave room for up to 50 GB."""
    with emulator.installed() as gpu:
        with gpu.on(CPU):
            most = gpu.get_ps_metadata_info_v1(1, heads, 75600, TILE)[5][0]
        lists = aiter_mla.work(CPU, 1, 75600, 75600, heads)
    units = 256 // (heads & -heads)
    print(f"{most} tiles of partial results, {lists.partials} used")
    assert lists.partials <= 2 * (units - 1) < most


def test_work_lists_are_made_once_per_shape_and_the_oldest_go_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    stock = Gpu.get_ps_metadata_v1

    def counted(self: Gpu, *args: Any) -> None:
        made.append(1)
        stock(self, *args)

    monkeypatch.setattr(Gpu, "get_ps_metadata_v1", counted)
    with emulator.installed():
        for _ in range(3):
            run("aiter_mla_fp8", call())
            run("aiter_mla_fp8", call(keys=21))
        assert len(made) == 2
        for tokens in range(1, aiter_mla.SHAPES + 5):
            aiter_mla.work(CPU, 1, tokens, 5, 8)
        assert aiter_mla.work.cache_info().currsize == aiter_mla.SHAPES
        run("aiter_mla_fp8", call())
    assert len(made) == 3 + aiter_mla.SHAPES + 4


def test_room_for_partial_results_is_kept_and_grows_emulated() -> None:
    chosen: Any = backend("attention", "aiter_mla_fp8")
    chosen._partial.clear()
    seen = []
    with emulator.installed(), torch.inference_mode():
        for keys in (300, 300, 1500, 300):
            chosen.attend(call(300, keys))
            seen.append((chosen._partial[CPU].data_ptr(), chosen._partial[CPU].numel()))
        assert not chosen._partial[CPU].is_inference()
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert seen[2][1] > seen[1][1]
    with emulator.installed():
        assert relative(chosen.attend(call(300, 300)), exact(call(300, 300))) < FP8
    chosen._partial.clear()


# -- numbers ----------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    tokens=st.integers(1, 600),
    keys=st.integers(1, 600),
    batch=st.integers(1, 2),
    heads=st.sampled_from([8, 16]),
    scale=st.sampled_from([None, 0.05]),
    name=st.sampled_from(NAMES),
    release=st.sampled_from(list(emulator.RELEASES)),
)
def test_attention_is_right_emulated(
    tokens: int, keys: int, batch: int, heads: int, scale: float | None, name: str, release: str
) -> None:
    one = call(tokens, keys, batch, heads, scale=scale)
    with emulator.installed(Gpu(release=release)):
        got = run(name, one)
    error = relative(got, exact(one))
    print(f"relative error {error:.1e}")
    assert (got.shape, got.dtype) == (one.query.shape, torch.bfloat16)
    assert got.is_contiguous()
    assert error < (BF16 if name == "aiter_bf16" else FP8)


@releases
@pytest.mark.parametrize(
    ("tokens", "keys", "batch", "heads"), [(2111, 2111, 1, 8), (1030, 1029, 1, 40), (257, 1500, 2, 24)]
)
def test_large_attention_is_right_emulated(release: str, tokens: int, keys: int, batch: int, heads: int) -> None:
    """24 and 40 heads: aiter's merging has code for neither in its older releases."""
    one = call(tokens, keys, batch, heads)
    with emulator.installed(Gpu(release=release)) as gpu:
        error = relative(run("aiter_mla_fp8", one), exact(one))
        assert [name for name, _ in gpu.calls] == ["mla_prefill_ps_asm_fwd", "mla_reduce_v1"]
        assert gpu.calls[1][1]["heads"] == HEADS
    print(f"relative error {error:.1e}")
    assert error < FP8


@pytest.mark.parametrize("name", NAMES)
def test_strided_inputs_and_the_softmax_scale_emulated(name: str) -> None:
    fused = torch.randn(2, 300, 3, 8, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    turned = torch.randn(2, 8, 300, 128).bfloat16().transpose(1, 2)
    one_item = torch.randn(1, 300, 8, 128).bfloat16().expand(2, -1, -1, -1)
    inner = torch.randn(2, 300, 8, 256).bfloat16()[..., ::2]
    with emulator.installed() as gpu:
        for query in (fused[:, :, 0], turned, one_item, inner):
            one = AttentionCall(query, fused[:, :, 1], fused[:, :, 2])
            assert relative(run(name, one), exact(one)) < (BF16 if name == "aiter_bf16" else FP8)
            # the zeros behind each head must not change it
            assert next(seen["softmax_scale"] for what, seen in gpu.calls if "reduce" not in what) == 128**-0.5
            gpu.calls.clear()


@pytest.mark.parametrize("name", NAMES)
def test_a_nan_query_spoils_its_own_row_alone_emulated(name: str) -> None:
    one = call(300, 400)
    clean = exact(one)
    one.query[0, 5, 0, 0] = float("nan")
    limit = BF16 if name == "aiter_bf16" else FP8
    with emulator.installed():
        got = run(name, one)
    assert got[0, 5, 0].isnan().all()
    assert relative(got[1], clean[1]) < limit
    assert relative(got[0, 6:], clean[0, 6:]) < limit


def test_one_scale_per_tensor_and_zeros_behind_each_head() -> None:
    x = torch.randn(2, 33, 3, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    x[1] *= 40
    made, scale = aiter_ops.quantised(x, 192)
    assert (made.dtype, made.shape) == (torch.float8_e4m3fn, (66, 3, 192))
    assert (scale.dtype, scale.shape) == (torch.float32, (1,))
    torch.testing.assert_close(scale[0], x.float().abs().max() / 448)
    assert relative(made[..., :128].float() * scale, x.flatten(0, 1)) < 4e-2
    assert not made[..., 128:].float().any()


def test_bf16_serves_grouped_heads_causal_calls_and_both_forms_of_answer_emulated() -> None:
    q = torch.randn(2, 40, 6, 64, generator=torch.Generator().manual_seed(1)).bfloat16().requires_grad_()
    k, v = torch.randn(2, 2, 40, 2, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    for sums in (False, True):
        with emulator.installed(Gpu("gfx942", sums=sums)):
            for causal in (False, True):
                one = AttentionCall(q, k, v, causal=causal)
                assert relative(run("aiter_bf16", one).detach(), exact(one).detach()) < BF16


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "one", "reason"),
    [
        (APPROXIMATE, call(size=64), "head size 64 is not 128"),
        (("aiter_bf16",), call(size=80), "head size 80 is not 64 or 128"),
        (NAMES, call(mask=torch.ones(2, 1, 1, 20, dtype=torch.bool)), "a mask, this kernel has no mask argument"),
        (APPROXIMATE, call(keys=33, causal=True), "causal attention, this kernel is used without"),
        (NAMES, call(causal=True), "causal attention with different query and key lengths"),
        (NAMES, call(keys=0), "no tokens"),
        (APPROXIMATE, AttentionCall(call(heads=16).query, call().key, call().value), "16 query heads beside 8 key"),
        (("aiter_mla_fp8",), call(heads=10), "10 heads are no multiple of 8, .* would read out of bounds"),
        (APPROXIMATE, call(keys=aiter_ops.FEWEST_KEYS - 1), "fewer than 1024 keys are faster in bf16"),
        (NAMES, AttentionCall(*(x.float() for x in torch.ones(3, 1, 9, 8, 128))), "float32 input, .* in bfloat16"),
        (
            APPROXIMATE,
            AttentionCall(*torch.empty(3, 1, 2**20, 8, 128, dtype=torch.bfloat16, device="meta")),
            "2147483648",
        ),
    ],
)
def test_refusals_are_sentences_emulated(names: tuple[str, ...], one: AttentionCall, reason: str) -> None:
    with emulator.installed() as gpu:
        for name in names:
            chosen: Any = backend("attention", name)
            with pytest.raises(Refused, match=reason):
                chosen.run(one)
    assert gpu.calls == []


@pytest.mark.parametrize(
    ("chip", "name", "where"),
    [("gfx942", "aiter_mla_fp8", "gfx942"), ("gfx942", "aiter_fmha_fp8", "gfx942"), ("", "aiter_bf16", "cpu")],
)
def test_off_their_chips_they_refuse_emulated(chip: str, name: str, where: str) -> None:
    chosen: Any = backend("attention", name)
    said = f"the tensors are on {where}, this kernel runs on"
    with emulator.installed(Gpu(chip)), pytest.raises(Refused, match=said):
        chosen.run(call(keys=1024))


def test_a_missing_package_or_function_is_refused_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    without = emulator.installed(without=("mla_prefill_ps_asm_fwd",))
    with without, pytest.raises(Refused, match="this aiter has no mla_prefill_ps_asm_fwd"):
        run("aiter_mla_fp8", call())
    with emulator.installed():
        monkeypatch.setitem(sys.modules, "aiter", None)
        with pytest.raises(Refused, match="aiter does not import: "):
            run("aiter_bf16", call())


def through_the_op(name: str, one: AttentionCall, aside: str = "") -> tuple[torch.Tensor, Tally]:
    tally = Tally("transformer", "attention", name)
    slot = ATTENTION.add(AttentionSlot(backend("attention", name), tally, aside))  # type: ignore[arg-type]
    try:
        return attention(one.query, one.key, one.value, one.mask, one.scale, one.causal, slot), tally
    finally:
        ATTENTION.remove(slot)


def test_ten_heads_per_rank_go_to_fmha_and_not_to_mla_emulated() -> None:
    """40 heads over 4 GPUs: upstream's MLA path read out of bounds and died."""
    one = call(40, 1024, 1, 10)
    with emulator.installed() as gpu:
        out, tally = through_the_op("aiter_mla_fp8", one)
        reason = "10 heads are no multiple of 8, aiter's MLA kernel would read out of bounds"
        assert (tally.served_calls, dict(tally.reasons)) == (0, {reason: 1})
        assert [name for name, _ in gpu.calls] == ["flash_attn_func"], "what is refused runs in bf16, by aiter"
        assert relative(out, exact(one)) < BF16
        out, tally = through_the_op("aiter_fmha_fp8", one)
        assert (tally.served_calls, tally.fallen_back) == (1, 0)
        assert gpu.calls[-1][0] == "flash_attn_fp8_pertensor_func"
        assert relative(out, exact(one)) < FP8


@pytest.mark.parametrize("name", APPROXIMATE)
def test_steps_that_must_be_exact_run_in_bf16_emulated(name: str) -> None:
    one = call(40, 1024)
    with emulator.installed() as gpu:
        out, tally = through_the_op(name, one, aside="one of the first or last 2 steps, kept exact as asked")
    assert [what for what, _ in gpu.calls] == ["flash_attn_func"]
    assert dict(tally.reasons) == {"one of the first or last 2 steps, kept exact as asked": 1}
    assert relative(out, exact(one)) < BF16
