"""A stand-in for SGLang's CPU kernels that computes what they compute and rejects what they reject.

It registers `torch.ops.sgl_kernel.*` with the real operators' schemas, in both builds of `flash_attn_varlen_func`
(with and without `sm_scale`). Same formats: bf16/fp16 weights in blocks of 32 outputs as (in / 2, outputs, 2), int8
as (in / 4, 32, 4) followed by each output's int32 correction of 128 * sum(weights); activations of the int8 product
unsigned with 128 added. So packing twice is garbage here as there. Same rounding points: products accumulate in
float32, probabilities are rounded to the input's dtype before they meet the values. Same faults: keys in a ragged last
tile of 32 meet what the item before left in the scratch buffer, so a NaN there leaks into the next item of the batch;
the softmax goes through the keys in blocks of 768 and rescales by the last block's largest score alone, which overflows
when an earlier block's is 88 larger; a score that is NaN counts as a probability of zero.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

import torch

TILE_K, TILE_N, BLOCK_N = 32, 16, 32
KEYS_PER_BLOCK = 768
REDUCED = (torch.bfloat16, torch.float16)


def real_build() -> bool:
    """Whether a real sgl_kernel has registered its operators here: then nothing can stand in for it."""
    return any(name.startswith("sgl_kernel::") for name in torch._C._dispatch_get_all_op_names())


@contextmanager
def installed(sm_scale: bool = True, without: tuple[str, ...] = ()) -> Iterator[dict[str, int]]:
    """The operators, for the time of a `with`; yields how often each was called. `without` names operators to leave
    out.
    """
    calls: dict[str, int] = {}
    library = torch.library.Library("sgl_kernel", "DEF")
    scale = ", float? sm_scale=None" if sm_scale else ""
    schemas = {
        "convert_weight_packed": ("(Tensor weight) -> Tensor", convert_weight_packed),
        "weight_packed_linear": ("(Tensor mat1, Tensor mat2, Tensor? bias, bool is_vnni) -> Tensor", packed_linear),
        "per_token_quant_int8_cpu": ("(Tensor A) -> (Tensor, Tensor)", per_token_quant),
        "int8_scaled_mm_with_quant": (
            "(Tensor mat1, Tensor mat2, Tensor scales2, Tensor? bias, ScalarType out_dtype, bool is_vnni) -> Tensor",
            int8_linear,
        ),
        "flash_attn_varlen_func": (
            "(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, int max_seqlen_q, "
            f"int max_seqlen_k, bool causal{scale}) -> Tensor",
            attention,
        ),
    }

    def counted(name: str, function: object) -> object:
        def call(*args: object, **kwargs: object) -> object:
            calls[name] = calls.get(name, 0) + 1
            return function(*args, **kwargs)  # type: ignore[operator]

        return call

    for name, (schema, function) in schemas.items():
        if name not in without:
            library.define(name + schema)
            library.impl(name, counted(name, function), "CPU")
    sys.modules["sgl_kernel"] = types.ModuleType("sgl_kernel")
    try:
        yield calls
    finally:
        del sys.modules["sgl_kernel"]
        library._destroy()


def check(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


# -- linears
# ------------------------------------------------------------------------------------------------------------


def convert_weight_packed(weight: torch.Tensor) -> torch.Tensor:
    check(weight.is_contiguous(), "weight must be contiguous")
    check(weight.dim() == 2, f"expect weight to be 2d or 3d, got {weight.dim()}d tensor.")
    outs, ins = weight.shape
    check(outs % TILE_N == 0 or outs < TILE_N, f"invalid weight out features {outs}")
    check(ins % TILE_K == 0, f"invalid weight input features {ins}")
    check(weight.dtype in (*REDUCED, torch.int8), "expect weight to be bfloat16, float16, int8")
    blocks = [_block(weight[n : n + BLOCK_N]) for n in range(0, outs, BLOCK_N)]
    return torch.cat(blocks).view(outs, ins + (4 if weight.dtype == torch.int8 else 0))


def _block(rows: torch.Tensor) -> torch.Tensor:
    outs, ins = rows.shape
    group = 4 if rows.dtype == torch.int8 else 2
    vnni = rows.view(outs, ins // group, group).transpose(0, 1).flatten()
    if rows.dtype != torch.int8:
        return vnni
    check(outs == BLOCK_N, "N == BLOCK_N")
    correction = (rows.to(torch.int32).sum(1) * 128).to(torch.int32)
    return torch.cat([vnni, correction.view(torch.int8)])


def _unblock(packed: torch.Tensor, ins: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights as stored and int32 corrections (zeros but for int8)."""
    outs, row = packed.shape
    group = 4 if packed.dtype == torch.int8 else 2
    flat, weights, corrections = packed.flatten(), [], []
    for n in range(0, outs, BLOCK_N):
        size = min(BLOCK_N, outs - n)
        block = flat[n * row : (n + size) * row]
        weights.append(block[: size * ins].view(ins // group, size, group).transpose(0, 1).reshape(size, ins))
        tail = block[size * ins :]
        corrections.append(tail.clone().view(torch.int32) if tail.numel() else torch.zeros(size, dtype=torch.int32))
    return torch.cat(weights), torch.cat(corrections)


def _check_rows(rows: torch.Tensor, bias: torch.Tensor | None, outs: int) -> None:
    check(rows.dim() == 2, "mat1 must be a 2D tensor")
    check(rows.stride(-1) == 1, "mat1 must be contiguous at last dimension")
    check(rows.dtype in REDUCED, f"not implemented for {rows.dtype}")
    if bias is not None:
        check(bias.dtype == torch.float32, f"expected scalar type Float but found {bias.dtype}")
        check(bias.shape == (outs,), "bias.size(0) == N")


def packed_linear(mat1: torch.Tensor, mat2: torch.Tensor, bias: torch.Tensor | None, is_vnni: bool) -> torch.Tensor:
    packed = mat2 if is_vnni else convert_weight_packed(mat2)
    check(packed.is_contiguous() and packed.dim() == 2, "mat2 must be a contiguous 2D tensor")
    _check_rows(mat1, bias, packed.shape[0])
    check(mat1.shape[1] == packed.shape[1], "mat1.size(1) == K")
    check(mat1.dtype == packed.dtype, f"expected scalar type {mat1.dtype} but found {packed.dtype}")
    weight, _ = _unblock(packed, packed.shape[1])
    out = mat1.float() @ weight.float().T
    return (out if bias is None else out + bias).to(mat1.dtype)


def per_token_quant(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    check(rows.dim() == 2 and rows.stride(-1) == 1, "A must be 2D and contiguous at last dimension")
    check(rows.dtype in REDUCED, "per_token_quant_int8: expect A to be bfloat16 or half.")
    largest = rows.float().abs().amax(1).clamp_min(1e-7)
    quantised = (rows.float() * (127 / largest)[:, None]).round().nan_to_num(0) + 128
    return quantised.clamp(0, 255).to(torch.uint8), largest / 127


def int8_linear(
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    scales2: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    is_vnni: bool,
) -> torch.Tensor:
    packed = mat2 if is_vnni else convert_weight_packed(mat2)
    ins = mat1.shape[-1]
    check(mat2.dtype == torch.int8, "int8_scaled_mm_with_quant: expect mat2 to be int8.")
    check(packed.is_contiguous() and packed.shape[1] == ins + 4, "mat2.size(1) == K + 4")
    _check_rows(mat1, bias, packed.shape[0])
    check(mat1.dtype == out_dtype, "int8_scaled_mm_with_quant: expect A has same dtype with out_dtype.")
    check(scales2.dtype == torch.float32 and scales2.numel() == packed.shape[0], "expect scales to be float32.")
    unsigned, scales1 = per_token_quant(mat1)
    weight, correction = _unblock(packed, ins)
    product = (unsigned.long() @ weight.long().T - correction).float() * scales1[:, None] * scales2
    return (product if bias is None else product + bias).to(out_dtype)


# -- attention
# ----------------------------------------------------------------------------------------------------------


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool,
    sm_scale: float | None = None,
) -> torch.Tensor:
    for tensor in (q, k, v):
        check(tensor.dim() == 3, "must be a 3D tensor")
        check(tensor.stride(-1) == 1, "must be contiguous at last dimension")
        check(tensor.dtype in REDUCED and tensor.dtype == q.dtype, f"not implemented for {tensor.dtype}")
    for starts in (cu_seqlens_q, cu_seqlens_k):
        check(starts.dtype == torch.int32 and starts.is_contiguous(), "cu_seqlens must be contiguous int32")
    check(cu_seqlens_q.shape == cu_seqlens_k.shape, "cu_seqlens_k.size(0) == num_seqs + 1")
    check(k.shape[2] == q.shape[2] and v.shape[1] == k.shape[1], "head sizes or kv heads differ")
    check(q.shape[2] % 2 == 0 and v.shape[2] % 2 == 0, f"invalid head_size {q.shape[2]}")
    check(q.shape[1] % k.shape[1] == 0, "num_groups * num_heads_kv == num_heads")
    out = torch.empty(q.shape[0], q.shape[1], v.shape[2], dtype=q.dtype)
    scale = q.shape[2] ** -0.5 if sm_scale is None else sm_scale
    dirty = torch.zeros(k.shape[1], dtype=torch.bool)  # heads whose scratch holds something that is not finite
    ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for i in range(len(ends_q) - 1):
        here, keys = slice(ends_q[i], ends_q[i + 1]), slice(ends_k[i], ends_k[i + 1])
        check(ends_q[i + 1] - ends_q[i] <= max_seqlen_q, "seqlen_q <= max_seqlen_q")
        check(ends_k[i + 1] - ends_k[i] <= max_seqlen_k, "seqlen_k <= max_seqlen_k")
        out[here] = _one(q[here], k[keys], v[keys], causal, scale)
        if (ends_k[i + 1] - ends_k[i]) % TILE_K:
            leaking = dirty.repeat_interleave(q.shape[1] // k.shape[1])
            out[here] = out[here].masked_fill(leaking[None, :, None], float("nan"))
        dirty |= ~(k[keys].isfinite().all(2).all(0) & v[keys].isfinite().all(2).all(0))
    return out


def _one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    largest = torch.full((q.shape[1], q.shape[0], 1), float("-inf"))
    total, mixed = torch.zeros(q.shape[1], q.shape[0], 1), torch.zeros(q.shape[1], q.shape[0], v.shape[2])
    for start in range(0, k.shape[0], KEYS_PER_BLOCK):
        keys, values = k[start : start + KEYS_PER_BLOCK], v[start : start + KEYS_PER_BLOCK]
        scores = torch.einsum("qhd,khd->hqk", q.float(), keys.float()) * scale
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 - start), float("-inf"))
        top = scores.nan_to_num(float("-inf"), float("inf"), float("-inf")).amax(-1, keepdim=True)
        fade, largest = (largest - top).exp(), top
        weights = (scores - top).exp().nan_to_num(0.0, float("inf"))
        total = total * fade + weights.sum(-1, keepdim=True)
        mixed = mixed * fade + torch.einsum("hqk,khd->hqd", weights.to(q.dtype).float(), values.float())
    return (mixed * (1 / total)).transpose(0, 1).to(q.dtype)
