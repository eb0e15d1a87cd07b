"""What the profiler, oneDNN and the system say of a call."""

from __future__ import annotations

import os
import sys

import pytest
import torch
import torch.nn.functional as F

from accel.measuring.executed import _heard, _onednn_talks, _short, executed, implementations, memory

LINES = """onednn_verbose,v1,info,oneDNN v3.11
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src_bf16,,,8x8:8x8,0.1
onednn_verbose,v1,primitive,exec,cpu,reorder,simple:any,undef,,,,8x8,0.1
onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx512_core,forward,,,,mb1,0.1
onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,,,,8x8:8x8,0.1""".splitlines()


def test_the_kernel_that_ran_is_named() -> None:
    q = torch.randn(1, 4, 256, 32)
    assert "scaled_dot_product" in executed(lambda: F.scaled_dot_product_attention(q, q, q), "cpu")
    x = torch.randn(512, 512)
    told = executed(lambda: F.linear(x, x), "cpu")
    assert told.startswith("aten::mm ")
    assert "%" in told


def test_a_custom_op_is_seen_through() -> None:
    @torch.library.custom_op("accel_test::wrapped", mutates_args=())
    def wrapped(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    x = torch.randn(512, 512)
    assert "aten::mm" in executed(lambda: wrapped(x), "cpu")


def test_onednn_tells_its_implementations_each_once() -> None:
    assert implementations(LINES) == ["brg_matmul:avx512_core_bf16", "brg_conv_fwd:avx512_core"]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_its_log_reaches_nobody_elses_output(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(1, 3, 16, 16)
    lines: list[str] = []
    with _heard(lines), _onednn_talks():
        torch.mkldnn_convolution(x, torch.randn(4, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], 1)
    os.write(1, b"after\n")
    assert implementations(lines)
    executed(lambda: x + 1, "cpu")
    told = capfd.readouterr()
    assert (told.out, told.err) == ("after\n", "")


def test_kernels_of_gpus_are_told_without_their_templates() -> None:
    name = "void cutlass::device_kernel<flash::FlashAttnFwdSm90<...>>(flash::Params)"
    assert _short(name) == "cutlass::device_kernel"
    assert _short("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64").startswith("sm90_xmma_gemm")
    assert _short("<unnamed>") == "<unnamed>"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a peak anew")
def test_memory_beside_the_inputs_is_told() -> None:
    x = torch.ones(8 * 2**20)
    result, taken = memory(lambda: x + 1, "cpu")
    assert result.shape == x.shape
    assert taken is not None
    print(f"{taken / 2**20:.1f} MiB for a result of 32 MiB")
    assert 30 * 2**20 < taken < 40 * 2**20
    _, little = memory(lambda: x.sum(), "cpu")
    assert little is not None
    assert little < 8 * 2**20
