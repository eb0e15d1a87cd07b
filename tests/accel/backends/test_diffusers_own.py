"""Attention under diffusers' own names: what it asks of a machine and a call, and what it hands to whom.

The packages and GPUs are not here: see tests/emulators/diffusers_own.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from accel import bridge
from accel.advice import PYTHON
from accel.backends import backend
from accel.backends.diffusers_own import CUDNN, FLASH, SAGE
from accel.checking.line import relative
from accel.contract import AttentionCall, Refused, attend
from accel.ops import ATTENTION, AttentionSlot, attention
from accel.plan import make_plan
from accel.report import Tally
from accel.types import Fact, Gpu, Machine, ModelTraits, Package, Preferences, Proof, StageTraits
from tests.builders import machine
from tests.emulators import diffusers_own as emulator

NAMES = ("cudnn", "flash", "sage")
TRAITS = StageTraits("transformer", "WanTransformer3DModel", ("bfloat16",), head_dim=128, tokens=7800, reachable=True)


def on_card(arch: str, installed: tuple[str, ...] = ("flash_attn", "sageattention"), **packages: Package) -> Machine:
    fine = Fact(True, "a product ran on it", "a test")
    vendor: Any = "amd" if arch.startswith("gfx") else "nvidia"
    there = {name: Package(name, name, "2.8", "", True, "imports") for name in installed}
    found = machine(*(f"diffusers.{name}" for name in NAMES))
    card = Gpu(0, vendor, "a card", 2**35, arch, "580", "13.0", fine, fine)
    return replace(found, gpus=(card,), packages={**there, **packages})


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_120"])
def test_newer_nvidia_cards_can_run_all_of_them(arch: str) -> None:
    for name in NAMES:
        assert backend("attention", name).why_not(on_card(arch), TRAITS) == []


@pytest.mark.parametrize(
    ("name", "on", "reason"),
    [
        ("cudnn", on_card("sm_75"), r"cuDNN attention runs on .* 8\.0 or newer, found sm_75"),
        ("sage", on_card("gfx950"), "found gfx950"),
        ("flash", machine(), "found no GPU that can be used"),
        ("flash", on_card("sm_89", ()), f"flash_attn is not installed: `{PYTHON} -m pip install flash-attn`"),
        ("sage", on_card("sm_89", ()), f"sageattention is not installed: `{PYTHON} -m pip install sageattention`"),
        (
            "sage",
            on_card("sm_89", sageattention=Package("sageattention", "s", "1", "", False, "no symbol")),
            "no symbol",
        ),
        ("cudnn", replace(on_card("sm_89"), proofs={}), "diffusers.cudnn has not been tried"),
        ("flash", replace(on_card("sm_89"), proofs={"diffusers.flash": Proof(False, "killed by SIGSEGV")}), "SIGSEGV"),
    ],
)
def test_reasons_are_sentences(name: str, on: Machine, reason: str) -> None:
    (sentence,) = backend("attention", name).why_not(on, TRAITS)
    assert re.search(reason, sentence), sentence


def test_auto_takes_none_and_sage_is_for_a_person_to_ask() -> None:
    assert backend("attention", "sage").why_not(on_card("sm_89"), replace(TRAITS, head_dim=80)) == [
        "head size 80 is not 64 or 128"
    ]
    assert (CUDNN.exact, FLASH.exact, SAGE.exact) == (True, True, False)
    traits = ModelTraits("Wan", "WanPipeline", (TRAITS,))
    for wish, engaged in (("auto", "sdpa"), ("cudnn", "cudnn"), ("sage", "sage")):
        plan = make_plan(on_card("sm_89"), traits, Preferences(attention=wish))
        assert plan.stages[0].attention.engaged == engaged


# -- calls -----------------------------------------------------------------------------------------------------------


def call(tokens: int = 33, keys: int = 20, heads: int = 4, kv: int = 4, size: int = 64, **more: Any) -> AttentionCall:
    draw = torch.Generator().manual_seed(tokens)
    q = torch.randn(2, tokens, heads, size, generator=draw).bfloat16()
    k, v = torch.randn(2, 2, keys, kv, size, generator=draw).bfloat16()
    return AttentionCall(q, k, v, **more)


@pytest.fixture
def emulated() -> Iterator[None]:
    with emulator.installed():
        yield


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("name", NAMES)
def test_attention_is_right_emulated(name: str) -> None:
    chosen: Any = backend("attention", name)
    for one in (call(), call(scale=0.3), call(20, 20, causal=True), call(size=128)):
        wide = AttentionCall(one.query.double(), one.key.double(), one.value.double(), None, one.scale, one.causal)
        got = chosen.run(one)
        assert got.is_contiguous()
        assert relative(got, attend(wide)) < 1e-2


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (call(size=80), "head size 80 is not 64 or 128"),
        (call(mask=torch.ones(2, 20, dtype=torch.bool)), "a mask"),
        (call(causal=True), "causal attention with different query and key lengths"),
        (call(heads=6, kv=3), "6 query heads beside 3 key heads"),
        (AttentionCall(*torch.ones(3, 1, 9, 2, 64)), "float32 input"),
    ],
)
def test_refusals_are_sentences_emulated(one: AttentionCall, reason: str) -> None:
    for name in NAMES:
        chosen: Any = backend("attention", name)
        with pytest.raises(Refused, match=reason):
            chosen.run(one)


def test_off_an_nvidia_gpu_is_refused() -> None:
    with pytest.raises(Refused, match="the tensors are on cpu, this kernel runs on compute capability"):
        CUDNN.run(call())


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("said", "served"), [("No available kernel. Aborting execution.", False), ("out of it", None)])
def test_a_call_without_a_kernel_is_counted_and_other_errors_are_not_hidden_emulated(
    said: str, served: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*args: Any, **more: Any) -> Any:
        raise RuntimeError(said)

    monkeypatch.setattr(bridge, "own_attention", lambda name: nothing)
    tally, one = Tally("transformer", "attention", "cudnn"), call()
    slot = ATTENTION.add(AttentionSlot(CUDNN, tally))
    try:
        if served is None:
            with pytest.raises(RuntimeError, match="out of it"):
                attention(one.query, one.key, one.value, None, None, False, slot)
            return
        got = attention(one.query, one.key, one.value, None, None, False, slot)
    finally:
        ATTENTION.remove(slot)
    torch.testing.assert_close(got, attend(one), rtol=0, atol=0)
    assert dict(tally.reasons) == {"cuDNN attention has no kernel for this call": 1}


def test_diffusers_knows_the_names() -> None:
    for item in (CUDNN, FLASH, SAGE):
        assert callable(bridge.own_attention(item.own))


def test_an_unknown_release_of_diffusers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "KNOWN_SERIES", ("0.1.",))
    with pytest.raises(Refused, match="is not one whose attention dispatcher is known here"):
        bridge.own_attention("flash")
