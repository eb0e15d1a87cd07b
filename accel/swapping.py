"""Swapping the class of a module, which stays the same object with the same parameters, and swapping it back.

State dicts, casts, saving and hooks meet the original module; only what it computes with changes.
"""

from __future__ import annotations

from typing import Any

from torch import nn

_MADE: dict[tuple[type, type], type] = {}


def in_front(mixin: type, kind: type) -> type:
    """A class that is `mixin` first and `kind` behind it. One per pair, so that swapped modules share their class."""
    if (mixin, kind) not in _MADE:
        bases = (mixin,) if issubclass(mixin, kind) else (mixin, kind)
        _MADE[mixin, kind] = type(f"Direct{kind.__name__}", bases, {})
    return _MADE[mixin, kind]


class Swaps:
    """Modules whose class was swapped, and the attributes they were given for it."""

    def __init__(self) -> None:
        self._before: list[tuple[nn.Module, type]] = []

    def swap(self, module: nn.Module, to: type) -> Any:
        """Give `module` the class `to`; returns it."""
        self._before.append((module, type(module)))
        module.__class__ = to
        return module

    def undo(self) -> None:
        """Every module has its class again, and no attribute of ours."""
        for module, kind in self._before:
            module.__class__ = kind
            for name in [name for name in vars(module) if name.startswith("accel_")]:
                delattr(module, name)
        self._before = []
