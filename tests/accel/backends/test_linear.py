"""Packed linears against float64, their exact way back, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from accel.backends import backend
from accel.checking.line import HEADER, relative
from accel.contract import Refused
from accel.originals import same_bits
from accel.selfcheck import lines_for
from tests.emulators import sgl_kernel_cpu as emulator

needs_emulator = pytest.mark.skipif(emulator.real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")
needs_bf16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN packs bf16 only with AVX512_BF16 or AMX"
)
needs_int8 = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="this torch build has no fbgemm"
)


def check_lines(name: str) -> None:
    faults: list[str] = []
    cases = 0
    print(HEADER)
    with torch.inference_mode():
        for line in lines_for(backend("linear", name), quick=True):
            print(line.text())
            cases += line.cases
            faults += line.faults
    assert cases
    assert not faults, faults[:10]


@needs_bf16
def test_onednn_bf16_is_right() -> None:
    check_lines("onednn_bf16")


@needs_int8
def test_dynamic_int8_is_right() -> None:
    check_lines("dynamic_int8")


@needs_emulator
@pytest.mark.parametrize("name", ["sgl_amx_bf16", "sgl_amx_int8"])
def test_sgl_linears_are_right_emulated(name: str) -> None:
    with emulator.installed() as calls:
        check_lines(name)
    assert calls["weight_packed_linear" if name == "sgl_amx_bf16" else "int8_scaled_mm_with_quant"] > 100


PRODUCT = torch.ops.mkldnn._linear_pointwise


def leaking(rows: torch.Tensor, packed: torch.Tensor, *others: Any) -> torch.Tensor:
    """oneDNN's product as its issue 5717 has it on AMX: what is not finite in one row spoils the others of its block,
    where the inner dimension is no multiple of 32."""
    out: torch.Tensor = PRODUCT(rows, packed, *others)
    spoilt = rows.shape[1] % 32 and not rows.isfinite().all()
    return out.fill_(float("nan")) if spoilt else out


@needs_emulator
@pytest.mark.parametrize("ins", [31, 33, 80, 144])
@pytest.mark.parametrize("name", [pytest.param("onednn_bf16", marks=needs_bf16), "sgl_amx_bf16", "sgl_amx_int8"])
def test_a_nan_row_spoils_no_other_row_emulated(name: str, ins: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 9: inner dimensions that are no multiple of 32, by kernels that leak there."""
    draw = torch.Generator().manual_seed(ins)
    weight = torch.randn(96, ins, generator=draw).bfloat16()
    rows = torch.randn(40, ins, generator=draw).bfloat16()
    want, clean = rows.float() @ weight.float().T, torch.arange(40) != 7
    rows[7] = float("nan")
    with emulator.installed():
        matrix = pack(name, weight)
        monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", leaking)
        got = matrix.run(rows, None)
    assert got[clean].isfinite().all()
    assert relative(got[clean], want[clean]) < (3e-2 if name == "sgl_amx_int8" else 1e-2)
    assert name == "sgl_amx_int8" or got[7].isnan().all()


@pytest.mark.parametrize("ins", [31, 33, 80, 144])
def test_a_nan_row_spoils_no_other_row_of_plain_pytorch(ins: int) -> None:
    """Case 9: what serves where no backend does, as this machine computes it."""
    draw = torch.Generator().manual_seed(ins)
    rows, weight = (torch.randn(2, count, ins, generator=draw).bfloat16() for count in (40, 96))
    want = rows.double() @ weight.double().transpose(1, 2)
    clean = torch.arange(40) != 7
    rows[0, 7] = float("nan")
    for got in (torch.bmm(rows, weight.transpose(1, 2)), torch.stack([F.linear(rows[i], weight[i]) for i in (0, 1)])):
        assert got[0, 7].isnan().all()
        assert relative(got[1], want[1]) < 1e-2
        assert relative(got[0, clean], want[0, clean]) < 1e-2


def pack(name: str, weight: torch.Tensor) -> Any:
    chosen: Any = backend("linear", name)
    return chosen.pack(weight)


