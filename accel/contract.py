"""What a backend is: what it answers before it is engaged, and the calls it takes and refuses afterwards.

"Can you?" is answered with a list of reasons why not, and an empty one means usable. The page's badges, `--doctor`, the
error for a forced choice and the log all print these same sentences, so each one says what is missing, which value was
seen, and what a person can do about it. Asking must be cheap: no kernel, no torch and no package is imported,
everything needed stands in the Machine, whose facts were proved in child processes beforehand.

Every attention backend has one signature and one layout, `(batch, tokens, heads, head_dim)`; every linear backend turns
one weight into one PackedMatrix. A call that can't be served raises Refused with one sentence; the op that made the
call then runs the reference and counts the sentence. Nothing falls back uncounted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from accel.types import Kind, Machine, StageTraits

if TYPE_CHECKING:
    import torch

# oneDNN's and SGLang's AMX paths keep tile state and scratch per kernel object: one inference thread enters at a time.
AMX_LOCK = threading.RLock()


@runtime_checkable
class Backend(Protocol):
    """One way to run the calls of one kind.

    name: as typed in preferences ("sdpa", "sgl_amx"). title: as shown to a person ("PyTorch attention").
    exact: equal to the stock module up to the rounding of its dtype. Approximate backends (int8, fp8) are opt-in:
    `auto` takes them only where readouts found them faster and this very model's clips alike.
    dtypes: dtypes the stage must run in for this backend to serve it.
    devices: torch device types it serves ("cpu", "cuda", "mps").
    runs_on: the machines that can run it, for a person. comes_with: what brings it and how to get that.
    reference: the stock path, which serves everything. Exactly one per kind.
    """

    name: str
    title: str
    kind: Kind
    exact: bool
    reference: bool
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    runs_on: str
    comes_with: str

    def why_not(self, machine: Machine, traits: StageTraits) -> list[str]:
        """Sentences why this backend can't serve `traits` on `machine`, each with what to do; empty when it can."""
        ...


class Refused(Exception):  # noqa: N818 - an answer, not an error: the reference serves the call
    """This backend can't serve this one call; str() is the reason that the report counts."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call.

    query: (batch, tokens, heads, head_dim); key and value: (batch, kv_tokens, kv_heads, head_dim), one dtype, one
    device.
    mask: None; or bool (True = attend) or additive, broadcastable to (batch, heads, tokens, kv_tokens), or (batch,
    kv_tokens).
    scale: None means head_dim ** -0.5.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None
    scale: float | None = None
    causal: bool = False


def attend(call: AttentionCall) -> torch.Tensor:
    """What diffusers' native backend computes, masks of every shape included."""
    import torch.nn.functional as F

    query, key, value = (x.transpose(1, 2) for x in (call.query, call.key, call.value))
    mask = call.mask
    if mask is not None and mask.shape == (call.key.shape[0], call.key.shape[1]):
        mask = mask[:, None, None, :]  # (batch, kv_tokens): one row for all heads and queries
    grouped = query.shape[1] != key.shape[1]
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=call.causal, scale=call.scale, enable_gqa=grouped
    )
    return out.transpose(1, 2).contiguous()


class AttentionBackend(Backend, Protocol):
    """May have beside: `second`, the backend that is asked for a refused call before the reference is; `head_sizes`,
    the only ones it serves."""

    def run(self, call: AttentionCall) -> torch.Tensor:
        """The output, (batch, tokens, heads, value_dim), contiguous, in the query's dtype. Raises Refused."""
        ...


class PackedMatrix(Protocol):
    """One weight in a kernel's own format."""

    nbytes: int

    def run(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`rows @ weight.T + bias` for rows (n, in_features), contiguous, in the weight's dtype. Raises Refused."""
        ...

    def unpack(self) -> torch.Tensor | None:
        """The weight that was packed, bit for bit, as a new (out_features, in_features) tensor; None when the format
        does not hold it (int8): then the caller must have kept it."""
        ...


class QuantisedMatrix(PackedMatrix, Protocol):
    """A weight whose inputs compiled code may quantise itself: one scale per row, to `form`, see `accel.fp8`."""

    form: torch.dtype

    def run_quantised(self, rows: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`(rows * scales) @ weight.T + bias` for rows (n, in_features) and float32 scales (n, 1)."""
        ...


class LinearBackend(Backend, Protocol):
    """May have beside: `why_not_name(name)`, which says why the linear of that path stays as it is; `one_byte`, True
    where a weight takes a byte; `own_test`, the probe's run that times the packed linear beside the plain one
    (`linear_packed_ms`, `linear_plain_ms`)."""

    blocks_only: bool  # serve the repeated blocks alone, not the small and sensitive linears around them

    def why_not_weight(self, out_features: int, in_features: int, dtype: str) -> str:
        """Why a weight of this shape and dtype ("bfloat16") stays as it is, as one sentence; empty when it packs."""
        ...

    def pack(self, weight: torch.Tensor) -> PackedMatrix:
        """Pack a weight of (out_features, in_features) that `why_not_weight` had nothing against."""
        ...


Undo = Callable[[], None]


class VaeBackend(Backend, Protocol):
    def apply(self, vae: torch.nn.Module, count: Counting) -> Undo:
        """Put the backend into `vae`; the returned function takes it out again, bit for bit."""
        ...


class Counting(Protocol):
    """Where a backend's op reports each call."""

    def served(self) -> None: ...

    def fell_back(self, reason: str) -> None: ...


def widened(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    """`tensor`, contiguous, with zeros behind its last dim up to the next multiple: in a product they add nothing."""
    import torch.nn.functional as F

    missing = -tensor.shape[-1] % multiple
    return F.pad(tensor, (0, missing)) if missing else tensor.contiguous()
