"""The custom ops that every accelerated call goes through, each with a fake kernel, so torch.compile sees no
graph break.

An op's body looks up its slot by number, tries the backend, and on Refused runs the reference and counts the reason.
Slot numbers are reused, lowest first: installing, removing and installing again meets the same number, hence no
recompilation. A linear gets its number as a tensor: as a plain int every layer of a model would compile its own graph.
"""

from __future__ import annotations

import heapq
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F

from accel.contract import AttentionBackend, AttentionCall, Counting, PackedMatrix, Refused, attend

S = TypeVar("S")


class Slots(Generic[S]):
    """Numbered places, the lowest free one first."""

    def __init__(self) -> None:
        self._items: dict[int, S] = {}
        self._free: list[int] = []
        self._lock = threading.Lock()

    def add(self, item: S) -> int:
        with self._lock:
            number = heapq.heappop(self._free) if self._free else len(self._items)
            self._items[number] = item
            return number

    def remove(self, number: int) -> None:
        with self._lock:
            del self._items[number]
            heapq.heappush(self._free, number)

    def __getitem__(self, number: int) -> S:
        return self._items[number]

    def __len__(self) -> int:
        return len(self._items)


class Lease:
    """A slot's life: it ends when the last object that calls into the slot drops its lease, so that a model thrown away
    without `remove()` leaves nothing behind. A deep copy of a module shares the lease: it works on after `remove()`."""

    def __init__(self, slots: Slots[S], number: int, also: Callable[[], None] | None = None) -> None:
        weakref.finalize(self, _end, slots, number, also).atexit = False

    def __deepcopy__(self, memo: dict[int, object]) -> Lease:
        return self


def _end(slots: Slots[S], number: int, also: Callable[[], None] | None) -> None:
    if also is not None:
        also()
    slots.remove(number)


@dataclass
class AttentionSlot:
    """`aside`: why the backend is to step aside for now, empty for the most time; see steps.py. `judged`: by the shape
    of a call, why such calls are not left to the backend, empty where its first output was finite."""

    backend: AttentionBackend
    tally: Counting
    aside: str = ""
    judged: dict[tuple[int, ...], str] = field(default_factory=dict)

    def run(self, call: AttentionCall) -> torch.Tensor:
        """The backend's output. Raises Refused."""
        if reason := self.aside or self.why_not(call.query, call.key):
            raise Refused(reason)
        out = self.backend.run(call)
        if reason := self.judge(out, call.query, call.key, call.value):
            raise Refused(reason)
        return out

    def why_not(self, query: torch.Tensor, key: torch.Tensor) -> str:
        """What `judge` has against calls of this shape."""
        return self.judged.get((*query.shape, key.shape[1]), "")

    def judge(self, out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> str:
        """Look at the first output of each shape: a kernel that is wrong for some lengths (aiter's pull request 5654:
        NaN for 241 to 255 keys in FP8) shows it there. Input that is not finite proves nothing."""
        shape = (*query.shape, key.shape[1])
        if shape not in self.judged and not self.backend.reference:
            if _is_finite(out):
                self.judged[shape] = ""
            elif all(map(_is_finite, (query, key, value))):
                tokens, keys = query.shape[1], key.shape[1]
                self.judged[shape] = f"it gave values that are not finite for {tokens} tokens and {keys} keys"
        return self.why_not(query, key)


def _is_finite(x: torch.Tensor) -> bool:
    """Without a copy of `x`: NaN and infinity both come through."""
    x = x.float() if x.element_size() == 1 else x
    return not x.numel() or bool(torch.stack(torch.aminmax(x)).isfinite().all())


@dataclass
class LinearSlot:
    """`weight()` gives the layer's exact weight, for a call that the matrix refuses; `dtype` is what it reads as."""

    matrix: PackedMatrix
    dtype: torch.dtype
    weight: Callable[[], torch.Tensor]
    tally: Counting


ANY_STRIDES = (torch.Tag.flexible_layout,)
"""These ops take inputs of any strides: without it, Inductor hands each call a copy of its own."""

ATTENTION: Slots[AttentionSlot] = Slots()
LINEARS: Slots[LinearSlot] = Slots()
CONVS: Slots[Counting] = Slots()


@torch.library.custom_op("accel::attention", mutates_args=(), tags=ANY_STRIDES)
def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
    causal: bool,
    slot: int,
) -> torch.Tensor:
    """Attention in layout (batch, tokens, heads, head_dim); see AttentionCall. Output contiguous."""
    place = ATTENTION[slot]
    call = AttentionCall(query, key, value, mask, scale, causal)
    try:
        out = place.run(call)
    except Refused as refusal:
        place.tally.fell_back(str(refusal))
        return _otherwise(place.backend, call)
    place.tally.served()
    return out


