"""Packed linears: an nn.Linear whose weight lives in a kernel's own format, and still reads and writes as a weight.

The class of the module is swapped, the module stays the same object. Its `weight` becomes a PackedWeight: a tensor
with the weight's shape and dtype but no storage, which unpacks when read and packs anew when written. So state dicts,
saving, casts, peft's `weight.data += delta` and tied modules meet the original values, there is no second copy that
could go stale, and packing twice is impossible: what is packed is always the unpacked weight.

Deep copies and pickles of such a module are plain nn.Linears: packed formats can be neither copied nor pickled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from accel.contract import Counting, LinearBackend, PackedMatrix
from accel.fp8 import quantise_rows
from accel.ops import LINEARS, Lease, LinearSlot, packed_linear, quantised_linear
from accel.originals import Original


class Packing:
    """One packed weight, shared by all modules tied to it.

    parameter: the stock Parameter object, emptied while packed, so that `remove` can give back the same object.
    original: where the exact weight comes from when the format does not hold it.
    """

    def __init__(
        self, parameter: nn.Parameter, backend: LinearBackend, tally: Counting, original: Original | None
    ) -> None:
        self.parameter, self.backend, self.original = parameter, backend, original
        self.shape, self.dtype, self.device = parameter.shape, parameter.dtype, parameter.device
        self.writes = 0
        self.matrix: PackedMatrix = backend.pack(parameter.data)
        # weakly: a model that is dropped without remove() must free its slots
        read = weakref.WeakMethod(self.read)
        self.slot = LINEARS.add(LinearSlot(self.matrix, self.dtype, lambda: read()(), tally))  # type: ignore[misc]
        self.lease: Lease | None = Lease(LINEARS, self.slot)
        self.number = torch.tensor(self.slot, dtype=torch.int64)
        parameter.data = torch.empty(0, dtype=self.dtype, device=self.device)
        self.weight = nn.Parameter(PackedWeight(self), requires_grad=False)

    def read(self) -> torch.Tensor:
        """The exact weight as a new tensor."""
        weight = self.matrix.unpack()
        if weight is None:
            assert self.original is not None
            weight = self.original.read()
        return weight

    def write(self, weight: torch.Tensor) -> None:
        """Make `weight` the weight: packs it, and keeps it where the format would lose it."""
        if weight.shape != self.shape:
            raise RuntimeError(f"a packed weight of shape {tuple(self.shape)} can't become {tuple(weight.shape)}")
        weight = weight.detach().to(self.device, self.dtype)
        self.matrix = self.backend.pack(weight)
        if self.original is not None:
            self.original.replace(weight)
        LINEARS[self.slot].matrix = self.matrix
        self.writes += 1

    def release(self) -> None:
        """Give the weight back to its Parameter and free the slot."""
        self.parameter.data = self.read()
        self.lease = None


class PackedWeight(torch.Tensor):
    """Shape, dtype and device of a packed weight; any operator on it sees the unpacked values."""

    packing: Packing

    @staticmethod
    def __new__(cls, packing: Packing) -> PackedWeight:
        tensor: PackedWeight = torch.Tensor._make_wrapper_subclass(
            cls, packing.shape, dtype=packing.dtype, device=packing.device
        )
        tensor.packing = packing
        return tensor

    @property
    def data(self) -> torch.Tensor:
        return self.packing.read()

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        self.packing.write(value)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.detach.default:
            return PackedWeight(args[0].packing)
        unpacked: dict[int, tuple[PackedWeight, torch.Tensor]] = {}

        def unpack(weight: PackedWeight) -> torch.Tensor:
            # tied weights of one Packing must see one dense tensor, or an in-place operator would lose its writes
            return unpacked.setdefault(id(weight.packing), (weight, weight.packing.read()))[1]

        result = func(*tree_map_only(PackedWeight, unpack, args), **tree_map_only(PackedWeight, unpack, kwargs))
        if func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                written = argument.alias_info is not None and argument.alias_info.is_write
                if written and isinstance(value, PackedWeight):
                    value.packing.write(unpacked[id(value.packing)][1])
                    result = value
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        return nn.Parameter(self.packing.read(), requires_grad=self.packing.parameter.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__deepcopy__({}).__reduce_ex__(protocol)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"PackedWeight({tuple(self.shape)}, {self.dtype}, {self.packing.backend.name})"


class PackedLinear(nn.Linear):
    """nn.Linear through `accel::packed_linear`. Made by `pack_module` alone, unmade by `unpack_module`."""

    accel_number: torch.Tensor  # the slot's number; as a plain int every layer would compile its own graph
    accel_packing: Packing

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return packed_linear(input, self.bias, self.accel_number, self.out_features)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and isinstance(value, torch.Tensor) and not isinstance(value, PackedWeight):
            self.accel_packing.write(value)
        else:
            super().__setattr__(name, value)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not keep_vars:
            destination[prefix + "weight"] = self.accel_packing.read()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> PackedLinear:
        probe = fn(torch.empty(0, dtype=self.weight.dtype, device=self.weight.device))
        if (probe.dtype, probe.device) != (self.weight.dtype, self.weight.device):
            raise RuntimeError(
                f"a packed linear stays {self.weight.dtype} on {self.weight.device}; call remove() on the installation "
                f"before moving or casting the model to {probe.dtype} on {probe.device}"
            )
        # the number is read at every call, so it stays on the CPU, where reading it waits for nothing
        weight, number = self._parameters.pop("weight"), self._buffers.pop("accel_number")
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self._parameters = {"weight": weight, **self._parameters}
            self._buffers["accel_number"] = number
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        copy = _plain(self.in_features, self.out_features, self.training, self.weight.__deepcopy__(memo), self.bias)
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        weight = nn.Parameter(self.accel_packing.read(), requires_grad=False)
        return _plain, (self.in_features, self.out_features, self.training, weight, self.bias)


class QuantisedLinear(PackedLinear):
    """A PackedLinear whose inputs are quantised by plain torch in compiled code, where that becomes part of what stands
    before it and is done once for linears that share their input."""

    accel_form: torch.dtype

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            return super().forward(input)
        rows, scales = quantise_rows(input, self.accel_form)
        return quantised_linear(rows, scales, self.bias, self.accel_number, self.out_features, input.dtype)


def _plain(
    in_features: int, out_features: int, training: bool, weight: nn.Parameter, bias: nn.Parameter | None
) -> nn.Linear:
    linear = nn.Linear(in_features, out_features, bias=False, device="meta").train(training)
    linear.weight = weight
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
    return linear


def pack_module(module: nn.Linear, packing: Packing) -> None:
    """Swap `module`, a plain nn.Linear holding `packing`'s parameter, to PackedLinear."""
    swapped: Any = module
    form = getattr(packing.matrix, "form", None)
    swapped.__class__ = PackedLinear if form is None else QuantisedLinear
    swapped.accel_packing, swapped.accel_form = packing, form
    swapped.register_buffer("accel_number", packing.number, persistent=False)
    swapped._parameters["weight"] = packing.weight


def unpack_module(module: nn.Linear) -> None:
    """Swap back. The Packing itself is released once, by whoever made it."""
    swapped: Any = module
    swapped._parameters["weight"] = swapped.accel_packing.parameter
    del swapped._buffers["accel_number"], swapped.accel_packing, swapped.accel_form
    swapped._non_persistent_buffers_set.discard("accel_number")
    swapped.__class__ = nn.Linear
