"""The parts of a VAE's decoder, each with its arguments as a decode gives them: caches of earlier frames included,
since a causal convolution that joins them runs another way than one that pads.

All of them, not the costliest alone: PyTorch runs small 3-D convolutions many times slower than large ones, so that
parts with little to multiply can take most of the time.
"""

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
"""Latent frames that are decoded to see them: the first two differ from all that follow."""

CONVS = (nn.Conv2d, nn.Conv3d)


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


def parts_of(vae: Any, latents: torch.Tensor) -> dict[str, Block]:
    """Every part of the decoder that convolves, by its path, as `vae`, which has no weights, runs it for the last
    latent frame of `latents`.

    Raises AccelError for a decoder without such parts.
    """
    seen: dict[nn.Module, Any] = {}
    before: dict[nn.Module, list[list[Any]]] = {}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if args and isinstance(args[0], torch.Tensor) and args[0].dim() == 5:
            seen[module] = tree_map(lambda leaf: leaf, (args, kwargs))
            before[module] = [list(value) for value in kwargs.values() if isinstance(value, list)]

    def prune(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Of a list of tensors that is passed through the whole decoder, keep those that this part used."""
        names = [name for name, value in kwargs.items() if isinstance(value, list)]
        for name, old in zip(names, before.get(module, ()), strict=False):
            if any(isinstance(item, torch.Tensor) for item in old):
                kept = [was if now is not was else None for was, now in zip(old, kwargs[name], strict=True)]
                seen[module][1][name] = kept

    listened, hooks = _parts(vae.decoder), []
    for module in listened.values():
        hooks.append(module.register_forward_pre_hook(note, with_kwargs=True))
        hooks.append(module.register_forward_hook(prune, with_kwargs=True))
    try:
        vae.decode(latents)
    finally:
        for hook in hooks:
            hook.remove()
    found = {path: Block(_bare(module), seen[module]) for path, module in listened.items() if module in seen}
    if not found:
        raise AccelError(f"{type(vae).__name__}'s decoder has no blocks of 3-D convolutions")
    return found


def _bare(module: nn.Module) -> nn.Module:
    """A copy without hooks."""
    bare = copy.deepcopy(module)
    bare._forward_pre_hooks.clear()
    bare._forward_hooks.clear()
    return bare


def _parts(decoder: nn.Module) -> dict[str, nn.Module]:
    """The decoder's children, and in the place of a list its items, as far as they convolve."""
    found: dict[str, nn.Module] = {}
    for name, child in decoder.named_children():
        items = child.named_children() if isinstance(child, nn.ModuleList) else ()
        found |= {f"{name}.{at}": item for at, item in items} or {name: child}
    return {path: part for path, part in found.items() if any(isinstance(one, CONVS) for one in part.modules())}