def _otherwise(backend: AttentionBackend, call: AttentionCall) -> torch.Tensor:
    """A refused call, by the backend's second choice where it names one that takes the call, else by the reference."""
    second: AttentionBackend | None = getattr(backend, "second", None)
    if second is not None:
        with suppress(Refused):
            return second.run(call)
    return attend(call)


@attention.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
    causal: bool,
    slot: int,
) -> torch.Tensor:
    return query.new_empty((*query.shape[:-1], value.shape[-1]))


@torch.library.custom_op("accel::packed_linear", mutates_args=(), tags=ANY_STRIDES)
def packed_linear(
    inputs: torch.Tensor, bias: torch.Tensor | None, slot: torch.Tensor, out_features: int
) -> torch.Tensor:
    """`inputs @ weight.T + bias` over the last dim, with the weight packed in `slot` (int64 scalar tensor)."""
    place = _linear(slot, inputs.dtype)
    rows = inputs.reshape(-1, inputs.shape[-1])
    if rows.stride(-1) != 1:
        rows = rows.contiguous()
    try:
        if rows.shape[0] == 0:
            raise Refused("no rows")
        out = place.matrix.run(rows, bias)
    except Refused as refusal:
        place.tally.fell_back(str(refusal))
        return F.linear(inputs, place.weight(), bias)
    place.tally.served()
    return out.view(*inputs.shape[:-1], out_features)


def _linear(slot: torch.Tensor, dtype: torch.dtype) -> LinearSlot:
    place = LINEARS[int(slot)]
    if dtype != place.dtype:
        # stock torch raises here too, in the same words a person would look up
        raise RuntimeError(f"expected input and weight to have the same dtype, but got: {dtype} != {place.dtype}")
    return place


@packed_linear.register_fake
def _(inputs: torch.Tensor, bias: torch.Tensor | None, slot: torch.Tensor, out_features: int) -> torch.Tensor:
    return inputs.new_empty((*inputs.shape[:-1], out_features))


@torch.library.custom_op("accel::quantised_linear", mutates_args=(), tags=ANY_STRIDES)
def quantised_linear(
    rows: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    slot: torch.Tensor,
    out_features: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """As `packed_linear`, for inputs (..., in) that compiled code has quantised, with scales (..., 1); in `dtype`."""
    place = _linear(slot, dtype)
    shape = (*rows.shape[:-1], out_features)
    if not rows.numel():
        place.tally.fell_back("no rows")
        return rows.new_empty(shape, dtype=dtype)
    matrix: Any = place.matrix
    out = matrix.run_quantised(rows.reshape(-1, rows.shape[-1]).contiguous(), scales.reshape(-1, 1).contiguous(), bias)
    place.tally.served()
    return out.view(shape)


@quantised_linear.register_fake
def _(
    rows: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    slot: torch.Tensor,
    out_features: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    return rows.new_empty((*rows.shape[:-1], out_features), dtype=dtype)


@torch.library.custom_op("accel::conv3d", mutates_args=())
def conv3d(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    channels_last: bool,
    slot: int,
) -> torch.Tensor:
    """oneDNN's convolution called directly. inputs (N, C, T, H, W), weight (O, C / groups, t, h, w); the output lies in
    channels_last_3d if asked, else contiguous."""
    place = CONVS[slot]
    if inputs.device.type == "cpu" and inputs.numel():
        out = torch.mkldnn_convolution(inputs, weight, bias, padding, stride, dilation, groups)
        place.served()
    else:
        place.fell_back("no input" if not inputs.numel() else f"oneDNN runs on the CPU, not on {inputs.device.type}")
        out = F.conv3d(inputs, weight, bias, tuple(stride), tuple(padding), tuple(dilation), groups)
    return out.contiguous(memory_format=torch.channels_last_3d if channels_last else torch.contiguous_format)


@conv3d.register_fake
def _(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    channels_last: bool,
    slot: int,
) -> torch.Tensor:
    sizes = [
        (inputs.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(3)
    ]
    shape = (inputs.shape[0], weight.shape[0], *sizes)
    return torch.empty(
        shape,
        dtype=inputs.dtype,
        device=inputs.device,
        memory_format=torch.channels_last_3d if channels_last else torch.contiguous_format,
    )
