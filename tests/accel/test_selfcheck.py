"""The sweep's own judgement: it passes what is right, and finds what is wrong, leaks, is dropped or is miscounted."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from accel import backends, selfcheck
from accel.backends.sdpa import Sdpa
from accel.contract import AttentionCall, attend
from tests.builders import machine
from tests.emulators import sgl_kernel_cpu as emulator


class Wrong(Sdpa):
    """sdpa under another name, spoiled in one way."""

    name = "wrong"
    reference = False

    def __init__(self, how: str) -> None:
        self.how = how

    def run(self, call: AttentionCall) -> torch.Tensor:
        if self.how == "drops masks":
            return attend(AttentionCall(call.query, call.key, call.value, None, call.scale, call.causal))
        if self.how == "ignores the scale":
            return attend(AttentionCall(call.query, call.key, call.value, call.mask, None, call.causal))
        out = attend(call)
        if self.how == "leaks" and out.isnan().any():
            return out + float("nan")
        if self.how == "slightly off":
            return out * 1.02
        return out


@pytest.mark.parametrize("how", ["drops masks", "ignores the scale", "leaks", "slightly off"])
def test_a_wrong_backend_is_found(how: str) -> None:
    with torch.inference_mode():
        lines = list(selfcheck.lines_for(Wrong(how), quick=True))
    assert any(line.faults for line in lines)


def test_a_right_backend_is_held_to_the_head_sizes_that_it_names_and_to_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def faults() -> list[str]:
        with torch.inference_mode():
            return [fault for line in selfcheck.lines_for(Wrong("nothing"), quick=True) for fault in line.faults]

    assert faults() == []
    monkeypatch.setattr(Wrong, "head_sizes", (32, 64, 128), raising=False)
    found = faults()
    assert found
    assert all("x 40: served" in fault for fault in found)


def test_a_machine_with_nothing_says_why_and_passes() -> None:
    out = io.StringIO()
    assert selfcheck.run_sweep(out, machine(), quick=True) == 0
    text = out.getvalue()
    assert "every case was right" in text
    assert "sgl_amx             can't run here: this CPU has no amx_tile\n" in text


@pytest.mark.skipif(emulator.real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")
def test_a_xeon_with_amx_sweeps_all_three_sgl_backends_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("flash_attn_varlen_func", "convert_weight_packed", "weight_packed_linear", "int8_scaled_mm_with_quant")
    proofs = tuple(f"sgl_kernel.{name}" for name in names)
    amx = machine(*proofs, flags=("amx_tile", "amx_bf16", "amx_int8"), operators=names)
    wanted = tuple(item for item in backends.REGISTRY if item.name.startswith("sgl_"))
    monkeypatch.setattr(selfcheck, "REGISTRY", wanted)
    out = io.StringIO()
    with emulator.installed():
        code = selfcheck.run_sweep(out, amx, quick=True)
    print(out.getvalue())
    assert code == 0
    assert {line.split()[0] for line in out.getvalue().splitlines() if " right" in line and "sgl" in line} == {
        "sgl_amx",
        "sgl_amx_bf16",
        "sgl_amx_int8",
    }


def test_only_the_backends_that_were_named_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    assert selfcheck.run_sweep(out, machine(), quick=True, only=["sgl_amx", "sgl_amx_int8"]) == 0
    assert [line.split()[0] for line in out.getvalue().splitlines()[2:-1]] == ["sgl_amx", "sgl_amx_int8"]
    monkeypatch.setattr("sys.argv", ["selfcheck", "sgl"])
    with pytest.raises(SystemExit):
        selfcheck.main()


def test_faults_make_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Any = Wrong("slightly off")
    monkeypatch.setattr(selfcheck, "REGISTRY", (wrong,))
    out = io.StringIO()
    assert selfcheck.run_sweep(out, machine(), quick=True) == 1
    assert "FAULTS" in out.getvalue()
