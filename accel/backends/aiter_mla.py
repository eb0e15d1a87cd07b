"""AMD's attention in FP8 on gfx950, through aiter's MLA prefill kernel, for releases that lack its FP8 FMHA.
Approximate, so opt-in.

The kernel was made for heads of 192 whose values have 128. Queries and keys of 128 are filled up with zeros while they
are quantised, which adds nothing to their product. The kernel takes its work from lists that aiter makes on the host:
queries in tiles of 256 rows, each with its keys in units of 128, dealt evenly over the compute units. Where a tile's
keys fall to several compute units, each writes a partial result, and a second kernel merges them. The lists depend on
shapes alone and are made once for all layers and steps.
A number of heads that is no multiple of 8 makes the kernel read out of bounds (40 heads over 4 GPUs are 10 each).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accel.backends import aiter_ops
from accel.backends.aiter_bf16 import AiterBf16
from accel.backends.flash_ops import scale_of
from accel.contract import AttentionCall, Refused
from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch

FUNCTION, MERGE = "mla_prefill_ps_asm_fwd", "mla_reduce_v1"
QUERY_SIZE = 192
TILE, UNIT = 256, 128
"""Rows of a tile of queries, keys of a unit: the kernel's own."""

HEADS = 8
"""The kernel's heads are a multiple of it. Partial results are merged as rows of 8 heads: the merging kernel has code
for some numbers of heads only, and every release has it for 8."""

SHAPES = 32
"""Shapes whose work lists are kept: a clip has two (self and cross attention), twice with guidance in one batch."""


@dataclass(frozen=True)
class Work:
    """aiter's work lists for one shape on one GPU; int32 tensors there. `partials`: tiles of partial results."""

    queries: torch.Tensor
    keys: torch.Tensor
    pages: torch.Tensor
    starts: torch.Tensor
    rows: torch.Tensor
    merge_starts: torch.Tensor
    merge_into: torch.Tensor
    merge_from: torch.Tensor
    partials: int


@functools.lru_cache(maxsize=SHAPES)
def work(device: torch.device, batch: int, tokens: int, keys: int, heads: int) -> Work:
    """The work lists for `batch` items of `tokens` queries and `keys` keys. Waits for the GPU once."""
    import torch

    items = torch.arange(batch + 1, dtype=torch.int32)
    lengths = torch.full((batch,), keys, dtype=torch.int32)
    with aiter_ops.on(device), torch.inference_mode(False):
        shapes = aiter_ops.function("get_ps_metadata_info_v1")(batch, heads, tokens, TILE)
        lists = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]
        aiter_ops.function("get_ps_metadata_v1")(
            items * tokens, items * keys, lengths, 1, heads, *lists, qhead_granularity=1, qlen_granularity=TILE,
            kvlen_granularity=UNIT, block_size=1, is_causal=False,
        )  # fmt: skip
        _, starts, rows, merge_starts, merge_into, merge_from = lists
        # aiter's lists have room for the worst case: 50 GB of partial results for a clip of 75600 tokens and 40 heads
        ends = merge_starts.tolist()
        tiles, partials = len(set(ends)) - 1, ends[-1]
        return Work(
            (items * tokens).to(device),
            (items * keys).to(device),
            torch.arange(batch * keys, dtype=torch.int32, device=device),
            starts,
            rows,
            merge_starts[: tiles + 1].clone(),
            merge_into[:tiles] * (heads // HEADS),
            merge_from[:partials] * (heads // HEADS),
            partials,
        )


class AiterMla:
    name = "aiter_mla_fp8"
    title = "AMD's aiter MLA in FP8 (approximate)"
    kind: Kind = "attention"
    exact = False
    reference = False
    dtypes: tuple[str, ...] = ("bfloat16",)
    devices: tuple[str, ...] = ("cuda",)
    runs_on = aiter_ops.runs_on(("gfx950",))
    comes_with = aiter_ops.COMES_WITH
    second = AiterBf16()
    head_sizes = (aiter_ops.HEAD_SIZE,)
    heads_in = HEADS

    def __init__(self) -> None:
        self._partial: dict[torch.device, torch.Tensor] = {}

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        reasons = aiter_ops.why_not_aiter(machine, ("gfx950",), FUNCTION)
        if traits.head_dim not in (0, *self.head_sizes):
            reasons.append(f"head size {traits.head_dim} is not {aiter_ops.HEAD_SIZE}")
        if traits.heads % HEADS:
            reasons.append(why_not_heads(traits.heads))
        return reasons

    def run(self, call: AttentionCall) -> torch.Tensor:
        reason = aiter_ops.why_not_fp8(call)
        if not reason and call.query.shape[2] % HEADS:
            reason = why_not_heads(call.query.shape[2])
        if not reason and call.key.shape[1] < aiter_ops.FEWEST_KEYS:
            reason = f"fewer than {aiter_ops.FEWEST_KEYS} keys are faster in bf16"
        if reason:
            raise Refused(reason)
        return self.attend(call)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """A call that nothing speaks against, in FP8 however few its keys are."""
        import torch

        batch, tokens, heads, size = call.query.shape
        device = call.query.device
        lists = work(device, batch, tokens, call.key.shape[1], heads)
        query, of_query = aiter_ops.quantised(call.query, QUERY_SIZE)
        key, of_key = aiter_ops.quantised(call.key, QUERY_SIZE)
        value, of_value = aiter_ops.quantised(call.value)
        out = torch.empty(batch * tokens, heads, size, dtype=torch.bfloat16, device=device)
        partial, sums = self._partials(device, lists.partials * TILE, heads)
        with aiter_ops.on(device):
            aiter_ops.function(FUNCTION)(
                query, key, value, lists.queries, lists.keys, lists.pages, lists.starts, lists.rows, tokens,
                scale_of(call), False, partial, sums, out,
                of_query, of_key, of_value,
            )  # fmt: skip
            if lists.partials:
                _merge(lists, partial, sums, out)
        return out.view(batch, tokens, heads, size)

    def _partials(self, device: torch.device, rows: int, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for partial results (rows, heads, 128) and the logarithms of their sums (rows, heads), float32: the
        same memory for all calls on a GPU, which follow one another there."""
        import torch

        size = aiter_ops.HEAD_SIZE
        results = rows * heads * size
        needed = results + rows * heads
        held = self._partial.get(device)
        if held is None or held.numel() < needed:
            self._partial.pop(device, None)
            with torch.inference_mode(False):
                held = self._partial[device] = torch.empty(needed, dtype=torch.float32, device=device)
        return held[:results].view(rows, heads, size), held[results:needed].view(rows, heads)


def why_not_heads(heads: int) -> str:
    return f"{heads} heads are no multiple of {HEADS}, aiter's MLA kernel would read out of bounds"


def _merge(lists: Work, partial: Any, sums: Any, out: Any) -> None:
    """Merge the partial results into `out`, all seen as rows of 8 heads."""
    size, most = out.shape[2], TILE * out.shape[1] // HEADS
    splits = (0,) if "num_kv_splits" in aiter_ops.arguments(MERGE) else ()
    maps = (lists.merge_starts, lists.merge_into, lists.merge_from)
    of_eight = (partial.view(-1, HEADS, size), sums.view(-1, HEADS))
    aiter_ops.function(MERGE)(*of_eight, *maps, most, *splits, out.view(-1, HEADS, size))
