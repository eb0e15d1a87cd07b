"""What each backend says against a machine: every sentence names what is missing, and what is there can be used."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import pytest
import torch

from accel import advice
from accel.backends import REGISTRY, backend, backends, reference
from accel.contract import Backend
from accel.types import Flag, Kind, Package, Proof, StageTraits
from tests.builders import machine
from tests.emulators import sgl_kernel_cpu as emulator

SGL = ("flash_attn_varlen_func", "convert_weight_packed", "weight_packed_linear", "int8_scaled_mm_with_quant")
AMX = ("avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
PROOFS = ("bf16", "packed_bf16", "int8", "conv3d", *(f"sgl_kernel.{name}" for name in SGL))
TRAITS = StageTraits("transformer", "WanTransformer3DModel", head_dim=128, reachable=True)
VAE = StageTraits("vae", "AutoencoderKLWan", conv3d=30)
XEON = machine(*PROOFS, flags=AMX, operators=SGL)


def reasons(kind: Kind, name: str, on: Any, traits: StageTraits | None = None) -> list[str]:
    return backend(kind, name).why_not(on, traits or (VAE if kind == "vae" else TRAITS))


@pytest.mark.parametrize("item", REGISTRY, ids=lambda item: f"{item.kind}-{item.name}")
def test_a_xeon_with_everything_can_run_everything_on_cpu(item: Backend) -> None:
    if "cpu" in item.devices:
        package = Package("torchao", "torchao", "0.18.0", "", True, "imports")
        here = dataclasses.replace(XEON, packages={**XEON.packages, "torchao": package})
        assert item.why_not(here, VAE if item.kind == "vae" else TRAITS) == []


@pytest.mark.parametrize("item", REGISTRY, ids=lambda item: f"{item.kind}-{item.name}")
def test_a_bare_machine_gets_sentences(item: Backend) -> None:
    answer = item.why_not(machine(), VAE if item.kind == "vae" else TRAITS)
    assert bool(answer) != item.reference
    assert all(reason and "\n" not in reason and "None" not in reason for reason in answer)


def test_every_kind_has_one_reference_and_unique_names() -> None:
    for kind in ("attention", "linear", "vae"):
        items = backends(kind)
        assert [item.reference for item in items] == [True] + [False] * (len(items) - 1)
        assert len({item.name for item in items}) == len(items)
        assert reference(kind) is items[0]
        assert isinstance(items[0], Backend)


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(KeyError, match="no attention backend 'fast'; there are sdpa, sgl_amx"):
        backend("attention", "fast")


def test_int8_and_fp8_alone_are_approximate() -> None:
    assert {item.name for item in REGISTRY if not item.exact and "cpu" in item.devices} == {
        "sgl_amx_int8",
        "dynamic_int8",
        "torchao_int8",
        "torchao_fp8",
    }


@pytest.mark.parametrize("name", ["sgl_amx_bf16", "sgl_amx_int8"])
def test_sgl_reasons_for_linears(name: str) -> None:
    no_amx = machine(*PROOFS, flags=("avx512_bf16",), operators=SGL)
    assert reasons("linear", name, no_amx) == ["this CPU has no amx_tile"]
    cuda = machine(*PROOFS, flags=AMX, operators=("fwd",))
    assert "registers no convert_weight_packed" in reasons("linear", name, cuda)[0]
    assert reasons("linear", name, cuda)[0].endswith(advice.SGL_CPU)
    assert "is not installed" in reasons("linear", name, machine(*PROOFS, flags=AMX))[0]


def test_lying_amx_bits_are_the_reason() -> None:
    """CASES: a VM that advertises AMX and has no usable palette."""
    lying = Flag(True, False, "advertised, not usable: the first product died of SIGILL", "a child process")
    cpu = dataclasses.replace(XEON.cpu, flags={**XEON.cpu.flags, "amx_tile": lying, "amx_bf16": lying})
    on = dataclasses.replace(XEON, cpu=cpu)
    assert reasons("attention", "sgl_amx", on) == ["advertised, not usable: the first product died of SIGILL"]


def test_a_broken_package_says_its_own_reason() -> None:
    broken = Package("sgl_kernel", "sglang-kernel-cpu", "0.1", "cpu", False, "built for torch 2.9, found 2.13")
    on = dataclasses.replace(XEON, packages={"sgl_kernel": broken})
    assert reasons("attention", "sgl_amx", on) == ["sgl_kernel 0.1 does not import: built for torch 2.9, found 2.13"]


def test_a_failed_trial_run_is_the_reason() -> None:
    died = Proof(False, "the process died of SIGSEGV")
    for kind, name, task in (
        ("attention", "sgl_amx", "sgl_kernel.flash_attn_varlen_func"),
        ("linear", "sgl_amx_bf16", "sgl_kernel.weight_packed_linear"),
        ("linear", "onednn_bf16", "packed_bf16"),
        ("linear", "dynamic_int8", "int8"),
        ("vae", "direct_conv3d", "conv3d"),
        ("vae", "bf16_channels_last", "bf16"),
    ):
        on = dataclasses.replace(XEON, proofs={**XEON.proofs, task: died})
        answer = reasons(kind, name, on)  # type: ignore[arg-type]
        assert len(answer) == 1
        assert answer[0].startswith("the process died of SIGSEGV")


@pytest.mark.parametrize(
    ("size", "serves"), [(32, True), (128, True), (256, True), (0, True), (80, False), (288, False)]
)
def test_head_sizes(size: int, serves: bool) -> None:
    traits = dataclasses.replace(TRAITS, head_dim=size)
    answer = reasons("attention", "sgl_amx", XEON, traits)
    assert answer == ([] if serves else [f"head size {size} is not one of 32, 64, ... 256"])


def test_bf16_vae_needs_the_instructions() -> None:
    slow = machine(*PROOFS, flags=("avx2",))
    assert "neither AVX512_BF16 nor AMX" in reasons("vae", "bf16_channels_last", slow)[0]
    assert reasons("vae", "bf16_channels_last", machine(*PROOFS, flags=("avx512_bf16",))) == []
    flat = dataclasses.replace(VAE, conv3d=0)
    assert "has no 3-D convolution" in reasons("vae", "direct_conv3d", XEON, flat)[0]


@pytest.mark.skipif(emulator.real_build(), reason="a real sgl_kernel is loaded: nothing to emulate")
def test_one_thread_at_a_time_enters_the_amx_path_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads in one AMX kernel object have crashed others' servers."""
    inside, seen, gate = 0, 0, threading.Lock()
    stock = emulator.packed_linear

    def slow(*args: Any) -> torch.Tensor:
        nonlocal inside, seen
        with gate:
            inside += 1
            seen = max(seen, inside)
        time.sleep(0.005)
        with gate:
            inside -= 1
        return stock(*args)

    monkeypatch.setattr(emulator, "packed_linear", slow)
    with emulator.installed() as calls:
        chosen: Any = backend("linear", "sgl_amx_bf16")
        matrix, rows = chosen.pack(torch.randn(16, 32).bfloat16()), torch.randn(2, 32).bfloat16()
        threads = [threading.Thread(target=lambda: [matrix.run(rows, None) for _ in range(5)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert calls["weight_packed_linear"] == 20
    assert seen == 1
