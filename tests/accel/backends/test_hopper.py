"""FlashAttention-3 and FP8 linears against float64 on stand-ins, all releases' schemas, and what they refuse.

Everything here is emulated: see tests/emulators/sgl_kernel_cuda.py.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accel import advice
from accel.backends import backend, fa3_fp8, flash_ops
from accel.checking.line import relative
from accel.contract import AttentionCall, Refused, attend
from accel.ops import ATTENTION, AttentionSlot, attention
from accel.plan import make_plan
from accel.report import Tally
from accel.types import Fact, Gpu, Machine, ModelTraits, Package, Preferences, Proof, StageTraits
from tests.builders import machine
from tests.emulators import sgl_kernel_cuda as emulator
from tests.emulators.sgl_kernel_cpu import real_build

pytestmark = pytest.mark.skipif(real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")
releases = pytest.mark.parametrize("release", list(emulator.SCHEMAS))

BF16, FP8 = 1e-2, 8e-2
"""Relative errors that pass: bf16's rounding; FP8's of three operands on normal numbers (5.4 % on the real kernel)."""


def call(
    tokens: int = 33, keys: int = 20, batch: int = 2, heads: int = 4, kv: int = 4, size: int = 64, **more: Any
) -> Any:
    draw = torch.Generator().manual_seed(tokens + keys)
    q = torch.randn(batch, tokens, heads, size, generator=draw).bfloat16()
    k, v = torch.randn(2, batch, keys, kv, size, generator=draw).bfloat16()
    return AttentionCall(q, k, v, **more)


def exact(one: AttentionCall) -> torch.Tensor:
    return attend(
        AttentionCall(one.query.double(), one.key.double(), one.value.double(), one.mask, one.scale, one.causal)
    )


def run(name: str, one: AttentionCall) -> torch.Tensor:
    chosen: Any = backend("attention", name)
    return chosen.attend(one) if name == "fa3_fp8" else chosen.run(one)


@settings(deadline=None, max_examples=30)
@given(
    tokens=st.integers(1, 70),
    keys=st.integers(1, 150),
    batch=st.integers(1, 2),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2)]),
    size=st.sampled_from([64, 128]),
    scale=st.sampled_from([None, 0.05, 1.0]),
    name=st.sampled_from(["fa3", "fa3_fp8"]),
)
def test_attention_is_right_emulated(
    tokens: int, keys: int, batch: int, heads: tuple[int, int], size: int, scale: float | None, name: str
) -> None:
    one = call(tokens, keys, batch, *heads, size, scale=scale)
    with emulator.installed():
        got = run(name, one)
    error = relative(got, exact(one))
    print(f"relative error {error:.1e}")
    assert got.shape == one.query.shape
    assert got.dtype == torch.bfloat16
    # a scale of 1.0 makes the softmax pick single keys, whose rounding then stands alone
    assert error < (BF16 if name == "fa3" else FP8 * (4 if scale == 1.0 else 1))


@releases
@pytest.mark.parametrize("name", ["fa3", "fa3_fp8"])
def test_arguments_are_bound_by_the_schemas_names_emulated(release: str, name: str) -> None:
    one = call(scale=0.3)
    with emulator.installed(release) as calls:
        run(name, one)
    (seen,) = calls
    assert seen["softmax_scale"] == 0.3
    assert seen["num_splits"] == 1
    assert seen["cu_seqlens_q"] is None
    assert (seen["q_descale"] is not None) == (name == "fa3_fp8")
    assert ("only_qv" in seen) == (release == "0.4.10")


def test_an_unknown_argument_without_a_default_is_refused_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    strange = emulator.SCHEMAS["0.4.2.post2"].replace("int sm_margin", "int sm_margin, int shape_of_things")
    monkeypatch.setitem(emulator.SCHEMAS, "strange", strange)
    with emulator.installed("strange"), pytest.raises(Refused, match="wants shape_of_things, which is not known here"):
        run("fa3", call())


def test_strided_inputs_and_causal_emulated() -> None:
    fused = torch.randn(2, 40, 3, 4, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    turned = torch.randn(2, 4, 40, 64).bfloat16().transpose(1, 2)
    inner = torch.randn(2, 40, 4, 128).bfloat16()[..., ::2]
    with emulator.installed():
        for query in (fused[:, :, 0], turned, inner):
            for causal in (False, True):
                one = AttentionCall(query, fused[:, :, 1], fused[:, :, 2], causal=causal)
                for name, limit in (("fa3", BF16), ("fa3_fp8", FP8)):
                    assert relative(run(name, one), exact(one)) < limit


def test_a_nan_query_spoils_its_own_row_alone_emulated() -> None:
    one = call()
    clean = exact(one)
    one.query[0, 5, 0, 0] = float("nan")
    with emulator.installed():
        for name, limit in (("fa3", BF16), ("fa3_fp8", FP8)):
            got = run(name, one)
            assert got[0, 5, 0].isnan().all()
            assert relative(got[1], clean[1]) < limit
            assert relative(got[0, 6:], clean[0, 6:]) < limit


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (call(size=80), "head size 80 is not 64 or 128"),
        (call(mask=torch.ones(2, 1, 1, 20, dtype=torch.bool)), "a mask, this kernel has no mask argument"),
        (call(causal=True), "different query and key lengths"),
        (call(keys=0), "no tokens"),
        (call(heads=3, kv=2), "3 query heads are no multiple of 2"),
    ],
)
def test_refusals_are_sentences_emulated(one: AttentionCall, reason: str) -> None:
    with emulator.installed() as calls:
        for name in ("fa3", "fa3_fp8"):
            chosen: Any = backend("attention", name)
            with pytest.raises(Refused, match=reason):
                chosen.run(one)
    assert calls == []


def test_off_hopper_is_refused() -> None:
    chosen: Any = backend("attention", "fa3")
    with pytest.raises(Refused, match=r"the tensors are on cpu, this kernel runs on compute capability 9\.0"):
        chosen.run(call())


def through_the_op(name: str, one: AttentionCall) -> tuple[torch.Tensor, Tally]:
    tally = Tally("transformer", "attention", name)
    slot = ATTENTION.add(AttentionSlot(backend("attention", name), tally))  # type: ignore[arg-type]
    try:
        return attention(one.query, one.key, one.value, one.mask, one.scale, one.causal, slot), tally
    finally:
        ATTENTION.remove(slot)


def test_few_keys_run_in_bf16_and_are_counted_emulated() -> None:
    few, many = call(keys=fa3_fp8.FEWEST_KEYS - 1, tokens=9), call(keys=fa3_fp8.FEWEST_KEYS, tokens=9)
    masked = call(mask=torch.ones(2, 1, 1, 20, dtype=torch.bool))
    with emulator.installed() as calls:
        out, tally = through_the_op("fa3_fp8", few)
        assert (tally.served_calls, dict(tally.reasons)) == (0, {"fewer than 1024 keys are faster in bf16": 1})
        assert calls[-1]["q"].dtype == torch.bfloat16
        assert relative(out, exact(few)) < BF16
        out, tally = through_the_op("fa3_fp8", many)
        assert (tally.served_calls, tally.fallen_back) == (1, 0)
        assert calls[-1]["q"].dtype == torch.float8_e4m3fn
        assert relative(out, exact(many)) < FP8
        out, tally = through_the_op("fa3_fp8", masked)
        assert (tally.served_calls, tally.fallen_back, len(calls)) == (0, 1, 2)
        torch.testing.assert_close(out, attend(masked), rtol=0, atol=0)


def test_a_library_without_the_operator_is_told_emulated() -> None:
    with emulator.installed(without=("fwd",)):
        _, tally = through_the_op("fa3", call())
    assert dict(tally.reasons) == {"no library in an emulation": 1}


# -- linears ---------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(
    rows=st.integers(1, 40),
    outs=st.integers(16, 20).map(lambda n: 16 * n),
    ins=st.integers(16, 20).map(lambda n: 16 * n),
    bias=st.booleans(),
    power=st.integers(-8, 8),
)
def test_fp8_linears_are_right_emulated(rows: int, outs: int, ins: int, bias: bool, power: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    x = (torch.randn(rows, ins, generator=draw) * 2.0**power).bfloat16()
    weight = torch.randn(outs, ins, generator=draw).bfloat16()
    offset = torch.randn(outs, generator=draw).bfloat16() if bias else None
    chosen: Any = backend("linear", "fp8")
    with emulator.installed():
        matrix = chosen.pack(weight)
        got = matrix.run(x, offset)
    want = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    error = relative(got, want)
    print(f"relative error {error:.1e}")
    assert error < 5e-2
    assert matrix.nbytes == outs * ins + 4 * outs


@pytest.mark.parametrize(
    ("outs", "ins", "dtype", "reason"),
    [
        (256, 256, "bfloat16", ""),
        (256, 264, "bfloat16", "256 x 264 is no multiple of 16"),
        (128, 256, "bfloat16", "128 x 256 is too small to gain from FP8"),
        (256, 256, "float32", "kept in float32 by the model"),
    ],
)
def test_why_a_weight_stays(outs: int, ins: int, dtype: str, reason: str) -> None:
    chosen: Any = backend("linear", "fp8")
    assert chosen.why_not_weight(outs, ins, dtype) == reason


def test_what_modulates_and_embeds_stays() -> None:
    chosen: Any = backend("linear", "fp8")
    for name in ("blocks.0.norm1.linear", "blocks.0.time_proj", "token_refiner.refiner_blocks.0.attn.to_q"):
        assert chosen.why_not_name(name).startswith("sensitive: ")
    for name in ("blocks.0.attn1.to_q", "blocks.0.ffn.net.0.proj", "single_transformer_blocks.3.proj_out"):
        assert chosen.why_not_name(name) == ""


# -- what the machine must have ---------------------------------------------------------------------------------------

PROOFS = ("sgl_kernel.fa3", "sgl_kernel.fa3_fp8", "triton.fp8_linear")


def with_card(arch: str, *proofs: str, installed: bool = True) -> Machine:
    fine = Fact(True, "a product ran on it", "a test")
    card = Gpu(0, "amd" if arch.startswith("gfx") else "nvidia", "a card", 2**37, arch, "580", "13.0", fine, fine)
    found = machine(*proofs)
    package = Package("sgl_kernel", "sglang-kernel", "0.4.2.post2", "", False, "registers no operator")
    return replace(found, gpus=(card,), packages={"sgl_kernel": package} if installed else {})


@pytest.mark.parametrize(
    ("kind", "name", "on", "reason"),
    [
        ("attention", "fa3", with_card("sm_90", *PROOFS), ""),
        ("attention", "fa3_fp8", with_card("sm_90", *PROOFS), ""),
        ("linear", "fp8", with_card("sm_90", *PROOFS), ""),
        ("linear", "fp8", with_card("sm_89", *PROOFS), ""),
        ("linear", "fp8", with_card("gfx950:sramecc+:xnack-", *PROOFS), ""),
        ("attention", "fa3", machine(), r"capability 9\.0 .*, found no GPU that can be used"),
        ("attention", "fa3", with_card("sm_100", *PROOFS), r"capability 9\.0 .*, found sm_100"),
        ("attention", "fa3_fp8", with_card("sm_89", *PROOFS), r"capability 9\.0 .*, found sm_89"),
        ("attention", "fa3", with_card("sm_90", *PROOFS, installed=False), "is not installed; .*sglang-kernel"),
        ("attention", "fa3", with_card("sm_90"), "has not been tried"),
        ("linear", "fp8", with_card("sm_86", *PROOFS), r"capability 8\.9 or newer, gfx942 or gfx950, found sm_86"),
        ("linear", "fp8", with_card("gfx90a", *PROOFS), "found gfx90a"),
        ("linear", "fp8", with_card("sm_90"), "has not been tried"),
    ],
)
def test_reasons_from_the_machine(kind: Any, name: str, on: Machine, reason: str) -> None:
    found = backend(kind, name).why_not(on, StageTraits("transformer", "WanTransformer3DModel", head_dim=128))
    if not reason:
        assert found == []
    else:
        (sentence,) = found
        assert re.search(reason, sentence), sentence


def test_a_dead_child_is_the_reason() -> None:
    dead = replace(
        with_card("sm_90"), proofs={"sgl_kernel.fa3": Proof(False, "its test process was killed by SIGSEGV")}
    )
    assert backend("attention", "fa3").why_not(dead, StageTraits("transformer", "a model", head_dim=128)) == [
        "its test process was killed by SIGSEGV"
    ]
    assert backend("attention", "fa3").why_not(
        with_card("sm_90", *PROOFS), StageTraits("transformer", "a model", head_dim=80)
    ) == ["head size 80 is not 64 or 128"]


@pytest.mark.parametrize(
    ("wishes", "attention", "linear"),
    [
        (Preferences(), "fa3", "stock"),
        (Preferences(attention="fa3_fp8", linear="fp8"), "fa3_fp8", "fp8"),
        (Preferences(attention="sdpa"), "sdpa", "stock"),
    ],
)
def test_auto_takes_what_is_exact_and_fp8_is_for_a_person_to_ask(
    wishes: Preferences, attention: str, linear: str
) -> None:
    stage = StageTraits(
        "transformer", "WanTransformer3DModel", ("bfloat16",), head_dim=128, tokens=32760, reachable=True
    )
    plan = make_plan(with_card("sm_90", *PROOFS), ModelTraits("Wan", "WanPipeline", (stage,)), wishes)
    assert (plan.stages[0].attention.engaged, plan.stages[0].linear.engaged) == (attention, linear)
    assert plan.stages[0].device.engaged == "cuda:0"


def test_a_library_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Not emulated: the system's own loader, and an empty file in the library's place."""
    (tmp_path / "sgl_kernel").mkdir()
    (tmp_path / "sgl_kernel" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    load: Any = flash_ops._load.__wrapped__
    assert load() == f"sgl_kernel holds no flash_ops*.so; {advice.SGL_HOPPER}"
    (tmp_path / "sgl_kernel" / "flash_ops.abi3.so").touch()
    assert re.match(r"flash_ops\.abi3\.so does not load: .*(too short|invalid|not a|no suitable)", load())
