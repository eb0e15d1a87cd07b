"""Which linears of a component are packed, and why the others stay as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from accel.contract import Counting, LinearBackend
from accel.originals import Original, WeightsFile
from accel.packed import PackedLinear, Packing, pack_module, unpack_module

UNDER_ADAPTER = ".base_layer"
"""What peft puts behind the path of a linear that it puts an adapter around."""


@dataclass
class PackedLinears:
    """The packed linears of one component. `names` by reason for those that were skipped."""

    modules: list[nn.Linear] = field(default_factory=list)
    packings: list[Packing] = field(default_factory=list)
    skipped: dict[str, list[str]] = field(default_factory=dict)

    @property
    def packed(self) -> int:
        return len(self.modules)

    @property
    def kept_bytes(self) -> int:
        return sum(p.original.kept_bytes for p in self.packings if p.original is not None)

    @property
    def reread(self) -> int:
        return sum(p.original.kept is None for p in self.packings if p.original is not None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "packed": self.packed,
            "packed_bytes": sum(p.matrix.nbytes for p in self.packings),
            "kept_bytes": self.kept_bytes,
            "rewritten": sum(p.writes for p in self.packings),
            "skipped": {reason: len(names) for reason, names in self.skipped.items()},
            "skipped_names": {reason: names[:8] for reason, names in self.skipped.items()},
        }

    def undo(self) -> None:
        for module in self.modules:
            if isinstance(module, PackedLinear):
                unpack_module(module)
        for packing in self.packings:
            packing.release()
        self.modules, self.packings = [], []


def pack_linears(
    component: nn.Module, backend: LinearBackend, tally: Counting, file: WeightsFile | None
) -> PackedLinears:
    """Pack every linear of `component` that `backend` takes, in place. On an error nothing stays packed."""
    result = PackedLinears()
    users = Counter(id(parameter) for module in component.modules() for parameter in module._parameters.values())
    by_parameter: dict[int, list[tuple[str, nn.Linear]]] = {}
    for path, module in component.named_modules():
        if isinstance(module, nn.Linear) and not isinstance(module, PackedLinear):
            name = path.replace(UNDER_ADAPTER, "")  # what its file and its backend know it as
            reason = _why_not_module(component, path, name, module, backend)
            if reason:
                result.skipped.setdefault(reason, []).append(name)
            else:
                by_parameter.setdefault(id(module.weight), []).append((name, module))
    try:
        for number, tied in by_parameter.items():
            if users[number] != len(tied):
                reason = "its weight is shared with a module that is no packable linear"
                result.skipped.setdefault(reason, []).extend(name for name, _ in tied)
                continue
            _pack(tied, backend, tally, file, result)
    except BaseException:
        result.undo()
        raise
    return result


def _pack(
    tied: list[tuple[str, nn.Linear]],
    backend: LinearBackend,
    tally: Counting,
    file: WeightsFile | None,
    result: PackedLinears,
) -> None:
    name, first = tied[0]
    # int8 does not hold the weight: remember where it comes from before it goes
    original = None if backend.exact else Original(first.weight.data, file, f"{name}.weight")
    parameter = first._parameters["weight"]
    assert parameter is not None
    packing = Packing(parameter, backend, tally, original)
    result.packings.append(packing)
    for _, module in tied:
        pack_module(module, packing)
        result.modules.append(module)


def _why_not_module(component: nn.Module, path: str, name: str, module: nn.Linear, backend: LinearBackend) -> str:
    if type(module) is not nn.Linear:
        return f"{type(module).__name__} computes in its own way"
    if any(part in ("lora_A", "lora_B") for part in path.split(".")):
        return "part of a LoRA adapter"
    weight = module.weight
    if type(weight.data) is not torch.Tensor or weight.layout != torch.strided:
        return f"its weight is a {type(weight.data).__name__}, already in a format of its own"
    if weight.device.type not in backend.devices:
        return f"its weight is on {weight.device.type}"
    if backend.blocks_only and not in_blocks(component, path):
        return "outside the repeated blocks: small and sensitive"
    sensitive: Callable[[str], str] = getattr(backend, "why_not_name", lambda name: "")
    return sensitive(name) or backend.why_not_weight(
        module.out_features, module.in_features, str(weight.dtype).removeprefix("torch.")
    )


def in_blocks(component: nn.Module, name: str) -> bool:
    """Whether a path like `blocks.3.attn1.to_q` leads through a ModuleList."""
    module: Any = component
    for part in name.split("."):
        module = module._modules[part]
        if isinstance(module, nn.ModuleList):
            return True
    return False
