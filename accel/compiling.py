"""Compiling a model's repeated blocks: one graph serves them all, in a fraction of the whole model's time.

Inductor is told three things. Equal computations are done once: linears that share their input quantise it each for
itself, and Inductor would keep all of them. What is cheap is computed again where it is needed instead of being written
out and read back: a norm with its modulation reads many small tensors, a gelu takes many operations, and by Inductor's
own count both would go through memory, in float32. And the sum of two large tensors that is used again, the residual
stream, is written out once, where Inductor would read all its summands at every use.

What was compiled is kept beside accel's other records and found again by the next process.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from accel import cache

CACHE = "TORCHINDUCTOR_CACHE_DIR"


class Tidy(CustomGraphPass):
    """The first and the last of the above, on one graph, in place."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        _same_once(graph)
        for node in graph.nodes:
            if len(node.users) > 1 and _is_sum(node):
                node.meta["inductor_realize_to_strides"] = True

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def _same_once(graph: torch.fx.Graph) -> None:
    """Replaces what computes the same from the same by the first that does.

    Only torch's own operators that neither draw random numbers nor write take part: ours count their calls.
    """
    first: dict[Any, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if not _pure(node):
            continue
        key = (node.target, _plain(node.args), _plain(node.kwargs))
        with suppress(TypeError):  # an argument that can't be hashed: left alone
            before = first.setdefault(key, node)
            if before is not node:
                node.replace_all_uses_with(before)
                graph.erase_node(node)


def _is_sum(node: torch.fx.Node) -> bool:
    """Whether a node is a sum of two tensors of its own size, or such a sum in a narrower dtype."""
    if node.target is torch.ops.prims.convert_element_type.default and isinstance(node.args[0], torch.fx.Node):
        narrower = _size(node, bytes_too=True) < _size(node.args[0], bytes_too=True)
        return narrower and _is_sum(node.args[0])
    summands = node.args[:2] if node.target is torch.ops.aten.add.Tensor else ()
    return len(summands) == 2 and all(_size(part) == _size(node) != 0 for part in summands)


def _size(node: Any, bytes_too: bool = False) -> int:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return 0
    return int(value.numel()) * (value.element_size() if bytes_too else 1)


def _pure(node: torch.fx.Node) -> bool:
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    random = torch.Tag.nondeterministic_seeded in target.tags
    return target.namespace in ("aten", "prims") and not random and not target._schema.is_mutable and not _fresh(target)


def _fresh(target: Any) -> bool:
    """Operators whose result is there to be written into."""
    return "empty" in target.name() or "new_" in target.name()


def _plain(value: Any) -> Any:
    """Arguments as something that compares by type as well as value: 1, 1.0 and True differ, NaN is itself."""
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((name, _plain(item)) for name, item in value.items()))
    if isinstance(value, float):
        return (float, repr(value))
    return value if isinstance(value, torch.fx.Node) else (type(value), value)


OPTIONS: dict[str, Any] = {
    "post_grad_custom_pre_pass": Tidy(),
    "realize_reads_threshold": 16,
    "realize_opcount_threshold": 100,
}


def blocks_of(component: nn.Module) -> list[nn.Module]:
    """The blocks that the component's class names as repeated."""
    kinds = set(getattr(component, "_repeated_blocks", None) or ())
    return [module for module in component.modules() if type(module).__name__ in kinds]


def compile_blocks(blocks: list[nn.Module]) -> Callable[[], None]:
    """Have each block compiled at its first call; returns the way back."""
    keep_compiled()
    before = [(block, block._compiled_call_impl) for block in blocks]
    for block in blocks:
        block.compile(fullgraph=True, options=OPTIONS)

    def undo() -> None:
        for block, call in before:
            block._compiled_call_impl = call

    return undo


def keep_compiled() -> None:
    """Inductor's cache goes where accel keeps its records, unless a person has chosen a place."""
    if CACHE not in os.environ:
        with suppress(OSError):
            place = cache.folder().parent / "compiled"
            place.mkdir(parents=True, exist_ok=True)
            if not os.access(place, os.W_OK):
                raise OSError(errno.EACCES, "can't be written", str(place))
            os.environ[CACHE] = str(place)
