"""The block of Wan 2.1 and 2.2 in fused passes: what diffusers' WanTransformerBlock computes, with FP8 linears.

The class of each block is swapped, modules and weights stay. A call that can't be served so (a LoRA around a linear,
gradients, diffusers' context parallelism) runs as diffusers wrote it, counted with its reason.
"""

from __future__ import annotations

import copyreg
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from accel import bridge, fp8
from accel.contract import AttentionCall, Counting, Refused
from accel.fused import plain
from accel.fused.plain import Modulation, Norm, Rows
from accel.ops import AttentionSlot, quantised_linear
from accel.packed import QuantisedLinear
from accel.parallel import exchange
from accel.parallel.exchange import Across
from accel.swapping import Swaps, in_front

BLOCK = "WanTransformerBlock"
Heads = tuple[torch.Tensor, Any]
"""What a pass `heads` gives: queries or keys, and their scales where they are quantised."""
SHIFT, SCALE, GATE, FFN_SHIFT, FFN_SCALE, FFN_GATE = range(6)
"""Rows of a block's modulation."""


@dataclass(frozen=True)
class Means:
    """What the blocks of one component share. slot: the attention backend put into it, None for the model's own."""

    kernels: Any
    form: torch.dtype
    slot: AttentionSlot | None
    tally: Counting


class FusedWanBlock(nn.Module):
    """Goes in front of WanTransformerBlock."""

    accel_means: Means
    norm1: Any
    norm2: Any
    norm3: Any
    attn1: Any
    attn2: Any
    ffn: Any
    scale_shift_table: torch.Tensor

    def forward(
        self, hidden_states: torch.Tensor, encoder_hidden_states: torch.Tensor, temb: torch.Tensor, rotary_emb: Any
    ) -> torch.Tensor:
        means = self.accel_means
        reason = _why_not_call(self, hidden_states)
        if reason:
            means.tally.fell_back(reason)
            stock: torch.Tensor = super().forward(hidden_states, encoder_hidden_states, temb, rotary_emb)
            return stock
        run, form = means.kernels, means.form
        modulation = _modulation(temb, self.scale_shift_table)
        rows = run.normed_rows(hidden_states, Norm(self.norm1.eps, None, None, SHIFT, SCALE), modulation, form)
        attended = self._self_attention(rows, rotary_emb)
        second = Norm(self.norm2.eps, self.norm2.weight, self.norm2.bias)
        if self.attn2.add_k_proj is None:
            hidden_states, rows = run.add_normed_rows(hidden_states, attended, GATE, second, modulation, form)
            attended = self._cross_attention(rows, encoder_hidden_states)
        else:  # a second, small attention to a picture: as diffusers does it
            hidden_states = run.add(hidden_states, attended, modulation, GATE)
            normed = run.normed(hidden_states, second, modulation)
            attended = self.attn2(normed, encoder_hidden_states, None, None)
        third = Norm(self.norm3.eps, None, None, FFN_SHIFT, FFN_SCALE)
        hidden_states, rows = run.add_normed_rows(hidden_states, attended, None, third, modulation, form)
        inner = _linear(self.ffn.net[0].proj, rows)
        outer = _linear(self.ffn.net[2], run.gelu_rows(inner, form))
        means.tally.served()
        added: torch.Tensor = run.add(hidden_states, outer, modulation, FFN_GATE)
        return added

    def _self_attention(self, rows: Rows, rotation: Any) -> torch.Tensor:
        attn, run, across = self.attn1, self.accel_means.kernels, exchange.of(self.attn1.processor)
        value = _linear(attn.to_v, rows).unflatten(2, (attn.heads, -1))
        query = partial(self._heads, attn.to_q, attn.norm_q, rows, rotation)
        key = partial(self._heads, attn.to_k, attn.norm_k, rows, rotation)
        shape = value if across is None else across.shaped(value)
        out = self._attended_in_fp8(shape, shape, query, key, value, across)
        if out is None:
            out = bridge.dispatch(attn.processor, query(None)[0], key(None)[0], value, across)
        return _linear(attn.to_out[0], run.rows(out.flatten(2, 3), self.accel_means.form))

    def _heads(self, linear: Any, norm: Any, rows: Rows, rotation: Any, form: torch.dtype | None) -> Heads:
        made: Heads = self.accel_means.kernels.heads(
            _linear(linear, rows), norm.weight, norm.eps, rotation, self.attn1.heads, form
        )
        return made

    def _attended_in_fp8(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        queries: Callable[[torch.dtype], Heads],
        keys: Callable[[torch.dtype], Heads],
        value: torch.Tensor,
        across: Across | None = None,
    ) -> torch.Tensor | None:
        """Attention where the slot's backend takes query and key already quantised and serves this call, counted; None
        where it does not, or not rightly. query, key: of the call's shapes; queries, keys: give them in a format."""
        slot, form = self.accel_means.slot, self.accel_means.form
        backend: Any = None if slot is None or slot.aside or slot.why_not(query, key) else slot.backend
        if slot is None or not hasattr(backend, "attend_quantised"):
            return None
        if backend.why_not_quantised(AttentionCall(query, key, key)):
            return None
        out = _attend_in_fp8(backend, partial(queries, form), partial(keys, form), value, across)
        # ranks must all go the same way, so none judges for itself
        if across is None and slot.judge(out, query, value, value):
            return None
        slot.tally.served()
        return out

    def _cross_attention(self, rows: Rows, text: torch.Tensor) -> torch.Tensor:
        attn, run = self.attn2, self.accel_means.kernels
        heads, query, keyed = attn.heads, _linear(attn.to_q, rows), attn.to_k(text)
        value = attn.to_v(text).unflatten(2, (heads, -1))
        queries = partial(run.heads, query, attn.norm_q.weight, attn.norm_q.eps, None, heads)
        keys = partial(run.heads, keyed, attn.norm_k.weight, attn.norm_k.eps, None, heads)
        out = self._attended_in_fp8(query.unflatten(2, (heads, -1)), value, queries, keys, value)
        if out is None:
            out = bridge.dispatch(attn.processor, queries(None)[0], keys(None)[0], value)
        return _linear(attn.to_out[0], run.rows(out.flatten(2, 3), self.accel_means.form))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copied or pickled it is a stock block: what makes it fused belongs to one installation."""
        state = {name: value for name, value in vars(self).items() if not name.startswith("accel_")}
        return copyreg.__newobj__, (type(self).__bases__[1],), state  # type: ignore[attr-defined]


def _modulation(embedding: torch.Tensor, table: torch.Tensor) -> Modulation:
    """One for all tokens is added up here; one for each would be written out in float32, so the passes add it up."""
    each = embedding.dim() == 4
    return Modulation(embedding, table[0]) if each else Modulation(embedding.float() + table.float())


def _linear(linear: QuantisedLinear, rows: Rows) -> torch.Tensor:
    """A packed linear on rows that are quantised; counted like any of its calls."""
    dtype = linear.accel_packing.dtype
    return quantised_linear(*rows, linear.bias, linear.accel_number, linear.out_features, dtype)


def _attend_in_fp8(
    backend: Any, query: Callable[[], Heads], key: Callable[[], Heads], value: torch.Tensor, across: Across | None
) -> torch.Tensor:
    """Attention with query and key quantised. Where tokens are dealt out over ranks, what is ready travels while the
    next is computed; the scales come from weights alone, so every rank's are the same."""
    out: torch.Tensor
    if across is None:
        (queries, query_scale), (keys, key_scale) = query(), key()
        out = backend.attend_quantised(queries, query_scale, keys, key_scale, value)
        return out
    values = across.start(value)
    made, query_scale = query()
    given = across.start(made)
    made, key_scale = key()
    sought = across.start(made)
    query_scale, key_scale = (across.own_heads(one).contiguous() for one in (query_scale, key_scale))
    out = backend.attend_quantised(given(), query_scale, sought(), key_scale, values())
    return across.back(out)


