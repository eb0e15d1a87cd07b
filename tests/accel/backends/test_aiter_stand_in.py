"""The stand-in for aiter itself: it refuses what the kernels reject, misread or read out of bounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accel.backends import aiter_mla
from accel.backends.aiter_mla import TILE
from accel.checking.line import relative
from tests.emulators import aiter as emulator
from tests.emulators.aiter import Gpu

BF16 = 1e-2
CPU = torch.device("cpu")


def prefill(gpu: Gpu, **changes: Any) -> None:
    """The prefill of a right call with some arguments changed, by name; a function changes the one that is there."""
    lists = aiter_mla.work(CPU, 2, 300, 400, 8)
    q, k, v = (torch.ones(2 * n, 8, d).to(emulator.E4M3) for n, d in ((300, 192), (400, 192), (400, 128)))
    one, room = torch.ones(1), lists.partials * TILE
    arguments: dict[str, Any] = {
        "Q": q, "K": k, "V": v, "qo_indptr": lists.queries, "kv_indptr": lists.keys, "kv_page_indices": lists.pages,
        "work_indptr": lists.starts, "work_info_set": lists.rows, "max_seqlen_q": 300, "softmax_scale": 0.1,
        "is_causal": False, "splitData": torch.empty(room, 8, 128), "splitLse": torch.empty(room, 8),
        "output": torch.empty(600, 8, 128, dtype=torch.bfloat16), "q_scale": one, "k_scale": one, "v_scale": one,
    }  # fmt: skip
    for name, change in changes.items():
        arguments[name] = change(arguments[name].clone()) if callable(change) else change
    with gpu.on(CPU):
        gpu.mla_prefill_ps_asm_fwd(**arguments)


def put(row: int, column: int, value: int) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor[row, column] = value
        return tensor

    return change


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("Q", lambda x: x.to(torch.bfloat16), "Q is torch.bfloat16"),
        ("V", lambda x: x.to(torch.float8_e5m2), "V is torch.float8_e5m2"),
        ("Q", lambda x: x[..., :128].contiguous(), r"Q is \(600, 8, 128\)"),
        ("K", lambda x: x.transpose(0, 1).contiguous().transpose(0, 1), "K is not contiguous"),
        ("K", lambda x: x.to("meta"), "K lies on another GPU"),
        ("work_info_set", lambda x: x.to("meta"), "work_info lies on another GPU"),
        ("qo_indptr", lambda x: x.long(), "qo_indptr is torch.int64"),
        ("q_scale", torch.ones(2), r"q_scale is \(2,\)"),
        ("k_scale", torch.ones(1).double(), "k_scale is torch.float64"),
        ("output", lambda x: x.float(), "output is torch.float32"),
        ("splitData", lambda x: x[256:], r"splitLse is"),
        ("max_seqlen_q", 299, "max_seqlen_q is too small"),
        ("kv_page_indices", lambda x: x + 1, "a page out of bounds"),
        ("kv_page_indices", lambda x: x[1:], "kv_indptr"),
        ("work_info_set", put(0, 0, 2), "an item out of bounds"),
        ("work_info_set", put(0, 3, 301), "queries out of bounds"),
        ("work_info_set", put(0, 5, 401), "keys out of bounds"),
        ("work_info_set", put(0, 7, 9 << 16), "heads out of bounds"),
        ("work_info_set", put(0, 1, -1), "a part of the keys straight to the output"),
        ("work_info_set", put(0, 1, 2**20), "a partial result out of bounds"),
        ("work_indptr", lambda x: x * 100, "work_indptr"),
    ],
)
def test_the_prefill_refuses_what_the_kernel_would_misread_emulated(name: str, change: Any, says: str) -> None:
    with emulator.installed() as gpu:
        prefill(gpu)
        gpu.calls.clear()
        with pytest.raises(RuntimeError, match=says):
            prefill(gpu, **{name: change})
    assert gpu.calls == []


def test_kernels_ask_for_the_current_gpu_emulated() -> None:
    x = torch.ones(1, 9, 8, 128)
    with emulator.installed() as gpu:
        with pytest.raises(RuntimeError, match="another GPU"):
            gpu.get_ps_metadata_info_v1(1, 8, 9)
        with pytest.raises(RuntimeError, match="another GPU"):
            gpu.flash_attn_func(x, x, x)


@pytest.mark.parametrize("release", list(emulator.RELEASES))
def test_merging_knows_its_releases_numbers_of_heads_emulated(release: str) -> None:
    starts, into, places, far = (
        torch.tensor(values, dtype=torch.int32) for values in ([0, 2], [[0, 4]], [0, 256], [0, 512])
    )
    gpu, splits = Gpu(release=release), (0,) * emulator.RELEASES[release][1]
    for heads in (8, 40):
        parts, sums = torch.randn(512, heads, 128), torch.randn(512, heads)
        out = torch.zeros(4, heads, 128, dtype=torch.bfloat16)
        with gpu.on(CPU):
            if (heads, release) == (40, "0.1.11"):
                with pytest.raises(RuntimeError, match="doesn't support the specified settings: #heads: 40"):
                    gpu.mla_reduce_v1(parts, sums, starts, into, places, 256, *splits, out)
                continue
            gpu.mla_reduce_v1(parts, sums, starts, into, places, 256, *splits, out)
            weights = torch.stack([sums[:4], sums[256:260]]).softmax(0)[..., None]
            assert relative(out, weights[0] * parts[:4] + weights[1] * parts[256:260]) < BF16
            with pytest.raises(RuntimeError, match="partial rows out of bounds"):
                gpu.mla_reduce_v1(parts, sums, starts, into, far, 256, *splits, out)
