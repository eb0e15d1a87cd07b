"""The block of a VAE's decoder that has most to multiply, with its arguments as a decode gives them: caches of earlier
frames included, since a causal convolution that joins them runs another way than one that pads."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from accel.errors import AccelError

LATENTS = 3
"""Latent frames that are decoded to see it: the first two differ from all that follow."""


@dataclass(frozen=True)
class Block:
    """A module without weights, and what it was called with: tensors have shapes and no values."""

    module: nn.Module
    arguments: tuple[tuple[Any, ...], dict[str, Any]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its input: batch, channels, frames, rows, columns."""
        return tuple(self.arguments[0][0].shape)

    def flops(self) -> float:
        """Of its products, as torch counts them."""
        with FlopCounterMode(display=False) as counted, torch.inference_mode():
            self.call(self.module, self.arguments)
        return float(counted.get_total_flops())

    def lower(self, height: int) -> Block:
        """The same for a picture of `height` rows only."""
        rows = self.shape[-2]

        def cut(tensor: torch.Tensor) -> torch.Tensor:
            return tensor[..., :height, :] if tensor.dim() == 5 and tensor.shape[-2] == rows else tensor

        return replace(self, arguments=tree_map_only(torch.Tensor, cut, self.arguments))

    def with_values(self, make: Callable[..., torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its arguments, each tensor made by `make(*shape)`."""
        filled: Any = tree_map_only(torch.Tensor, lambda tensor: make(*tensor.shape), self.arguments)
        return filled

    @staticmethod
    def call(module: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> torch.Tensor:
        """One call; lists among the arguments stay as they are, whatever the block writes into its own."""
        args, kwargs = tree_map(lambda leaf: leaf, arguments)
        result: torch.Tensor = module(*args, **kwargs)
        return result


def costliest(vae: Any, latents: torch.Tensor) -> tuple[Block, float]:
    """The costliest of the decoder's blocks when `vae`, which has no weights, decodes `latents`; and its operations.

    Raises AccelError for a decoder without such blocks.
    """
    seen: dict[nn.Module, Any] = {}
    before: dict[nn.Module, list[list[Any]]] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args and isinstance(args[0], torch.Tensor) and args[0].dim() == 5:
            seen[module] = tree_map(lambda leaf: leaf, (args, kwargs))
            before[module] = [list(value) for value in kwargs.values() if isinstance(value, list)]

    def prune(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Of a list of tensors that is passed through the whole decoder, keep those that this block used."""
        names = [name for name, value in kwargs.items() if isinstance(value, list)]
        for name, old in zip(names, before.get(module, ()), strict=False):
            if any(isinstance(item, torch.Tensor) for item in old):
                kept = [was if now is not was else None for was, now in zip(old, kwargs[name], strict=True)]
                seen[module][1][name] = kept

    hooks = []
    for module in _blocks(vae.decoder):
        hooks.append(module.register_forward_pre_hook(note, with_kwargs=True))
        hooks.append(module.register_forward_hook(prune, with_kwargs=True))
    try:
        vae.decode(latents)
    finally:
        for hook in hooks:
            hook.remove()
    found = [Block(_bare(module), arguments) for module, arguments in seen.items()]
    costs = [(block, block.flops()) for block in found]
    if not costs:
        raise AccelError(f"{type(vae).__name__}'s decoder has no blocks of 3-D convolutions")
    return max(costs, key=lambda item: item[1])


def _bare(module: nn.Module) -> nn.Module:
    """A copy without hooks."""
    bare = copy.deepcopy(module)
    bare._forward_pre_hooks.clear()
    bare._forward_hooks.clear()
    return bare


def _blocks(decoder: nn.Module) -> list[nn.Module]:
    """The parts of the decoder's own lists of blocks."""
    lists = [child for child in decoder.children() if isinstance(child, nn.ModuleList)]
    return [block for one in lists for block in one if any(isinstance(item, nn.Conv3d) for item in block.modules())]
