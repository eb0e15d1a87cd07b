"""What a backend does once it is engaged: the calls it takes, the calls it refuses, and how it packs.

Every attention backend has one signature and one layout, `(batch, tokens, heads, head_dim)`; every linear backend turns
one weight into one PackedMatrix. A call that can't be served raises Refused with one sentence; the op that made the
call then runs the reference and counts the sentence. Nothing falls back uncounted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from accel.backends.base import Backend

if TYPE_CHECKING:
    import torch

# oneDNN's and SGLang's AMX paths keep tile state and scratch per kernel object: one inference thread enters at a time.
AMX_LOCK = threading.RLock()


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


class AttentionBackend(Backend, Protocol):
    """`second`, where a backend has it, is asked for a refused call before the reference is."""

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
    """`why_not_name(name)`, where a backend has it, says why the linear of that path stays as it is."""

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
