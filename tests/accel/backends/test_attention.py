"""Attention backends against float64: parity (the sweep of accel.selfcheck), and refusals that are counted."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accel.backends import backend
from accel.checking.line import HEADER, relative
from accel.contract import AttentionCall, Refused, attend
from accel.ops import ATTENTION, AttentionSlot, attention
from accel.report import Tally
from accel.selfcheck import lines_for
from tests.emulators import sgl_kernel_cpu as emulator

needs_emulator = pytest.mark.skipif(emulator.real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")


def check_lines(name: str) -> None:
    faults = []
    print(HEADER)
    with torch.inference_mode():
        for line in lines_for(backend("attention", name), quick=True):
            print(line.text())
            assert line.cases
            faults += line.faults
    assert not faults, faults[:10]


def test_sdpa_is_right() -> None:
    check_lines("sdpa")


@needs_emulator
@pytest.mark.parametrize("sm_scale", [True, False])
def test_sgl_amx_is_right_emulated(sm_scale: bool) -> None:
    with emulator.installed(sm_scale) as calls:
        check_lines("sgl_amx")
        assert calls["flash_attn_varlen_func"] > 100


def call(
    batch: int = 2, tokens: int = 17, keys: int = 9, heads: int = 2, size: int = 64, **more: object
) -> AttentionCall:
    generator = torch.Generator().manual_seed(tokens)
    q = torch.randn(batch, tokens, heads, size, generator=generator).bfloat16()
    k, v = torch.randn(2, batch, keys, heads, size, generator=generator).bfloat16()
    return AttentionCall(q, k, v, **more)  # type: ignore[arg-type]


def exact(one: AttentionCall) -> torch.Tensor:
    return attend(
        AttentionCall(one.query.double(), one.key.double(), one.value.double(), one.mask, one.scale, one.causal)
    )


@needs_emulator
@settings(deadline=None, max_examples=40)
@given(
    batch=st.integers(1, 3),
    tokens=st.integers(1, 40),
    keys=st.integers(1, 70),
    heads=st.sampled_from([1, 2, 3]),
    size=st.sampled_from([32, 96, 256]),
    scale=st.sampled_from([None, 0.05, 1.0]),
    hidden=st.integers(0, 2**32 - 1),
)
def test_sgl_amx_hidden_keys_emulated(
    batch: int, tokens: int, keys: int, heads: int, size: int, scale: float | None, hidden: int
) -> None:
    """Any set of hidden keys per item gives what float64 attention gives, or is refused as hiding everything."""
    mask = torch.rand(batch, keys, generator=torch.Generator().manual_seed(hidden)) < 0.7
    one = call(batch, tokens, keys, heads, size, scale=scale, mask=mask[:, None, None])
    with emulator.installed():
        if not mask.any(1).all():
            with pytest.raises(Refused, match="hides every key"):
                backend("attention", "sgl_amx").run(one)  # type: ignore[attr-defined]
        else:
            got = backend("attention", "sgl_amx").run(one)  # type: ignore[attr-defined]
            error = relative(got, exact(one))
            print(f"relative error {error:.1e}")
            assert error < 1e-2


@needs_emulator
@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (call(size=40), "head size 40 is not one of 32, 64, ... 256"),
        (call(size=288), "head size 288"),
        (call(mask=torch.randn(2, 1, 1, 9)), "weights keys instead of hiding"),
        (call(mask=torch.ones(2, 1, 17, 9, dtype=torch.bool)), "a mask per query"),
        (call(mask=torch.ones(2, 2, 1, 9, dtype=torch.bool)), "a mask per head"),
        (call(mask=torch.ones(2, 2, 17, 9, dtype=torch.bool)), "a mask per head and query"),
        (call(mask=torch.zeros(2, 1, 1, 9, dtype=torch.bool)), "hides every key"),
        (call(causal=True), "causal attention"),
    ],
)
def test_sgl_amx_refusals_are_counted_and_right_emulated(one: AttentionCall, reason: str) -> None:
    tally = Tally("transformer", "attention", "sgl_amx")
    slot = ATTENTION.add(AttentionSlot(backend("attention", "sgl_amx"), tally))  # type: ignore[arg-type]
    try:
        with emulator.installed() as calls:
            got = attention(one.query, one.key, one.value, one.mask, one.scale, one.causal, slot)
    finally:
        ATTENTION.remove(slot)
    assert (tally.served_calls, tally.fallen_back, calls) == (0, 1, {})
    assert reason in next(iter(tally.reasons))
    torch.testing.assert_close(got, attend(one), equal_nan=True, rtol=0, atol=0)


@needs_emulator
@pytest.mark.parametrize("height", [20.0, 24.0, 30.0])
def test_sgl_amx_never_passes_an_overflown_softmax_on_emulated(height: float) -> None:
    """Scores of 75, 90 and 112 in the first block of keys, small ones in the next: served right, or refused."""
    one = call(batch=1, tokens=40, keys=900)
    one.query[..., 0] = 30.0
    one.key[:, :50, :, 0], one.key[:, 50:, :, 0] = height, 0.0
    with emulator.installed():
        run = backend("attention", "sgl_amx").run  # type: ignore[attr-defined]
        if height > 22:
            with pytest.raises(Refused, match="too far apart"):
                run(one)
        else:
            error = relative(run(one), exact(one))
            print(f"relative error {error:.1e}")
            assert error < 1e-2


@needs_emulator
def test_sgl_amx_refuses_float32_and_other_devices_emulated() -> None:
    wide = call()
    with emulator.installed():
        run = backend("attention", "sgl_amx").run  # type: ignore[attr-defined]
        with pytest.raises(Refused, match="float32 input"):
            run(AttentionCall(wide.query.float(), wide.key.float(), wide.value.float()))
        with pytest.raises(Refused, match="differ in dtype"):
            run(AttentionCall(wide.query, wide.key.half(), wide.value))
        with pytest.raises(Refused, match="the tensors are on meta"):
            run(AttentionCall(wide.query.to("meta"), wide.key, wide.value))


@needs_emulator
def test_sgl_amx_without_the_operator_refuses_emulated() -> None:
    with emulator.installed(without=("flash_attn_varlen_func",)), pytest.raises(Refused, match="registers no"):
        backend("attention", "sgl_amx").run(call())  # type: ignore[attr-defined]


@needs_emulator
@pytest.mark.parametrize("sm_scale", [True, False])
def test_sgl_amx_needs_no_scaling_for_the_default_scale_emulated(sm_scale: bool) -> None:
    """On builds with a fixed scale the query must not be touched when the asked scale is that very one."""
    one = call(scale=64**-0.5)
    with emulator.installed(sm_scale):
        run = backend("attention", "sgl_amx").run  # type: ignore[attr-defined]
        assert torch.equal(run(one), run(call()))


@needs_emulator
def test_grouped_heads_emulated() -> None:
    one = call(heads=4)
    grouped = AttentionCall(one.query, one.key[:, :, :2], one.value[:, :, :2])
    with emulator.installed():
        error = relative(backend("attention", "sgl_amx").run(grouped), exact(grouped))  # type: ignore[attr-defined]
    print(f"relative error {error:.1e}")
    assert error < 1e-2


def test_two_dimensional_masks_reach_the_reference() -> None:
    """CASES: two prompts of different length in one batch against each alone, through a (batch, keys) mask."""
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    one = call(mask=mask)
    both = attend(one)
    alone = attend(AttentionCall(one.query[1:], one.key[1:, :5], one.value[1:, :5]))
    error = relative(both[1:], alone)
    print(f"relative error {error:.1e}")
    assert error < 1e-2


def test_registry_asks_without_torch() -> None:
    """Asking a backend must not load a kernel, or --help and the page would."""
    import subprocess

    code = "import accel.backends, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