def _linears(block: Any) -> list[Any]:
    """The linears of a block that take quantised rows."""
    first, second = block.attn1, block.attn2
    cross = [second.to_q, second.to_out[0]] if second.add_k_proj is None else []
    return [first.to_q, first.to_k, first.to_v, first.to_out[0], *cross, block.ffn.net[0].proj, block.ffn.net[2]]


def _why_not_call(block: Any, tokens: torch.Tensor) -> str:
    """Why this call runs as diffusers wrote it, as one sentence; empty when it is fused."""
    if torch.is_grad_enabled():
        return "gradients are wanted"
    if tokens.dtype != torch.bfloat16:
        return f"{str(tokens.dtype).removeprefix('torch.')} tokens, the fused passes take bfloat16"
    if not all(type(linear) is QuantisedLinear for linear in _linears(block)):
        return "a linear is wrapped or unpacked, by a LoRA for example"
    if block.training and any(isinstance(part, nn.Dropout) and part.p for part in block.modules()):
        return "dropout is on"
    processors = (attn.processor for attn in (block.attn1, block.attn2))
    foreign = any(getattr(one, exchange.FIELD, None) is not None and exchange.of(one) is None for one in processors)
    return "it runs with diffusers' context parallelism" if foreign else ""


def why_not_block(block: nn.Module) -> str:
    """Why a block can't be fused at all, as one sentence; empty when it can."""
    if type(block).__name__ != BLOCK:
        return f"{type(block).__name__} has no fused form, {BLOCK} has"
    known: Any = block
    processors = {type(attn.processor).__name__ for attn in (known.attn1, known.attn2)}
    if processors != {"WanAttnProcessor"}:
        return f"its attention is computed by {' and '.join(sorted(processors))}, not by WanAttnProcessor"
    if not all(type(linear) is QuantisedLinear for linear in _linears(known)):
        return "not all of its linears are packed in FP8"
    if not getattr(known.norm2, "elementwise_affine", False) or known.norm1.elementwise_affine:
        return "its norms are not those of Wan 2.1 and 2.2"
    size = known.attn1.to_q.out_features // known.attn1.heads
    return "" if size & (size - 1) == 0 else f"its heads of {size} channels are no power of two"


def kernels_for(device: torch.device) -> Any:
    """Who computes the passes on `device`. Raises Refused without Triton on a GPU."""
    if device.type == "cpu":
        return plain
    fp8.kernels(device)  # says what is missing
    return importlib.import_module("accel.fused.passes")


def fuse_blocks(blocks: list[nn.Module], slot: AttentionSlot | None, tally: Counting) -> Callable[[], None]:
    """Swap every block's class; returns the way back. Raises Refused, with nothing swapped, when one can't be fused."""
    reason = next((reason for block in blocks if (reason := why_not_block(block))), "")
    if reason:
        raise Refused(reason)
    known: list[Any] = list(blocks)
    device = known[0].scale_shift_table.device
    means = Means(kernels_for(device), fp8.format_for(device), slot, tally)
    swaps = Swaps()
    for block in known:
        swaps.swap(block, in_front(FusedWanBlock, type(block))).accel_means = means
    return swaps.undo
