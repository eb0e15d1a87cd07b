"""The GPU's check itself, on stand-ins and small shapes: it passes what is right and finds what is wrong. Emulated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from accel import gpucheck
from accel.backends import backend
from accel.backends.fa3 import Fa3
from accel.checking import passes
from accel.checking.line import relative
from accel.contract import AttentionCall, Refused, attend
from accel.fused import plain
from tests import builders
from tests.emulators import aiter
from tests.emulators import sgl_kernel_cuda as emulator
from tests.emulators.sgl_kernel_cpu import real_build

pytestmark = pytest.mark.skipif(real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")
CPU = torch.device("cpu")


def attended(name: str, tokens: tuple[int, ...]) -> list[gpucheck.Case]:
    """The cases of one backend, none of them refused."""
    found = list(gpucheck.attention_cases(backend("attention", name), CPU, tokens))
    assert not [text for text in found if isinstance(text, str)]
    return [case for case in found if isinstance(case, gpucheck.Case)]


def test_a_refused_case_is_told_and_the_others_go_on_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN has no kernel for a single key: on an H200 that ended the whole check."""
    run = Fa3.run

    def picky(self: Any, call: AttentionCall) -> torch.Tensor:
        if call.key.shape[1] == 1:
            raise Refused("no kernel for one key")
        return run(self, call)

    monkeypatch.setattr(Fa3, "run", picky)
    with emulator.installed():
        found = list(gpucheck.attention_cases(backend("attention", "fa3"), CPU, (65,)))
    told = [text for text in found if isinstance(text, str)]
    assert len(told) == len(gpucheck.SIZES) * len(gpucheck.BATCHES)
    assert all("refused: no kernel for one key" in text for text in told)
    assert len(found) == len(told) * len(gpucheck.KEYS)


@pytest.mark.parametrize("name", ["fa3", "fa3_fp8"])
def test_right_attention_passes_emulated(name: str) -> None:
    with emulator.installed():
        found = attended(name, (1, 65))
    print("\n".join(case.text() for case in found))
    assert len(found) == 2 * len(gpucheck.SIZES) * len(gpucheck.BATCHES) * len(gpucheck.KEYS)
    assert all(case.right for case in found)


@pytest.mark.parametrize("name", ["aiter_bf16", "aiter_fmha_fp8", "aiter_mla_fp8"])
def test_right_attention_on_amd_passes_emulated(name: str) -> None:
    with aiter.installed():
        found = attended(name, (1, 65))
    print("\n".join(case.text() for case in found))
    sizes = gpucheck.SIZES if name == "aiter_bf16" else (128,)
    assert len(found) == 2 * len(sizes) * len(gpucheck.BATCHES) * len(gpucheck.KEYS)
    assert all(case.right for case in found)


def test_wrong_attention_is_found_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Fa3.run

    def forgetful(self: Any, call: AttentionCall) -> torch.Tensor:
        return run(self, replace(call, scale=None))

    monkeypatch.setattr(Fa3, "run", forgetful)
    with emulator.installed():
        found = attended("fa3", (65,))
    assert not any(case.right for case in found if "1 keys" not in case.case)


def test_sampled_rows_are_those_of_the_whole() -> None:
    call = gpucheck.attention_call(2, 33, 17, 3, 64, CPU)
    wide = AttentionCall(call.query.double(), call.key.double(), call.value.double(), scale=call.scale)
    rows = torch.tensor([0, 7, 32])
    assert relative(gpucheck.exact_rows(call, rows), attend(wide)[:, rows]) < 1e-12


def test_linears_and_quantising_pass_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpucheck, "LINEARS", ((17, 64, 96), (1, 256, 32)))
    with emulator.installed():
        found = [*gpucheck.linear_cases(backend("linear", "fp8"), CPU), *gpucheck.quantising_cases(CPU)]
    assert all(case.right for case in found), [case.text() for case in found]


def test_what_cannot_run_is_said_and_nothing_checked_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpucheck, "probe", lambda patience: builders.machine())
    assert gpucheck.main([]) == 1
    out = capsys.readouterr().out
    assert "fa3 can't run here: FlashAttention-3 runs on compute capability 9.0" in out
    assert "fp8 can't run here: FP8 products need" in out
    assert "were right" not in out


def test_only_the_named_backends_are_checked_and_one_left_out_is_no_success_emulated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpucheck, "probe", lambda patience: builders.machine())
    monkeypatch.setattr(gpucheck, "TOKENS", (17,))
    monkeypatch.setattr(Fa3, "why_not", lambda self, machine, traits: [])
    with emulator.installed():
        assert gpucheck.main(["fa3", "--device", "cpu"]) == 0
        alone = capsys.readouterr().out
        assert gpucheck.main(["fa3", "fp8", "--device", "cpu"]) == 1
    both = capsys.readouterr().out
    assert "fa3 " in alone
    assert "fp8" not in alone
    assert "all 16 cases were right\nnot checked at all: fp8\n" in both
    with pytest.raises(SystemExit):
        gpucheck.main(["fa4"])
    assert "there is no backend fa4 for GPUs: take some of fa3" in capsys.readouterr().err


def test_right_passes_pass_and_a_wrong_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "TOKENS", 3)
    monkeypatch.setattr(passes, "SHAPES", ((256, 2),))
    right = list(gpucheck.fused_cases(plain, CPU))
    assert len(right) == 21
    assert all(case.right for case in right)

    class Wrong:
        def __getattr__(self, name: str) -> Any:
            run = getattr(plain, name)
            if name == "rows":  # hides what is not finite
                return lambda x, form: run(x.nan_to_num(), form)
            return run if name != "normed" else lambda x, norm, modulation: run(x, norm, modulation) * 1.1

    found = list(gpucheck.fused_cases(Wrong(), CPU))
    assert {case.case.split(",")[0] for case in found if not case.right} == {
        "rows that are not finite",
        *(f"{kind} norm{where}" for kind in ("modulated", "affine") for where in ("", " by token")),
    }