def any_bits(outs: int, ins: int, seed: int) -> torch.Tensor:
    """bf16 numbers of every exponent: zeros of both signs, infinities and subnormals included; NaN left out."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**15), 2**15, (outs, ins), generator=generator, dtype=torch.int16)
    weight = bits.view(torch.bfloat16)
    return torch.where(weight.isnan(), torch.tensor(-0.0, dtype=torch.bfloat16), weight)


@needs_bf16
@settings(deadline=None, max_examples=30)
@given(outs=st.integers(1, 130), ins=st.integers(1, 130), seed=st.integers(0, 1000))
def test_onednn_unpacks_bit_for_bit(outs: int, ins: int, seed: int) -> None:
    weight = any_bits(outs, ins, seed)
    assert same_bits(pack("onednn_bf16", weight).unpack(), weight)


@needs_emulator
@settings(deadline=None, max_examples=20)
@given(outs=st.integers(1, 9).map(lambda n: 16 * n), ins=st.integers(1, 200), seed=st.integers(0, 1000))
def test_sgl_unpacks_bit_for_bit_emulated(outs: int, ins: int, seed: int) -> None:
    weight = any_bits(outs, ins, seed)
    with emulator.installed():
        assert same_bits(pack("sgl_amx_bf16", weight).unpack(), weight)


@needs_emulator
def test_a_packer_that_is_no_rearrangement_is_noticed_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unpacked weight counts only when packing it again gives the same bits."""
    with emulator.installed():
        matrix = pack("sgl_amx_bf16", torch.randn(32, 64).bfloat16())
        matrix.packed.view(-1)[5] = float("inf")  # now no packed form of any weight that ends up elsewhere
        from accel.backends import amx_bf16

        monkeypatch.setattr(amx_bf16, "operator", lambda name: lambda w: emulator.convert_weight_packed(w.abs()))
        with pytest.raises(RuntimeError, match="did not give the weight back"):
            matrix.unpack()


@needs_emulator
def test_packing_twice_is_garbage_in_the_library_emulated() -> None:
    """The fault that had the upstream change reverted; the emulator has it, so that tests of idempotence mean
    something.
    """
    weight = torch.randn(64, 64).bfloat16()
    once = emulator.convert_weight_packed(weight)
    twice = emulator.convert_weight_packed(once)
    rows = torch.randn(4, 64).bfloat16()
    right = relative(emulator.packed_linear(rows, once, None, True), F.linear(rows.double(), weight.double()))
    wrong = relative(emulator.packed_linear(rows, twice, None, True), F.linear(rows.double(), weight.double()))
    print(f"packed once {right:.1e}, twice {wrong:.1e}")
    assert right < 1e-2 < 0.5 < wrong


@pytest.mark.parametrize(
    ("name", "outs", "ins", "dtype", "reason"),
    [
        ("onednn_bf16", 17, 33, "bfloat16", ""),
        ("onednn_bf16", 64, 64, "float32", "kept in float32 by the model"),
        ("sgl_amx_bf16", 48, 33, "bfloat16", ""),
        ("sgl_amx_bf16", 17, 32, "bfloat16", "17 outputs are no multiple of 16"),
        ("sgl_amx_bf16", 64, 64, "float32", "kept in float32"),
        ("sgl_amx_int8", 64, 33, "bfloat16", ""),
        ("sgl_amx_int8", 48, 32, "bfloat16", "48 outputs are no multiple of 32"),
        ("dynamic_int8", 64, 96, "float32", ""),
        ("dynamic_int8", 64, 32, "float32", "too small to gain"),
        ("dynamic_int8", 64, 96, "bfloat16", "kept in bfloat16"),
    ],
)
def test_weights_that_stay(name: str, outs: int, ins: int, dtype: str, reason: str) -> None:
    chosen: Any = backend("linear", name)
    answer = chosen.why_not_weight(outs, ins, dtype)
    assert (reason in answer) if reason else (answer == "")


@needs_int8
def test_dynamic_int8_leaves_inputs_that_are_not_finite_to_the_reference() -> None:
    matrix = pack("dynamic_int8", torch.randn(64, 64))
    rows = torch.randn(3, 64)
    rows[1, 1] = float("inf")
    with pytest.raises(Refused, match="not finite"):
        matrix.run(rows, None)
    assert matrix.unpack() is None


@needs_int8
@settings(deadline=None, max_examples=25)
@given(rows=st.integers(1, 70), scale=st.sampled_from([1e-3, 1.0, 1e4]), seed=st.integers(0, 100))
def test_dynamic_int8_error_does_not_depend_on_the_scale(rows: int, scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight, inputs = torch.randn(80, 96, generator=generator), torch.randn(rows, 96, generator=generator) * scale
    error = relative(pack("dynamic_int8", weight).run(inputs, None), inputs.double() @ weight.double().T)
    print(f"relative error {error:.1e}")
    assert error < 4e-2
