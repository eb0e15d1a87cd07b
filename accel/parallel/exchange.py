"""Tokens against heads: the exchange before and after an attention whose tokens are dealt out over ranks (Ulysses).

Everything but self-attention works on a rank's own tokens. For self-attention the ranks exchange: each gives its own
tokens of all heads and takes all tokens of its own heads, so any backend attends there as on one device, to the same
bits where its kernel treats heads alike. Neither tokens nor heads need be divisible: the first ranks take one more.
Two of four passes over the wires are in FP8 where queries and keys are quantised before: see fused/wan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from accel.bridge import Shared
from accel.errors import AccelError
from accel.ops import ANY_STRIDES, Slots, attention
from accel.parallel.launching import BROKEN

FIELD = "_parallel_config"
"""Where diffusers' processors keep what they hand to the backend of a self-attention call."""


def bounds(total: int, count: int) -> list[int]:
    """Where each of `count` parts of `total` begins, and the end: parts differ by one at most, larger ones first."""
    small, more = divmod(total, count)
    return [part * small + min(part, more) for part in range(count + 1)]


class Across(Shared):
    """The ranks of `group` that share one transformer's tokens. `total`: tokens of the call that is under way.

    heads: the model's. Raises AccelError when there are fewer heads or tokens than ranks, and when a rank fails.
    """

    def __init__(self, group: Any, heads: int) -> None:
        self.group, self.rank, self.count = group, dist.get_rank(group), dist.get_world_size(group)
        if heads < self.count:
            raise AccelError(f"{heads} heads can't be dealt to {self.count} GPUs: take at most {heads}")
        self.head_bounds, self.bounds, self.total = bounds(heads, self.count), [0] * (self.count + 1), 0
        self.number = ACROSS.add(self)

    def begin(self, total: int) -> None:
        """A call of the transformer with `total` tokens begins."""
        if total < self.count:
            raise AccelError(f"{total} tokens can't be dealt to {self.count} GPUs: make the clip larger")
        self.total, self.bounds = total, bounds(total, self.count)

    def end(self) -> None:
        ACROSS.remove(self.number)

    def own(self, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """This rank's tokens of a tensor that holds all of them along `dim`."""
        first, last = self.bounds[self.rank : self.rank + 2]
        return x.narrow(dim, first, last - first)

    def own_heads(self, x: torch.Tensor, dim: int = 1) -> torch.Tensor:
        """This rank's heads of a tensor that holds all of them along `dim`."""
        first, last = self.head_bounds[self.rank : self.rank + 2]
        return x.narrow(dim, first, last - first)

    def shaped(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor of the shape that `x` (batch, own tokens, heads, size) will have, without memory for its tokens."""
        return self.own_heads(x, 2)[:, :1].expand(-1, self.total, -1, -1)

    def start(self, x: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin to exchange `x` (batch, own tokens, heads, size); the result waits for it: (batch, all tokens, own
        heads, size). What is computed meanwhile overlaps."""
        words = _words(x)
        batch, tokens, _, size = words.shape
        parts = [(last - first) * tokens * batch * size for first, last in pairwise(self.head_bounds)]
        sent = words.new_empty(sum(parts))
        for part, (first, last) in zip(sent.split(parts), pairwise(self.head_bounds), strict=True):
            part.view(tokens, batch, last - first, size).copy_(words[:, :, first:last].transpose(0, 1))
        mine = self.head_bounds[self.rank + 1] - self.head_bounds[self.rank]
        got = words.new_empty(self.total * batch * mine * size)
        takes = [(last - first) * batch * mine * size for first, last in pairwise(self.bounds)]
        with told():
            work = dist.all_to_all_single(got, sent, takes, parts, self.group, async_op=True)

        def finish() -> torch.Tensor:
            with told():
                work.wait()
            return got.view(self.total, batch, mine, size).transpose(0, 1).view(x.dtype)

        return finish

    def back(self, x: torch.Tensor) -> torch.Tensor:
        """The other way: `x` (batch, all tokens, own heads, size) becomes (batch, own tokens, all heads, size)."""
        words = _words(x.transpose(0, 1))
        _, batch, mine, size = words.shape
        tokens, heads = self.bounds[self.rank + 1] - self.bounds[self.rank], self.head_bounds[-1]
        parts = [(last - first) * batch * mine * size for first, last in pairwise(self.bounds)]
        takes = [(last - first) * tokens * batch * size for first, last in pairwise(self.head_bounds)]
        got = words.new_empty(sum(takes))
        with told():
            dist.all_to_all_single(got, words.view(-1), takes, parts, self.group)
        out = words.new_empty(batch, tokens, heads, size)
        for part, (first, last) in zip(got.split(takes), pairwise(self.head_bounds), strict=True):
            out[:, :, first:last].copy_(part.view(tokens, batch, last - first, size).transpose(0, 1))
        return out.view(x.dtype)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """All tokens of `x` (batch, own tokens, channels), on every rank."""
        most = self.bounds[1]  # the first rank's share, which is the largest
        sent = x.new_zeros(x.shape[0], most, x.shape[2])
        sent[:, : x.shape[1]] = x
        parts = gathered(sent, self.group)
        widths = [last - first for first, last in pairwise(self.bounds)]
        return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], 1)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, causal: bool, slot: int
    ) -> torch.Tensor:
        return attention_across(query, key, value, scale, causal, slot, self.number)

    # a copied module shares the group, which can't be copied
    def __deepcopy__(self, memo: dict[int, object]) -> Across:
        return self


ACROSS: Slots[Across] = Slots()


def of(processor: Any) -> Across | None:
    """The ranks over which this attention's tokens are dealt out, None where they are not."""
    found = getattr(processor, FIELD, None)
    return found if isinstance(found, Across) else None


def gathered(x: torch.Tensor, group: Any) -> tuple[torch.Tensor, ...]:
    """`x` of every rank of the group, all of one shape and dtype, in the order of their ranks."""
    words = _words(x)
    parts = words.new_empty(dist.get_world_size(group), *words.shape)
    with told():
        dist.all_gather(list(parts.unbind()), words, group)
    return parts.view(x.dtype).unbind()


@contextmanager
def told() -> Iterator[None]:
    """What a broken exchange raises becomes one sentence."""
    try:
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:160]
        raise AccelError(
            f"{BROKEN} ({reason}); this clip can't be finished, run it again, with fewer GPUs if it ends so again"
        ) from error


def _words(x: torch.Tensor) -> torch.Tensor:
    """`x`, contiguous, its last dim seen in eights of bytes where that divides it, else in bytes: no library has to
    know FP8, and copies move much at once."""
    whole = x.contiguous()
    wide = whole.shape[-1] * whole.element_size() % 8 == 0 and whole.data_ptr() % 8 == 0
    return whole.view(torch.int64 if wide else torch.uint8)


@torch.library.custom_op("accel::attention_across", mutates_args=(), tags=ANY_STRIDES)
def attention_across(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    causal: bool,
    slot: int,
    across: int,
) -> torch.Tensor:
    """`accel::attention` of tokens that are dealt out over the ranks of ACROSS[across]; as many keys as queries."""
    ranks = ACROSS[across]
    pending = [ranks.start(x) for x in (query, key, value)]
    whole = [finish() for finish in pending]
    return ranks.back(attention(whole[0], whole[1], whole[2], None, scale, causal, slot))


@attention_across.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    causal: bool,
    slot: int,
    across: int,
) -> torch.Tensor:
    return query.new_empty((*query.shape[:-1], value.shape[-1]))
