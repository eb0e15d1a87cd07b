"""A stand-in for AMD's aiter on the CPU: its scheduler, MLA prefill in FP8, merging, FMHA in FP8 and bf16.

It computes what the kernels compute, from the very lists they are given: the prefill walks `work_indptr` and
`work_info`, row by row, and writes each result to the output or to the partial results, the merging reads those by its
maps. Scores, sums and partial results are float32, probabilities are rounded to the input's format before they meet
the values. What the kernels reject, misread or read out of bounds is refused here: dtypes, sizes, strides, GPUs,
indices, room for partial results, numbers of heads. The scheduler deals out as aiter's does in releases
0.1.10.post3 to 0.1.19: both made the same lists for 152 shapes. `installed()` puts all this where `import aiter` finds
it and lets the backends take CPU tensors; everything tested on it is called emulated.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch

from accel.backends import aiter_mla, aiter_ops
from accel.backends.aiter_bf16 import AiterBf16
from accel.backends.aiter_fmha import AiterFmha
from accel.backends.aiter_mla import AiterMla

E4M3 = torch.float8_e4m3fn
TILE, UNIT, QUERY, VALUE = 256, 128, 192, 128
REDUCES = (1, 2, 4, 8, 10, 16, 32, 64, 128)
RELEASES = {"0.1.11": (REDUCES, False), "0.1.19": ((*REDUCES, 40), True)}
"""Release -> numbers of heads that its merging has code for, whether it asks for `num_kv_splits`."""

LISTS = "Tensor(a!) work_metadata_ptrs, Tensor(b!) work_indptr, Tensor(c!) work_info, Tensor(d!) reduce_indptr, "
LISTS += "Tensor(e!) reduce_final_map, Tensor(f!) reduce_partial_map"
SCHEMAS = {
    "get_ps_metadata_v1": "(Tensor seqlens_qo_indptr, Tensor pages_kv_indptr, Tensor context_lens, int gqa_ratio, "
    f"int num_heads_k, {LISTS}, int qhead_granularity=1, int qlen_granularity=256, int kvlen_granularity=16, "
    "int block_size=16, bool is_causal=True) -> ()",
    "mla_prefill_ps_asm_fwd": "(Tensor Q, Tensor K, Tensor V, Tensor qo_indptr, Tensor kv_indptr, "
    "Tensor kv_page_indices, Tensor? work_indptr, Tensor? work_info_set, int max_seqlen_q, float softmax_scale, "
    "bool is_causal, Tensor(a!) splitData, Tensor(b!) splitLse, Tensor(c!) output, Tensor? q_scale=None, "
    "Tensor? k_scale=None, Tensor? v_scale=None) -> ()",
    "mla_reduce_v1": "(Tensor partial_output, Tensor partial_lse, Tensor reduce_indptr, Tensor? reduce_final_map, "
    "Tensor reduce_partial_map, int max_seqlen_q, SPLITSTensor(a!) final_output, Tensor(b!)? final_lse=None) -> ()",
}


class Row(NamedTuple):
    """One row of `work_info`: queries of one item and head by a range of its keys, ends exclusive, global numbers."""

    item: int
    partial: int
    q_start: int
    q_end: int
    k_start: int
    k_end: int
    k_left: int
    heads: int

    @property
    def head(self) -> range:
        return range(self.heads & 0xFFFF, self.heads >> 16)


def check(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


@dataclass
class Gpu:
    """One GPU: its chip, how many compute units it has, whether it is the current one; and what was called on it."""

    chip: str = "gfx950"
    units: int = 256
    release: str = "0.1.19"
    sums: bool = False
    current: Any = None
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @contextmanager
    def on(self, device: Any) -> Iterator[None]:
        before, self.current = self.current, device
        try:
            yield
        finally:
            self.current = before

    def lies_here(self, what: str, tensor: torch.Tensor, dtype: torch.dtype, *shape: int | None) -> None:
        """A tensor as a kernel takes its address: on the current GPU, of that dtype and shape, contiguous, small enough
        to be counted in 32 bits."""
        check(self.current is not None, "another GPU than the tensors' is the current one")
        check(tensor.device == self.current, f"{what} lies on another GPU")
        check(tensor.dtype == dtype, f"{what} is {tensor.dtype}, read as {dtype}")
        fits = tensor.dim() == len(shape) and all(b in (None, a) for a, b in zip(tensor.shape, shape, strict=True))
        check(fits, f"{what} is {tuple(tensor.shape)}, read as {shape}")
        check(tensor.is_contiguous(), f"{what} is not contiguous")
        check(tensor.numel() * tensor.element_size() < 2**31, f"{what} can't be addressed in 32 bits")

    # -- the scheduler, on the host

    def get_ps_metadata_info_v1(
        self, batch_size: int, num_head_k: int, max_qlen: int, qlen_granularity: int = 256
    ) -> tuple[Any, ...]:
        check(self.current is not None, "another GPU than the tensors' is the current one")
        per_cluster = self.units // math.gcd(num_head_k, self.units)
        tiles = -(-max_qlen // qlen_granularity)
        works = (batch_size + per_cluster - 1) * tiles * num_head_k
        partials = min(batch_size + per_cluster - 1, 2 * (per_cluster - 1)) * tiles
        counts = ((works, 8), batch_size * tiles + 1, (batch_size * tiles, 2), partials)
        return ((2, torch.uint64), (self.units + 1, torch.int32), *((count, torch.int32) for count in counts))

    def get_ps_metadata_v1(
        self, seqlens_qo_indptr: torch.Tensor, pages_kv_indptr: torch.Tensor, context_lens: torch.Tensor,
        gqa_ratio: int, num_heads_k: int, work_metadata_ptrs: torch.Tensor, work_indptr: torch.Tensor,
        work_info: torch.Tensor, reduce_indptr: torch.Tensor, reduce_final_map: torch.Tensor,
        reduce_partial_map: torch.Tensor, qhead_granularity: int, qlen_granularity: int, kvlen_granularity: int,
        block_size: int, is_causal: bool,
    ) -> None:  # fmt: skip
        lengths = (seqlens_qo_indptr, pages_kv_indptr, context_lens)
        check(all(one.dtype == torch.int32 and one.stride(0) == 1 for one in lengths), "lengths are read as int32")
        check((gqa_ratio, qhead_granularity, block_size, is_causal) == (1, 1, 1, False), "only this is emulated")
        check((qlen_granularity, kvlen_granularity) == (TILE, UNIT), "the kernel's tiles are 256 x 128")
        self.lies_here("work_metadata_ptrs", work_metadata_ptrs, torch.uint64, 2)
        self.lies_here("work_indptr", work_indptr, torch.int32, self.units + 1)
        self.lies_here("work_info", work_info, torch.int32, None, 8)
        self.lies_here("reduce_indptr", reduce_indptr, torch.int32, None)
        self.lies_here("reduce_partial_map", reduce_partial_map, torch.int32, None)
        self.lies_here("reduce_final_map", reduce_final_map, torch.int32, None, 2)
        check(num_heads_k % 8 == 0, "the kernel reads out of bounds")
        queries, keys, counts = (one.tolist() for one in lengths)
        starts, rows = deal(queries, keys, counts, num_heads_k, self.units)
        merges = merges_of(rows)
        partials = [row for into in sorted(merges) for row in sorted(merges[into])]
        check(len(rows) <= work_info.shape[0], "work_info has no room")
        check(len(merges) < reduce_indptr.numel() <= reduce_final_map.shape[0] + 1, "the merging's lists have no room")
        check(len(partials) <= reduce_partial_map.numel(), "reduce_partial_map has no room")
        ends = [0, *accumulate(len(merges[into]) for into in sorted(merges))]
        ends += ends[-1:] * (reduce_indptr.numel() - len(ends))
        filled = ((work_indptr, starts), (work_info, rows), (reduce_indptr, ends),
                  (reduce_final_map, sorted(merges)), (reduce_partial_map, partials))  # fmt: skip
        for target, values in filled:
            target.zero_()
            if values:
                target[: len(values)] = torch.tensor(values, dtype=torch.int32)

    # -- MLA prefill

    def mla_prefill_ps_asm_fwd(
        self, Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor,
        kv_page_indices: torch.Tensor, work_indptr: torch.Tensor, work_info_set: torch.Tensor, max_seqlen_q: int,
        softmax_scale: float, is_causal: bool, splitData: torch.Tensor, splitLse: torch.Tensor, output: torch.Tensor,
        q_scale: torch.Tensor, k_scale: torch.Tensor, v_scale: torch.Tensor,
    ) -> None:  # fmt: skip
        check(self.chip == "gfx950", "fp8 mla persistent prefill is not supported here")
        check(not is_causal, "only this is emulated")
        heads = Q.shape[1]
        check(heads % 8 == 0, f"{heads} heads: the kernel reads out of bounds")
        self.lies_here("Q", Q, E4M3, None, heads, QUERY)
        self.lies_here("K", K, E4M3, None, heads, QUERY)
        self.lies_here("V", V, E4M3, K.shape[0], heads, VALUE)
        self.lies_here("output", output, torch.bfloat16, Q.shape[0], heads, VALUE)
        self.lies_here("splitData", splitData, torch.float32, None, heads, VALUE)
        self.lies_here("splitLse", splitLse, torch.float32, splitData.shape[0], heads)
        for what, one in (("q_scale", q_scale), ("k_scale", k_scale), ("v_scale", v_scale)):
            self.lies_here(what, one, torch.float32, 1)
        rows = self.rows(qo_indptr, kv_indptr, kv_page_indices, work_indptr, work_info_set, heads, splitData.shape[0])
        check(int(qo_indptr[-1]) == Q.shape[0], "Q has other rows than qo_indptr tells")
        check(max_seqlen_q >= int(qo_indptr.diff().max()), "max_seqlen_q is too small")
        pages = kv_page_indices.long()
        check(bool(((pages >= 0) & (pages < K.shape[0])).all()), "a page out of bounds")
        self.calls.append(("mla_prefill_ps_asm_fwd", {"Q": Q, "softmax_scale": softmax_scale, "rows": rows}))
        scale = softmax_scale * float(q_scale) * float(k_scale)
        wide = (Q.float(), K.float()[pages], V.float()[pages])
        for row in rows:
            queries, keys = slice(row.q_start, row.q_end), slice(row.k_start, row.k_end)
            for head in row.head:
                parts = (wide[0][queries, head], wide[1][keys, head], wide[2][keys, head])
                out, sums = attend(*parts, scale, E4M3)
                out = out * float(v_scale)
                if row.partial < 0:
                    output[queries, head] = out.to(output.dtype)
                else:
                    into = slice(row.partial, row.partial + row.q_end - row.q_start)
                    splitData[into, head], splitLse[into, head] = out, sums

    def rows(
        self, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor, kv_page_indices: torch.Tensor,
        work_indptr: torch.Tensor, work_info: torch.Tensor, heads: int, room: int,
    ) -> list[Row]:  # fmt: skip
        """The rows that the compute units take, in their order; refused where one points out of bounds."""
        lists = {"qo_indptr": qo_indptr, "kv_indptr": kv_indptr, "kv_page_indices": kv_page_indices}
        for what, one in {**lists, "work_indptr": work_indptr}.items():
            self.lies_here(what, one, torch.int32, None)
        self.lies_here("work_info", work_info, torch.int32, None, 8)
        starts, queries, keys = work_indptr.tolist(), qo_indptr.tolist(), kv_indptr.tolist()
        check(starts[0] == 0 and starts == sorted(starts) and starts[-1] <= work_info.shape[0], "work_indptr")
        check(len(queries) == len(keys) and keys[-1] <= kv_page_indices.numel(), "kv_indptr")
        found = [Row(*values) for values in work_info[: starts[-1]].tolist()]
        for row in found:
            check(0 <= row.item < len(queries) - 1, "an item out of bounds")
            check(queries[row.item] <= row.q_start < row.q_end <= queries[row.item + 1], "queries out of bounds")
            check(row.q_end - row.q_start <= TILE, "a tile of more than 256 rows")
            check(keys[row.item] <= row.k_start < row.k_end <= keys[row.item + 1], "keys out of bounds")
            check(0 <= row.head.start < row.head.stop <= heads, "heads out of bounds")
            whole = row.partial == -1 and row.k_end - row.k_start == keys[row.item + 1] - keys[row.item]
            check(whole or (row.partial >= 0 and row.partial % TILE == 0), "a part of the keys straight to the output")
            check(row.partial + TILE <= room or row.partial == -1, "a partial result out of bounds")
        return found

    def mla_reduce_v1(
        self, partial_output: torch.Tensor, partial_lse: torch.Tensor, reduce_indptr: torch.Tensor,
        reduce_final_map: torch.Tensor, reduce_partial_map: torch.Tensor, max_seqlen_q: int, *rest: Any,
    ) -> None:  # fmt: skip
        known, splits = RELEASES[self.release]
        final, final_lse = (*rest[splits:], None)[:2]  # a default at the end does not arrive
        heads, size = partial_output.shape[1:]
        check(heads in known and size == VALUE, f"doesn't support the specified settings: #heads: {heads}")
        self.lies_here("partial_output", partial_output, torch.float32, None, heads, VALUE)
        self.lies_here("partial_lse", partial_lse, torch.float32, partial_output.shape[0], heads)
        self.lies_here("final_output", final, torch.bfloat16, None, heads, VALUE)
        self.lies_here("reduce_indptr", reduce_indptr, torch.int32, None)
        self.lies_here("reduce_partial_map", reduce_partial_map, torch.int32, None)
        self.lies_here("reduce_final_map", reduce_final_map, torch.int32, None, 2)
        if final_lse is not None:
            self.lies_here("final_lse", final_lse, torch.float32, final.shape[0], heads)
        ends = reduce_indptr.tolist()
        check(ends[0] == 0 and ends == sorted(ends) and ends[-1] <= reduce_partial_map.numel(), "reduce_indptr")
        check(len(ends) - 1 <= reduce_final_map.shape[0], "reduce_final_map is too short")
        self.calls.append(("mla_reduce_v1", {"heads": heads, "tiles": len(ends) - 1}))
        for (start, end), (q_start, q_end) in zip(pairwise(ends), reduce_final_map.tolist(), strict=False):
            if end - start < 2:
                continue  # the kernel leaves the output as it is
            check(end - start <= self.units, "more parts than the kernel has room for")
            check(0 <= q_start < q_end <= final.shape[0], "output out of bounds")
            check(q_end - q_start <= max_seqlen_q, "max_seqlen_q is too small")
            places = reduce_partial_map[start:end].long()
            fits = int(places.min()) >= 0 and int(places.max()) + q_end - q_start <= len(partial_output)
            check(fits, "partial rows out of bounds")
            at = places[:, None] + torch.arange(q_end - q_start)
            sums = partial_lse[at]
            whole = sums.logsumexp(0)
            final[q_start:q_end] = ((sums - whole).exp()[..., None] * partial_output[at]).sum(0).to(final.dtype)
            if final_lse is not None:
                final_lse[q_start:q_end] = whole

    # -- FMHA

    def flash_attn_fp8_pertensor_func(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q_descale: torch.Tensor, k_descale: torch.Tensor,
        v_descale: torch.Tensor, causal: bool = False, window_size: tuple[int, ...] = (-1, -1, 0),
        softmax_scale: float | None = None,
    ) -> torch.Tensor:  # fmt: skip
        check(self.chip == "gfx950", "fp8 attention is emulated for gfx950")
        check(not causal and tuple(window_size) == (-1, -1, 0), "only this is emulated")
        batch, _, heads, _ = q.shape
        self.lies_here("q", q, E4M3, batch, None, heads, VALUE)
        self.lies_here("k", k, E4M3, batch, None, heads, VALUE)
        self.lies_here("v", v, E4M3, batch, k.shape[1], heads, VALUE)
        for what, one in (("q_descale", q_descale), ("k_descale", k_descale), ("v_descale", v_descale)):
            self.lies_here(what, one, torch.float32, 1)
        scale = VALUE**-0.5 if softmax_scale is None else softmax_scale
        self.calls.append(("flash_attn_fp8_pertensor_func", {"Q": q, "softmax_scale": scale}))
        out, _ = attend_all(q, k, v, scale * float(q_descale) * float(k_descale), E4M3)
        return (out * float(v_descale)).bfloat16()

    def flash_attn_func(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False,
    ) -> Any:  # fmt: skip
        check(self.chip in ("gfx942", "gfx950"), "no code for this chip")
        check(self.current == q.device == k.device == v.device, "a tensor lies on another GPU")
        check(q.dtype == k.dtype == v.dtype == torch.bfloat16, "FlashAttention only support fp16 and bf16 data type")
        check(all(x.dim() == 4 and x.stride(-1) == 1 for x in (q, k, v)), "the last dimension must be contiguous")
        check(q.shape[3] == k.shape[3] == v.shape[3] <= 256 and q.shape[3] % 8 == 0, "head sizes")
        check(q.shape[0] == k.shape[0] and k.shape[:3] == v.shape[:3], "k and v must have one shape")
        check(q.shape[2] % k.shape[2] == 0, "heads of k must divide those of q")
        check(min(q.shape[1], k.shape[1]) > 0 and not dropout_p, "only this is emulated")
        check(not torch.is_grad_enabled() or not q.requires_grad, "return_lse is needed for a backward pass")
        scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
        self.calls.append(("flash_attn_func", {"Q": q, "softmax_scale": scale}))
        group = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        out, sums = attend_all(q, k, v, scale, torch.bfloat16, causal)
        return (out.bfloat16(), sums) if self.sums else out.bfloat16()


def deal(
    queries: list[int], keys: list[int], lengths: list[int], heads: int, units: int
) -> tuple[list[int], list[Row]]:
    """aiter's way of dealing work out: where each compute unit's rows start, and all rows.

    The compute units are cut into clusters, each with its own heads. Every item's tiles of 256 queries are laid in a
    row, first, last, second, last but one and so on, and so are their units of 128 keys; the compute units of a cluster
    take equal shares of that row, the first ones one unit more, and repeat theirs for each head of the cluster.
    """
    tiles = []
    for item, (start, end) in enumerate(pairwise(queries)):
        cuts = list(range(start, end, TILE))
        inwards = [cuts[at // 2] if at % 2 == 0 else cuts[-1 - at // 2] for at in range(len(cuts))]
        tiles += [(item, cut, min(cut + TILE, end), -(-lengths[item] // UNIT)) for cut in inwards]
    clusters = math.gcd(heads, units)
    of_cluster = units // clusters
    share, more = divmod(sum(tile[3] for tile in tiles), of_cluster)
    shares: list[list[tuple[int, int, int, int, int, int, int]]] = []
    at, done, partial = 0, 0, 0  # tile, its units dealt, partial results so far
    for unit in range(of_cluster):
        left, pieces = share + (unit < more), []
        while left and at < len(tiles):
            item, q_start, q_end, of_tile = tiles[at]
            taken = min(left, of_tile - done)
            last = done + taken == of_tile
            place = -1 if last and not done else partial * TILE
            k_end = min(keys[item] + (done + taken) * UNIT, keys[item + 1])
            behind = 0 if last else lengths[item] - (k_end - keys[item])
            pieces.append((item, place, q_start, q_end, keys[item] + done * UNIT, k_end, behind))
            partial, left = partial + (place >= 0), left - taken
            at, done = (at + 1, 0) if last else (at, done + taken)
        shares.append(pieces)
    starts, rows = [0], []
    for cluster in range(clusters):
        mine = range(cluster * heads // clusters, (cluster + 1) * heads // clusters)
        for pieces in shares:
            rows += [Row(*piece, head | (head + 1) << 16) for head in mine for piece in pieces]
            starts.append(len(rows))
    return starts, rows


def merges_of(rows: list[Row]) -> dict[tuple[int, int], set[int]]:
    """Queries -> places of their partial results; every cluster uses the same ones."""
    found: dict[tuple[int, int], set[int]] = {}
    for row in rows:
        if row.partial >= 0:
            found.setdefault((row.q_start, row.q_end), set()).add(row.partial)
    return found


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, form: torch.dtype, causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """One head: the output (queries, size), float32, and the logarithms of the sums (queries)."""
    scores = q @ k.T * scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape, dtype=torch.bool).triu(1), -math.inf)
    most = scores.amax(-1, keepdim=True)
    weights = (scores - most).exp()
    sums = weights.sum(-1)
    return weights.to(form).float() @ v / sums[:, None], most[:, 0] + sums.log()


def attend_all(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, form: torch.dtype, causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """(batch, tokens, heads, size) and (batch, heads, tokens), one head at a time."""
    out = torch.empty((*q.shape[:3], v.shape[3]), dtype=torch.float32)
    sums = torch.empty(q.shape[0], q.shape[2], q.shape[1])
    for item in range(q.shape[0]):
        for head in range(q.shape[2]):
            wide_q, wide_k, wide_v = (x[item, :, head].float() for x in (q, k, v))
            out[item, :, head], sums[item, head] = attend(wide_q, wide_k, wide_v, scale, form, causal)
    return out, sums


def dispatched(name: str) -> Callable[..., Any]:
    """As aiter's functions are: a call into torch's dispatcher that hides its arguments."""
    return lambda *args, **kwargs: getattr(torch.ops.aiter, name)(*args, **kwargs)


@contextmanager
def installed(gpu: Gpu | None = None, without: tuple[str, ...] = ()) -> Iterator[Gpu]:
    """aiter on `gpu`, for the time of a `with`; yields the GPU, whose `calls` name each kernel run. `without` names
    functions that this release lacks."""
    gpu = gpu or Gpu()
    library = torch.library.Library("aiter", "DEF")
    module = ModuleType("aiter")
    for name in ("get_ps_metadata_info_v1", "flash_attn_func", "flash_attn_fp8_pertensor_func"):
        setattr(module, name, getattr(gpu, name))
    for name, schema in SCHEMAS.items():
        splits = "int num_kv_splits, " if RELEASES[gpu.release][1] else ""
        library.define(name + schema.replace("SPLITS", splits))
        library.impl(name, getattr(gpu, name), "CPU")
        setattr(module, name, dispatched(name))
    for name in without:
        delattr(module, name)
    with ExitStack() as stack:
        stack.callback(library._destroy)
        stack.callback(sys.modules.pop, "aiter", None)
        sys.modules["aiter"] = module
        stack.enter_context(mock.patch.object(aiter_ops, "chip", return_value=gpu.chip))
        stack.enter_context(mock.patch.object(aiter_ops, "on", gpu.on))
        for backend in (AiterBf16, AiterFmha, AiterMla):
            stack.enter_context(mock.patch.object(backend, "devices", ("cuda", "cpu")))
        for kept in (aiter_mla.work, aiter_ops.arguments):
            kept.cache_clear()
            stack.callback(kept.cache_clear)
        yield gpu
