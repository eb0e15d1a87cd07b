"""A stand-in for SGLang's CUDA build of FlashAttention-3 and for torch's scaled FP8 product, on the CPU.

It registers `torch.ops.sgl_kernel.fwd` with the schema of one of three releases and computes what the kernel
computes: scores in float32, probabilities against the row's largest, rounded to the input's format before they meet
the values (FP8 ones as multiples of 2**-8, which uses the format's whole range), sums in float32, FP8 descales per item
and key head. It rejects what the kernel rejects or would misread: dtypes, strides, shapes, alignments, descales.
`installed()` also lets the backends take CPU tensors; everything tested on it is called emulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from accel.backends import flash_ops, fp8_linear
from accel.backends.fa3 import Fa3
from accel.backends.fa3_fp8 import Fa3Fp8

E4M3 = torch.float8_e4m3fn
OPTIONAL = {
    "k_new": "Tensor",
    "v_new": "Tensor",
    "q_v": "Tensor",
    "out": "Tensor!",
    "cu_seqlens_q": "Tensor",
    "cu_seqlens_k": "Tensor",
    "cu_seqlens_k_new": "Tensor",
    "seqused_q": "Tensor",
    "seqused_k": "Tensor",
    "max_seqlen_q": "int",
    "max_seqlen_k": "int",
    "page_table": "Tensor",
    "kv_batch_idx": "Tensor",
    "leftpad_k": "Tensor",
    "rotary_cos": "Tensor",
    "rotary_sin": "Tensor",
    "seqlens_rotary": "Tensor",
    "q_descale": "Tensor",
    "k_descale": "Tensor",
    "v_descale": "Tensor",
}
REST = "bool is_causal, int window_size_left, int window_size_right, int attention_chunk, float softcap, "
REST += "bool is_rotary_interleaved, Tensor? scheduler_metadata, int num_splits, bool? pack_gqa, int sm_margin"


def _optional(kind: str) -> str:
    return kind.replace("!", "(a!)?") if "!" in kind else f"{kind}?"


HEAD = "(Tensor q, Tensor k, Tensor v, " + ", ".join(f"{_optional(kind)} {name}" for name, kind in OPTIONAL.items())
RETURNS = "(Tensor(a!), Tensor, Tensor, Tensor)"
SCHEMAS = {
    "0.3.9": f"{HEAD}, float softmax_scale, {REST.replace('int attention_chunk, ', '')}) -> Tensor[]".replace(
        "Tensor(a!)? out", "Tensor!? out"
    ),
    "0.4.2.post2": f"{HEAD}, float? softmax_scale, {REST}, Tensor? sinks) -> {RETURNS}",
    "0.4.10": f"{HEAD}, float? softmax_scale, {REST}, Tensor? sinks, bool only_qv, Tensor? sparse_mask_fine) "
    f"-> {RETURNS}",
}
"""Schemas by release: Tensor lists at first, then an aliased output and three more tensors."""


@contextmanager
def installed(release: str = "0.4.2.post2", without: tuple[str, ...] = ()) -> Iterator[list[dict[str, Any]]]:
    """The operator of one release, for the time of a `with`; yields the calls, each by argument name. `without` names
    operators to leave out."""
    calls: list[dict[str, Any]] = []
    library = torch.library.Library("sgl_kernel", "DEF")
    if "fwd" not in without:
        library.define("fwd" + SCHEMAS[release])
        names = [argument.name for argument in torch.ops.sgl_kernel.fwd.default._schema.arguments]

        def fwd(*values: Any) -> Any:
            calls.append(dict(zip(names, values, strict=True)))
            found = _fwd(**calls[-1])
            return found if "Tensor[]" in SCHEMAS[release] else (*found, torch.empty(0), torch.empty(0))

        library.impl("fwd", fwd, "CPU")
    both = ("cuda", "cpu")
    with (
        mock.patch.object(flash_ops, "capability", return_value=(9, 0)),
        mock.patch.object(flash_ops, "_load", return_value="no library in an emulation"),
        mock.patch.object(Fa3, "devices", both),
        mock.patch.object(Fa3Fp8, "devices", both),
        mock.patch.object(fp8_linear.Fp8Linear, "devices", both),
        mock.patch.object(fp8_linear, "scaled_mm", scaled_mm),
    ):
        try:
            yield calls
        finally:
            library._destroy()


def check(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def _fwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> list[torch.Tensor]:
    for name in set(OPTIONAL) - {"q_descale", "k_descale", "v_descale"}:
        check(more[name] is None, f"{name} is not emulated")
    _check_inputs(q, k, v)
    check((more["window_size_left"], more["window_size_right"]) == (-1, -1), "a window is not emulated")
    check(more["num_splits"] == 1 and not more["softcap"], "splits and soft caps are not emulated")
    check(not more.get("only_qv") and not more.get("attention_chunk"), "q_v and chunks are not emulated")
    check(isinstance(more["softmax_scale"], float), "softmax_scale must be given")
    batch, kv_heads = k.shape[0], k.shape[2]
    wide = []
    for x, name in ((q, "q_descale"), (k, "k_descale"), (v, "v_descale")):
        descale = more[name]
        if descale is None:
            wide.append(x.float())
            continue
        check(x.dtype == E4M3, "descales without FP8 input are ignored by the kernel")
        check(descale.dtype == torch.float32, f"{name} must have dtype float32")
        check(descale.shape == (batch, kv_heads), f"{name} must have shape (batch_size, num_heads_k)")
        group = x.shape[2] // kv_heads
        wide.append(x.float() * descale.repeat_interleave(group, 1)[:, None, :, None])
    out = _attend(wide[0], wide[1], wide[2], q.dtype, more["softmax_scale"], more["is_causal"])
    return [out, torch.empty(q.shape[0], q.shape[2], q.shape[1])]


def _check_inputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    check(q.dtype in (torch.bfloat16, torch.float16, E4M3), "FlashAttention only supports fp16, bf16, and fp8_e4m3")
    check(k.dtype == q.dtype, "query and key must have the same dtype")
    check(v.dtype == q.dtype, "query and value must have the same dtype")
    for x in (q, k, v):
        check(x.dim() == 4, "q, k and v must have four dimensions without cumulative lengths")
        check(x.stride(-1) == 1, "Input tensor must have contiguous last dimension")
    check(q.shape[0] == k.shape[0] == v.shape[0], "batch_size must be equal to batch_size_k")
    check(k.shape[1:3] == v.shape[1:3] and q.shape[3] == k.shape[3] == v.shape[3], "k and v must have one shape")
    check(q.shape[2] % k.shape[2] == 0, "Number of heads in key/value must divide number of heads in query")
    alignment = 16 if q.dtype == E4M3 else 8
    check(q.shape[3] % alignment == 0 and q.shape[3] <= 256, f"head_size should be a multiple of {alignment}")
    check(q.shape[1] > 0 and k.shape[1] > 0, "the kernel reads out of bounds without tokens")


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, form: torch.dtype, scale: float, causal: bool
) -> torch.Tensor:
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if causal:
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1 + k.shape[1] - q.shape[1])
        scores = scores.masked_fill(hidden, -math.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    steps = 256.0 if form == E4M3 else 1.0
    rounded = (weights * steps).to(form).float() / steps
    out = torch.einsum("bhqk,bkhd->bqhd", rounded, v) / weights.sum(-1).transpose(1, 2)[..., None]
    return out.to(torch.bfloat16 if form == E4M3 else form).contiguous()


def scaled_mm(
    rows: torch.Tensor,
    columns: torch.Tensor,
    row_scales: torch.Tensor,
    column_scales: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """`torch._scaled_mm` with a scale per row and per column, as the GPU's kernel takes it."""
    check(rows.dtype == columns.dtype == E4M3, "Expected both matrices to be float8_e4m3fn")
    check(rows.dim() == columns.dim() == 2 and rows.shape[1] == columns.shape[0], "mat1 and mat2 can't be multiplied")
    check(rows.is_contiguous(), "self must be row major")
    check(columns.t().is_contiguous(), "mat2 must be column major")
    check(columns.shape[0] % 16 == 0 and columns.shape[1] % 16 == 0, "dimensions must be divisible by 16")
    for scale, shape in ((row_scales, (rows.shape[0], 1)), (column_scales, (1, columns.shape[1]))):
        check(scale.dtype == torch.float32 and scale.shape == shape and scale.is_contiguous(), f"scale of {shape}")
    check(dtype == torch.bfloat16, "row-wise scaling gives bfloat16 only")
    check(bias is None or (bias.dtype == dtype and bias.shape == (columns.shape[1],)), "bias must be bfloat16 (out,)")
    out = (rows.float() @ columns.float()) * row_scales * column_scales
    return (out if bias is None else out + bias.float()).to(dtype)
