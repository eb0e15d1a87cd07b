"""Guidance's two branches on two groups of ranks: one computes the prompt's forward, the other the negative prompt's.

A pipeline calls the transformer twice a step, one after the other, and combines the results after the second call. So
a group that leaves the first call to the other one hands out an empty tensor, which the second call fills.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accel.errors import AccelError
from accel.parallel.exchange import gathered

ELSEWHERE = "_accel_elsewhere"


class SplitBranches:
    """Put into `model` by its constructor, taken out by `undo`.

    pair: a group of two ranks, of which the first computes the first call of each pair of calls and the second the
    second. guided: whether the call that is about to begin belongs to a pair; a single one is computed by both. Step
    caches and tokens dealt out within a branch go in before, and come out after. meet: called before each exchange.
    The model's ELSEWHERE says of the last call whether it was left to the other one.
    """

    def __init__(
        self,
        model: nn.Module,
        pair: Any,
        guided: Callable[[], bool] = lambda: True,
        meet: Callable[[], None] = lambda: None,
    ) -> None:
        self._model: Any = model
        self._meet = meet
        self._pair, self._mine, self._guided = pair, dist.get_rank(pair), guided
        self._had: Callable[..., Any] | None = vars(model).get("forward")
        self._forward: Callable[..., Any] = model.forward
        self._first: torch.Tensor | None = None
        model.forward = self._call
        self._in = True

    def undo(self) -> None:
        """The model computes every call again. A second call does nothing."""
        if not self._in:
            return
        vars(self._model).pop("forward", None)
        if self._had is not None:
            self._model.forward = self._had
        vars(self._model).pop(ELSEWHERE, None)
        self._in, self._first = False, None

    def __enter__(self) -> SplitBranches:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def __deepcopy__(self, memo: dict[int, object]) -> SplitBranches:
        return self

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not self._guided():
            setattr(self._model, ELSEWHERE, False)
            return self._forward(*args, **kwargs)
        turn = 0 if self._first is None else 1
        setattr(self._model, ELSEWHERE, turn != self._mine)
        latents: torch.Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        result = self._forward(*args, **kwargs) if turn == self._mine else _empty(self._model, latents, kwargs)
        out: torch.Tensor = result[0]
        if self._first is None:
            self._first = out
            return result
        first, self._first = self._first, None
        mine, other = (first, out) if self._mine == 0 else (out, first)
        if mine.shape != other.shape or mine.dtype != other.dtype:
            raise AccelError(
                f"{type(self._model).__name__} gives {mine.dtype} of {tuple(mine.shape)} where {other.dtype} of "
                f"{tuple(other.shape)} was expected: its guidance can't be split over GPUs, take an odd number of them"
            )
        self._meet()
        other.copy_(gathered(mine, self._pair)[1 - self._mine])
        return result


def _empty(model: Any, latents: torch.Tensor, kwargs: dict[str, Any]) -> Any:
    """What a call of `model` would return, its numbers still to come."""
    out = latents.new_empty(latents.shape[0], model.config.out_channels, *latents.shape[2:])
    if kwargs.get("return_dict", True):
        from diffusers.models.modeling_outputs import Transformer2DModelOutput

        return Transformer2DModelOutput(sample=out)
    return (out,)
