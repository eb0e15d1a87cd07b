"""Running a component in another dtype than it was loaded in, and giving back the exact weights afterwards.

The same parameters stay float32 that diffusers keeps when it loads in a smaller dtype. Going to a wider dtype loses
nothing, so the way back is another cast; going to a narrower one needs the original: see originals.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from accel.originals import Original, WeightsFile, same_bits


@dataclass
class Cast:
    """`undo()` returns how many parameters had been changed since: those keep their new value, cast back."""

    undo: Callable[[], int]
    kept_bytes: int
    reread: int  # parameters that will be read from their file again


def cast_component(component: nn.Module, dtype: torch.dtype, file: WeightsFile | None) -> Cast | None:
    """Cast `component`'s floating parameters and persistent buffers to `dtype`; None when there is nothing to cast."""
    restore: list[tuple[torch.Tensor, torch.dtype, Original | None]] = []
    for name, tensor, wanted in to_cast(component, dtype):
        before = tensor.data
        narrow = before.to(wanted)
        exact = same_bits(narrow.to(before.dtype), before)
        restore.append((tensor, before.dtype, None if exact else Original(before, file, name)))
        tensor.data = narrow
    if not restore:
        return None
    originals = [original for *_, original in restore if original is not None]

    def undo() -> int:
        changed = 0
        for tensor, was, original in restore:
            exact = None if original is None else original.read()
            if exact is not None and same_bits(exact.to(tensor.dtype), tensor.data):
                tensor.data = exact
            else:
                changed += exact is not None
                tensor.data = tensor.data.to(was)
        return changed

    return Cast(undo, sum(o.kept_bytes for o in originals), sum(o.kept is None for o in originals))


def to_cast(component: nn.Module, dtype: torch.dtype) -> list[tuple[str, torch.Tensor, torch.dtype]]:
    """(name, tensor, dtype it gets) of every floating parameter and persistent buffer that is not in it yet."""
    wide = _kept_in_float32(component, dtype)
    found = []
    for name, tensor in _tensors(component):
        wanted = torch.float32 if any(part in name.split(".") for part in wide) else dtype
        if tensor.is_floating_point() and tensor.dtype != wanted:
            found.append((name, tensor, wanted))
    return found


def _kept_in_float32(component: nn.Module, dtype: torch.dtype) -> tuple[str, ...]:
    """Parts of names that stay float32. transformers means its list for float16, diffusers for every dtype."""
    plain = tuple(getattr(component, "_keep_in_fp32_modules", None) or ())
    if not hasattr(component, "_keep_in_fp32_modules_strict"):
        return plain
    strict = tuple(getattr(component, "_keep_in_fp32_modules_strict", None) or ())
    return strict + (plain if dtype == torch.float16 else ())


def _tensors(component: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers, each object once."""
    persistent = set(component.state_dict(keep_vars=True))
    buffers = [(name, buffer) for name, buffer in component.named_buffers() if name in persistent]
    return [*component.named_parameters(), *buffers]
