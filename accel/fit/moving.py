"""Weights on the move: components, blocks or layers come to the device when they work, and decoding in tiles.

Whole components take turns through accelerate's hooks, blocks and layers through diffusers' group offloading; both also
tell the pipeline on which device to make its latents. Each function hands back the way back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from accelerate.utils import send_to_device
from torch import nn

from accel.fit.choosing import GROUP, MODEL, SEQUENTIAL, by_stage
from accel.fit.needs import stage_of

Undo = Callable[[], None]
HOST = torch.device("cpu")
_LEFT = ("forward", "_diffusers_hook", "_hf_hook", "_old_forward")
"""What hooks leave behind in a module."""


class Turns:
    """Whole components that are on the device one at a time. `moves` counts those that came to it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.moves = device, 0
        self.parts: dict[str, nn.Module] = {}
        self.here = ""

    def begin(self, name: str) -> None:
        """A component begins to work: it comes, the one before goes."""
        if self.here == name:
            return
        for other, module in self.parts.items():
            if other == self.here:
                module.to(HOST)
        if name in self.parts:
            self.parts[name].to(self.device)
            self.moves += 1
        self.here = name


class Turn(ModelHook):
    """accelerate's hook of one component. VAEs call it from `encode` and `decode`."""

    def __init__(self, turns: Turns, name: str) -> None:
        self.turns, self.name, self.execution_device = turns, name, turns.device

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self.turns.begin(self.name)
        return send_to_device(args, self.turns.device), send_to_device(kwargs, self.turns.device)


class Offloading:
    """A pipeline whose components are moved as a plan's `offload` says. `undo` puts all weights back."""

    def __init__(self, pipeline: Any, offload: str, device: str) -> None:
        self.offload, self.turns = offload, Turns(torch.device(device))
        self._undo: list[Undo] = []
        for name, module in components(pipeline).items():
            try:
                self._put(name, module, by_stage(offload, stage_of(name)))
            except BaseException:
                self.undo()
                raise

    def to_dict(self) -> dict[str, Any]:
        """`{"offload", "moves"}`: moves of whole components since the last `reset`."""
        return {"offload": self.offload, "moves": self.turns.moves}

    def reset(self) -> None:
        self.turns.moves = 0

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _put(self, name: str, module: nn.Module, way: str) -> None:
        before = next((parameter.device for parameter in module.parameters()), HOST)
        own = [(part, {name for name in _LEFT if name in vars(part)}) for part in module.modules()]

        def clean() -> None:
            for part, kept in own:
                for left in _LEFT:
                    if left not in kept:
                        vars(part).pop(left, None)
            module.to(before)

        self._undo.append(clean)
        if way == MODEL:
            module.to(HOST)
            self.turns.parts[name] = module
        if way in (GROUP, SEQUENTIAL):
            self._undo.append(in_groups(module, way, self.turns.device))
            # what takes turns makes room for it
            self._undo.append(module.register_forward_pre_hook(lambda *_: self.turns.begin(name)).remove)
        elif way == MODEL:
            add_hook_to_module(module, Turn(self.turns, name))
            self._undo.append(lambda: remove_hook_from_module(module))


def in_groups(module: nn.Module, way: str, device: torch.device) -> Undo:
    """diffusers' group offloading, block by block or layer by layer; on a GPU the next one comes while one works."""
    from diffusers.hooks import HookRegistry, apply_group_offloading
    from diffusers.hooks.group_offloading import (
        _GROUP_OFFLOADING,
        _LAYER_EXECUTION_TRACKER,
        _LAZY_PREFETCH_GROUP_OFFLOADING,
    )

    streams = device.type == "cuda"
    blocks = {"num_blocks_per_group": 1} if way == GROUP else {}
    apply_group_offloading(
        module,
        onload_device=device,
        offload_device=HOST,
        offload_type="block_level" if way == GROUP else "leaf_level",
        use_stream=streams,
        # without it, pinned copies of all weights would stand beside them while hooks are put in
        low_cpu_mem_usage=streams,
        **blocks,
    )

    def undo() -> None:
        registry = HookRegistry.check_if_exists_or_initialize(module)
        for name in (_GROUP_OFFLOADING, _LAYER_EXECUTION_TRACKER, _LAZY_PREFETCH_GROUP_OFFLOADING):
            registry.remove_hook(name, recurse=True)

    return undo


def components(pipeline: Any) -> dict[str, nn.Module]:
    """The modules of a pipeline, in its order."""
    parts = getattr(pipeline, "components", None) or vars(pipeline)
    return {name: part for name, part in parts.items() if isinstance(part, nn.Module)}


def tile(vae: Any) -> Undo:
    """Decode in tiles. Raises ValueError for a VAE that has none."""
    if not hasattr(vae, "enable_tiling"):
        raise ValueError(f"{type(vae).__name__} can't decode in tiles")
    before = bool(getattr(vae, "use_tiling", False))
    vae.enable_tiling()

    def undo() -> None:
        if not before:
            vae.disable_tiling()

    return undo
