"""One transformer's tokens dealt out over ranks, at the places that its diffusers class names (`_cp_plan`).

diffusers' own `enable_parallelism` is not used: it can't be taken out again, asks all ranks for their sizes within
every attention where tokens are not divisible (the GPU waits for the host each time), divides by the number of GPUs,
0 on a CPU, and brings its own attention, where no backend of ours would be asked.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accel import bridge
from accel.backends.sdpa import Sdpa
from accel.errors import AccelError
from accel.ops import AttentionSlot
from accel.parallel.exchange import FIELD, Across
from accel.parallel.sharing import why_not_cache, why_not_class, why_not_heads
from accel.report import Tally


def why_not_tokens(model: nn.Module, count: int) -> str:
    """Why this transformer's tokens can't be dealt to `count` ranks, as one sentence; empty when they can."""
    who = type(model).__name__
    if reason := why_not_class(who):
        return reason
    if reason := bridge.why_not():
        return reason
    known: Any = model
    if getattr(known, FIELD, None) is not None:
        return f"{who} already runs with diffusers' own parallelism: load it again without"
    if count == 1:
        return ""
    if reason := why_not_heads(known.config.num_attention_heads, count):
        return reason
    backends = {getattr(block.attn1.processor, bridge.FIELD, None) for block in known.blocks}
    others = [str(one.value) for one in backends if one is not None and not one.value.startswith(bridge.PREFIX)]
    if others:
        return f"its attention was given to diffusers' {', '.join(others)}: call reset_attention_backend() first"
    return why_not_cache(_cache(model), count)


def _cache(model: nn.Module) -> str:
    installation = getattr(model, "_accel_installation", None)
    stage = None if installation is None else installation.plan.stage("transformer")
    return "none" if stage is None else str(stage.cache.engaged)


class SplitTokens:
    """Put into `model` by its constructor, taken out by `undo`, in between each rank of `group` computes its own
    tokens and returns the whole output. Install the accelerators before: they stay in charge of attention.

    Every rank must make the same calls, with the same inputs. Raises AccelError.
    """

    def __init__(self, model: nn.Module, group: Any) -> None:
        known: Any = model
        if reason := why_not_tokens(model, dist.get_world_size(group)):
            raise AccelError(reason)
        self.across = Across(group, known.config.num_attention_heads)
        self._patch: bridge.AttentionPatch | None = None
        processors = [block.attn1.processor for block in known.blocks]
        if any(getattr(processor, bridge.FIELD, None) is None for processor in processors):
            slot = AttentionSlot(Sdpa(), Tally("transformer", "attention", Sdpa.name))
            self._patch = bridge.AttentionPatch(model, "transformer", slot)
        self._processors = processors
        for processor in processors:
            setattr(processor, FIELD, self.across)
        self._hooks = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            known.rope.register_forward_hook(self._rotation),
            known.blocks[0].register_forward_pre_hook(self._tokens, with_kwargs=True),
            known.proj_out.register_forward_hook(self._output),
        ]

    def undo(self) -> None:
        """The model computes all tokens again. A second call does nothing."""
        if not self._hooks:
            return
        for hook in self._hooks:
            hook.remove()
        for processor in self._processors:
            vars(processor).pop(FIELD, None)
        if self._patch is not None:
            self._patch.undo()
        self.across.end()
        self._hooks, self._processors = [], []

    def __enter__(self) -> SplitTokens:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def __deepcopy__(self, memo: dict[int, object]) -> SplitTokens:
        return self

    def _begin(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """A time for each token (Wan 2.2 TI2V) is dealt out like the tokens."""
        latents = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        sizes = zip(latents.shape[2:], model.config.patch_size, strict=True)
        self.across.begin(math.prod(size // patch for size, patch in sizes))
        if "timestep" in kwargs:
            return args, {**kwargs, "timestep": self._times(kwargs["timestep"])}
        return (args[0], self._times(args[1]), *args[2:]), kwargs

    def _times(self, timestep: torch.Tensor) -> torch.Tensor:
        return self.across.own(timestep) if timestep.dim() == 2 else timestep

    def _rotation(self, rope: nn.Module, args: Any, out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(self.across.own(part) for part in out)

    def _tokens(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if "hidden_states" in kwargs:
            return args, {**kwargs, "hidden_states": self.across.own(kwargs["hidden_states"]).contiguous()}
        return (self.across.own(args[0]).contiguous(), *args[1:]), kwargs

    def _output(self, layer: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        return self.across.gather(out)
