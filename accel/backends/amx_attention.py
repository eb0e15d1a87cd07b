"""Attention on AMX through SGLang's `flash_attn_varlen_func`, in bf16.

The kernel takes (tokens, heads, head_dim) with the batch as cumulative lengths, has no mask argument, and older
builds have no `sm_scale`: there the scale is fixed at head_dim ** -0.5, so another one is multiplied into the query
first. A mask that only hides keys (the same for every head and query) is served by leaving those keys out, which is
equal; any other mask is refused. Head sizes 32 to 256 in steps of 32 are what SGLang's own diffusion backend allows.
The kernel also takes fp16, which AMX multiplies from Granite Rapids on only: not offered. Nor is causal attention:
builds of early 2026 mask it wrongly from 513 tokens on.
Measured on 16 vCPU of Emerald Rapids: 126 ms for 7800 tokens, 12 heads of 128, against 134 ms of torch in bf16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.backends.sgl import COMES_WITH, RUNS_ON, operator, why_not_sgl
from accel.contract import AMX_LOCK, AttentionCall, Refused
from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch

OPERATOR = "flash_attn_varlen_func"
HEAD_SIZES = range(32, 257, 32)
HIDDEN_BELOW = -1e4  # an additive mask at or under this hides the key: exp underflows to 0 for any score below 9900
KEYS_PER_TILE = 32
KEYS_PER_BLOCK = 512
"""Keys up to which every build takes the softmax in one block; the blocks seen are of 768. Builds of 2026 do not keep
the largest score of the blocks before: where it lies 88 above a later one's, rows overflow or come out as zeros."""


def why_not_head(size: int) -> str:
    return "" if size in HEAD_SIZES else f"head size {size} is not one of 32, 64, ... 256"


class AmxAttention:
    name = "sgl_amx"
    title = "SGLang attention on AMX"
    kind: Kind = "attention"
    exact = True
    reference = False
    dtypes: tuple[str, ...] = ("bfloat16",)
    devices: tuple[str, ...] = ("cpu",)
    runs_on = RUNS_ON
    comes_with = COMES_WITH
    head_sizes = HEAD_SIZES

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        reasons = why_not_sgl(machine, (OPERATOR,), f"sgl_kernel.{OPERATOR}")
        if traits.head_dim and why_not_head(traits.head_dim):
            reasons.append(why_not_head(traits.head_dim))
        return reasons

    def run(self, call: AttentionCall) -> torch.Tensor:
        reason = self._why_not_call(call)
        if reason:
            raise Refused(reason)
        key, value, lengths = call.key, call.value, None
        if call.mask is not None:
            key, value, lengths = _without_hidden_keys(call)
        with AMX_LOCK:
            return _attend(call, key, value, lengths)

    def _why_not_call(self, call: AttentionCall) -> str:
        query, key, value = call.query, call.key, call.value
        if query.device.type != "cpu":
            return f"the tensors are on {query.device.type}, this kernel runs on the CPU"
        dtype = str(query.dtype).removeprefix("torch.")
        if dtype not in self.dtypes:
            return f"{dtype} input, this kernel is used in bfloat16"
        if key.dtype != query.dtype or value.dtype != query.dtype:
            return "query, key and value differ in dtype"
        if query.shape[1] == 0 or key.shape[1] == 0:
            return "no tokens"
        if query.shape[2] % key.shape[2]:
            return f"{query.shape[2]} query heads are no multiple of {key.shape[2]} key heads"
        if call.causal:
            return "causal attention, which some builds of this kernel mask wrongly"
        return why_not_head(query.shape[3]) or why_not_head(value.shape[3])


def _without_hidden_keys(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Keys and values that the mask lets through, flattened over the batch to (kept, heads, dim), and how many per
    item.

    Raises Refused when leaving keys out would not give an equal result.
    """
    import torch

    mask, batch, tokens = call.mask, call.key.shape[0], call.key.shape[1]
    assert mask is not None
    if mask.dim() == 2 and mask.shape == (batch, tokens):
        mask = mask[:, None, None, :]
    if mask.dim() != 4 or mask.shape[-1] != tokens:
        raise Refused(f"a mask of shape {tuple(mask.shape)} for {batch} x {tokens} keys")
    # an expanded dim repeats one row, whatever its size says
    varies = [name for name, dim in (("head", 1), ("query", 2)) if mask.shape[dim] > 1 and mask.stride(dim) != 0]
    if varies:
        raise Refused(f"a mask per {' and '.join(varies)}, this kernel has no mask argument")
    row = mask[:, 0, 0, :].expand(batch, tokens)
    seen = row if row.dtype == torch.bool else row == 0
    if row.dtype != torch.bool and not bool((seen | (row <= HIDDEN_BELOW)).all()):
        raise Refused("a mask that weights keys instead of hiding them")
    lengths = seen.sum(1).tolist()
    if 0 in lengths:
        raise Refused("a mask that hides every key")
    return call.key[seen], call.value[seen], lengths


def _attend(call: AttentionCall, key: torch.Tensor, value: torch.Tensor, lengths: list[int] | None) -> torch.Tensor:
    import torch

    op = operator(OPERATOR)
    batch, tokens, heads, size = call.query.shape
    query, scale = call.query, None if call.scale is None else float(call.scale)
    arguments = {argument.name for argument in op.default._schema.arguments}
    scaled = {"sm_scale": scale} if scale is not None and "sm_scale" in arguments else {}
    if scale is not None and not scaled and abs(scale * size**0.5 - 1) > 1e-6:
        query = query * (scale * size**0.5)
    query = _dense(query.reshape(batch * tokens, heads, size))
    if lengths is None:
        lengths = [call.key.shape[1]] * batch
        key, value = key.reshape(-1, *key.shape[2:]), value.reshape(-1, *value.shape[2:])
    key, value = _dense(key), _dense(value)

    def kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, counts: list[int]) -> torch.Tensor:
        starts_q = torch.arange(0, (len(counts) + 1) * tokens, tokens, dtype=torch.int32)
        starts_k = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return op(q, k, v, starts_q, starts_k, tokens, max(counts), False, **scaled)

    # The kernel's scratch for a ragged last tile of keys keeps what the item before left there: a NaN would leak into
    # the next item. Such batches run item by item.
    if batch > 1 and any(count % KEYS_PER_TILE for count in lengths):
        ends = torch.tensor(lengths).cumsum(0).tolist()
        spans = zip([0, *ends[:-1]], ends, strict=True)
        parts = [
            kernel(query[i * tokens : (i + 1) * tokens], key[start:end], value[start:end], [end - start])
            for i, (start, end) in enumerate(spans)
        ]
        out = torch.cat(parts)
    else:
        out = kernel(query, key, value, lengths)
    if max(lengths) > KEYS_PER_BLOCK and not _sound(out):
        raise Refused("scores too far apart for this kernel's softmax")
    return out.view(batch, tokens, heads, value.shape[-1])


def _sound(out: torch.Tensor) -> bool:
    """Whether every row is finite and not all zeros, which is how the kernel's softmax shows that it overflowed."""
    import torch

    lengths = torch.linalg.vector_norm(out, dim=-1)
    return bool(((lengths > 0) & (lengths < float("inf"))).all())


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
