"""One call, ready to run with any backend: inputs, the exact result, and a candidate per backend.

Inputs are normal numbers, rounded to the dtype; the exact result is computed from the rounded ones in float64, for
attention and linears on at most ROWS rows spread over all of them, so an error tells of the kernel and not of the
rounding of its inputs. Blocks too large for float64 are held against float32, which is five digits better than what
they are compared with.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from accel.contract import AttentionBackend, Backend, LinearBackend, VaeBackend
from accel.linears import pack_linears
from accel.measuring.blocks import Block
from accel.ops import ATTENTION, AttentionSlot, attention
from accel.readouts.results import Call
from accel.report import Tally

ROWS = 512
WIDE_FLOPS = 2e10
"""A block of more operations than this is compared with float32: float64 convolutions are slow."""

HIDDEN = 4
"""Keys that a mask hides, at the end."""


class NotTakenError(Exception):
    """The backend leaves this call to the reference; str() is the reason."""


@dataclass
class Candidate:
    """One backend at one call. `run` makes the call; `tally` counts it, None for plain torch. `close` ends it."""

    backend: Backend
    dtype: str
    run: Callable[[], torch.Tensor]
    tally: Tally | None = None
    close: Callable[[], Any] = lambda: None


class Trial:
    """One call in one dtype on one device."""

    def __init__(self, call: Call, dtype: str, device: str, block: Block | None = None) -> None:
        self.call, self.dtype = call, dtype
        self._type, self._device = getattr(torch, dtype), torch.device(device)
        self._generator = torch.Generator(self._device if self._device.type == "cuda" else "cpu").manual_seed(0)
        if call.kind == "attention":
            self._attention()
        elif call.kind == "linear":
            self._linear()
        else:
            self._block(block)

    _candidate: Callable[[Backend], Candidate]
    _exact: Callable[[], torch.Tensor]
    _part: Callable[[torch.Tensor], torch.Tensor]
    """What of a result is compared."""

    def candidate(self, backend: Backend) -> Candidate:
        """Raises NotTakenError for a call that the backend does not take, or whatever packing raises."""
        return self._candidate(backend)

    def error(self, result: torch.Tensor) -> float:
        """Relative error (L2) of a result; infinite when it is not finite."""
        if not hasattr(self, "_want"):
            self._want = self._exact().cpu().double()
            self._size = float(self._want.norm()) or 1.0
        got = self._part(result).cpu().double()  # the GPU may have no float64
        error = float((got - self._want).norm()) / self._size
        return error if error == error else float("inf")

    def _random(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        drawn = torch.randn(*shape, generator=self._generator, device=self._generator.device) * scale
        return drawn.to(self._device, self._type)

    def _rows(self, count: int) -> torch.Tensor:
        return torch.linspace(0, count - 1, min(ROWS, count), dtype=torch.float64).long().to(self._device)

    def _widest(self) -> tuple[torch.device, torch.dtype]:
        """Where exact results are computed: Apple's GPUs have no float64."""
        return torch.device("cpu") if self._device.type == "mps" else self._device, torch.float64

    # -- attention --

    def _attention(self) -> None:
        sizes = self.call.sizes
        batch, size = sizes["batch"], sizes["head_dim"]
        query = self._random(batch, sizes["tokens"], sizes["heads"], size)
        key, value = (self._random(batch, sizes["kv_tokens"], sizes["kv_heads"], size) for _ in range(2))
        mask, rows = self._mask(), self._rows(sizes["tokens"])

        def candidate(backend: Backend) -> Candidate:
            tally = Tally("bench", "attention", backend.name)
            slot = ATTENTION.add(AttentionSlot(cast(AttentionBackend, backend), tally))
            run = lambda: attention(query, key, value, mask, None, False, slot)  # noqa: E731
            return Candidate(backend, self.dtype, run, tally, lambda: ATTENTION.remove(slot))

        def exact() -> torch.Tensor:
            place, wide = self._widest()
            some = query[:, rows].to(place, wide)
            shown = None if mask is None else (mask if mask.shape[2] == 1 else mask[:, :, rows]).to(place)
            heads = [_one_head(some, key, value, shown, head) for head in range(sizes["heads"])]
            return torch.stack(heads, 2)

        self._candidate, self._exact = candidate, exact
        self._part = lambda result: result[:, rows]

    def _mask(self) -> torch.Tensor | None:
        """As the call had one: True where a key counts."""
        if not self.call.mask:
            return None
        keys = self.call.sizes["kv_tokens"]
        hidden = min(HIDDEN, keys - 1)
        queries = self.call.sizes["tokens"] if self.call.mask == "queries" else 1
        mask = torch.ones(self.call.sizes["batch"], 1, queries, keys, dtype=torch.bool, device=self._device)
        mask[..., keys - hidden :] = False
        return mask

    # -- linears --

    def _linear(self) -> None:
        sizes = self.call.sizes
        outs, ins = sizes["out_features"], sizes["in_features"]
        inputs = self._random(sizes["rows"], ins)
        weight = self._random(outs, ins, scale=ins**-0.5)
        bias = self._random(outs) if sizes["bias"] else None
        rows = self._rows(sizes["rows"])

        def candidate(backend: Backend) -> Candidate:
            linear = _linear_of(weight, bias)
            if backend.reference:
                return Candidate(backend, self.dtype, lambda: linear(inputs))
            tally = Tally("bench", "linear", backend.name)
            inside = nn.ModuleDict({"blocks": nn.ModuleList([linear])}) if self.call.blocks else nn.Sequential(linear)
            packed = pack_linears(inside, cast(LinearBackend, backend), tally, None)
            if not packed.packed:
                raise NotTakenError("; ".join(packed.skipped))
            return Candidate(backend, self.dtype, lambda: linear(inputs), tally, packed.undo)

        def exact() -> torch.Tensor:
            place, wide = self._widest()
            out = inputs[rows].to(place, wide) @ weight.to(place, wide).T
            return out if bias is None else out + bias.to(place, wide)

        self._candidate, self._exact = candidate, exact
        self._part = lambda result: result[rows]

    # -- VAE blocks --

    def _block(self, recorded: Block | None) -> None:
        if recorded is None:
            raise ValueError(f"the module behind {self.call.title!r} is needed to run it")
        recorded = recorded.lower(self.call.sizes["height"])
        arguments, block = recorded.with_values(self._random), self._filled(recorded.module)

        def candidate(backend: Backend) -> Candidate:
            own = copy.deepcopy(block)
            run = lambda: Block.call(own, arguments)  # noqa: E731
            if backend.reference:
                return Candidate(backend, self.dtype, run)
            tally = Tally("bench", "vae", backend.name)
            undo = cast(VaeBackend, backend).apply(_in_its_vae(own), tally)
            return Candidate(backend, self.dtype, run, tally, undo)

        def exact() -> torch.Tensor:
            place, wide = self._widest()
            wide = wide if self.call.flops <= WIDE_FLOPS else torch.float32
            widened = tree_map_only(torch.Tensor, lambda tensor: tensor.to(place, wide), arguments)
            return Block.call(copy.deepcopy(block).to(place, wide), widened)

        self._candidate, self._exact = candidate, exact
        self._part = lambda result: result

    def _filled(self, recorded: nn.Module) -> nn.Module:
        """A copy of a module without weights, with random ones that keep numbers of order one."""
        block = copy.deepcopy(recorded).to_empty(device=self._device).to(self._type).requires_grad_(False)
        for tensor in [*block.parameters(), *block.buffers()]:
            if tensor.dim() > 1 and tensor[0].numel() > 1:
                tensor.copy_(self._random(*tensor.shape, scale=tensor[0].numel() ** -0.5))
            elif tensor.is_floating_point():
                tensor.fill_(1.0)
        return block


def _in_its_vae(block: nn.Module) -> nn.Module:
    """`block` inside a module whose class has the VAE's name, as far as the block's own name tells: backends look at it
    to choose how tensors lie in memory."""
    name = "AutoencoderKLWan" if type(block).__name__.startswith("Wan") else "VAE"
    holder: nn.Module = type(name, (nn.Sequential,), {})(block)
    return holder


def _linear_of(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    outs, ins = weight.shape
    linear = nn.Linear(ins, outs, bias=bias is not None, device="meta").eval()
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


def _one_head(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, head: int
) -> torch.Tensor:
    """(batch, rows, size) of one head, written out: softmax(q k / sqrt(size)) v."""
    own = head * key.shape[2] // query.shape[2]
    q, k, v = query[:, :, head], key[:, :, own].to(query), value[:, :, own].to(query)
    scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, 0], float("-inf"))
    return torch.softmax(scores, -1) @ v
