"""Putting a Plan into a pipeline, counting what it does, and taking it out again, bit for bit.

Installing decides nothing: what is engaged stands in the plan. Per component, in this order: cast, attention, linears
or convolutions, step cache, compile; last, what moves weights; `remove` goes the other way. Each step hands back its
own undo, so that a step that fails half way leaves the pipeline as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from accel import blocks, bridge, steps
from accel.backends import backend
from accel.caching import StepCaching
from accel.casting import Cast, cast_component
from accel.contract import AttentionBackend, LinearBackend, Refused, VaeBackend
from accel.errors import AccelError
from accel.fit.moving import Offloading, tile
from accel.linears import PackedLinears, pack_linears
from accel.ops import AttentionSlot
from accel.originals import weights_file
from accel.report import Tally
from accel.types import Plan, StageName, StagePlan

COMPONENTS: dict[StageName, tuple[str, ...]] = {
    "text_encoder": ("text_encoder", "text_encoder_2", "text_encoder_3"),
    "transformer": ("transformer", "transformer_2"),
    "vae": ("vae",),
}
MARK = "_accel_installation"
NOT_ENGAGED = ("stock", "", "none", "off")


class SettleThreads:
    """A forward pre-hook; a class, so that a component that carries it can be copied and pickled."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling() and torch.get_num_threads() != self.count:
            torch.set_num_threads(self.count)


class FirstCall:
    """Notes how long the first call of a component took whose blocks are compiled in it. Its copies note nothing."""

    def __init__(self, name: str = "", pending: set[str] | None = None, took: dict[str, float] | None = None) -> None:
        self.name, self.pending = name, set[str]() if pending is None else pending
        self.took = dict[str, float]() if took is None else took
        self.begun = 0.0

    def begin(self, module: nn.Module, args: Any) -> None:
        self.begun = time.perf_counter()

    def end(self, module: nn.Module, args: Any, result: Any) -> None:
        if self.name in self.pending:
            self.pending.discard(self.name)
            self.took[self.name] = time.perf_counter() - self.begun

    def __reduce__(self) -> tuple[type[FirstCall], tuple[()]]:
        return FirstCall, ()


def is_uncompiled(component: nn.Module) -> bool:
    """Whether the next call of `component` will compile its blocks, or read them from the cache."""
    found: Installation | None = getattr(component, MARK, None)
    return found is not None and any(found.components.get(name) is component for name in found.uncompiled)


class Installation:
    """What was put into one pipeline. Made by `install`; `remove()` ends it, and a second `remove()` does nothing."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.active = True
        self.tallies: list[Tally] = []
        self.linears: dict[str, PackedLinears] = {}
        self.casts: dict[str, Cast] = {}
        self.patches: dict[str, bridge.AttentionPatch] = {}
        self.components: dict[str, nn.Module] = {}
        self.notes: list[str] = []
        self.uncompiled: set[str] = set()
        self.compile_seconds: dict[str, float] = {}
        self.caches: dict[str, StepCaching] = {}
        self.offloading: Offloading | None = None
        self._undo: list[Callable[[], Any]] = []

    def remove(self) -> list[str]:
        """Restore every tensor, class, processor and the dispatcher's registry. Returns notes, one sentence each, on
        what was changed while installed and therefore could not be restored to the bits of before."""
        notes: list[str] = []
        while self._undo:
            note = self._undo.pop()()
            if isinstance(note, str):
                notes.append(note)
        for component in self.components.values():
            vars(component).pop(MARK, None)
        self.active = False
        return notes

    def reset(self) -> None:
        """Count from zero again and keep nothing of the last clip: the engine calls it before each clip."""
        for tally in self.tallies:
            tally.reset()
        for caching in self.caches.values():
            caching.reset()
        if self.offloading is not None:
            self.offloading.reset()
        for patch in self.patches.values():
            if patch.slot is not None:
                patch.slot.judged.clear()
            if patch.unreached is not None:
                patch.unreached.calls = 0

    def report(self) -> dict[str, Any]:
        """JSON data: `{"attention": {component: ...}, "linear": {...}, "vae": {...}, "cache": {...}, "compile": {...},
        "fit": {...}, "restoring": {...}, "notes": [...]}`.

        Attention and convolutions: see Tally.to_dict, and `unreached` for attention no backend can be put into.
        Linears: the same plus `packed`, `packed_bytes` and `skipped`, the reasons with their counts. Step caches: see
        Reused.to_dict, and `measuring` where this clip served to measure the model.
        """
        result: dict[str, Any] = {"attention": {}, "linear": {}, "vae": {}, "blocks": {}}
        for tally in self.tallies:
            result[tally.kind][tally.component] = tally.to_dict()
        for component, linears in self.linears.items():
            result["linear"][component] |= linears.to_dict()
        for component, patch in self.patches.items():
            entry = result["attention"].setdefault(component, {})
            entry["modules"] = patch.reached
            if patch.unreached is not None:
                entry["unreached"] = patch.unreached.to_dict()
            if patch.replaced():
                entry["replaced"] = f"{patch.replaced()} processors were exchanged since: call accel.install again"
        result["cache"] = {name: caching.to_dict() for name, caching in self.caches.items()}
        result["compile"] = {name: {"first_call_seconds": took} for name, took in self.compile_seconds.items()}
        result["fit"] = {} if self.offloading is None else self.offloading.to_dict()
        result["restoring"] = self._restoring()
        result["notes"] = list(self.notes)
        return result

    def _restoring(self) -> dict[str, Any]:
        """What `remove()` needs: memory held for it, and tensors it will read from their files again."""
        kept = sum(cast.kept_bytes for cast in self.casts.values())
        kept += sum(linears.kept_bytes for linears in self.linears.values())
        reread = sum(cast.reread for cast in self.casts.values())
        reread += sum(linears.reread for linears in self.linears.values())
        unpacked = sum(linears.packed for linears in self.linears.values())
        return {"kept_bytes": kept, "reread_tensors": reread, "unpacked_linears": unpacked}

    # A copied or pickled component is a plain one: it carries no installation.
    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()

    # -- steps
    # ----------------------------------------------------------------------------------------------------------

    def _install(self, pipeline: Any) -> None:
        counts = {stage.threads.engaged for stage in self.plan.stages}
        if counts != {self.plan.threads.engaged}:
            self._undo.append(partial(torch.set_num_threads, torch.get_num_threads()))
        for stage in self.plan.stages:
            for name in COMPONENTS[stage.stage]:
                component = getattr(pipeline, name, None)
                if isinstance(component, nn.Module):
                    self.components[name] = component
                    setattr(component, MARK, self)
                    self._install_component(name, component, stage, pipeline)
        self._fit(pipeline)

    def _fit(self, pipeline: Any) -> None:
        """Last of all, since packing and casting need the weights where they are."""
        if self.plan.tiling.engaged == "on" and getattr(pipeline, "vae", None) is not None:
            self._undo.append(tile(pipeline.vae))
        if _engaged(self.plan.offload.engaged):
            transformer = self.plan.stage("transformer")
            device = transformer.device.engaged if transformer is not None else "cpu"
            self.offloading = Offloading(pipeline, self.plan.offload.engaged, device)
            self._undo.append(self.offloading.undo)

    def _install_component(self, name: str, component: nn.Module, stage: StagePlan, pipeline: Any) -> None:
        self._cast(name, component, stage.dtype.engaged)
        if stage.stage == "transformer":
            self._attention(name, component, stage.attention.engaged)
            self._exact_steps(name, component, pipeline, int(stage.exact_steps.engaged))
        if stage.stage == "vae":
            self._convolutions(name, component, stage.vae.engaged)
        else:
            self._linears(name, component, stage.linear.engaged)
        if stage.compile.engaged == blocks.FUSED:
            self._fuse(name, component)
        if stage.stage == "transformer":
            self._cache(name, component, stage.cache.engaged, pipeline)
        if stage.compile.engaged == blocks.YES:
            self._compile(name, component)
        if {one.threads.engaged for one in self.plan.stages} != {self.plan.threads.engaged}:
            self._threads(component, int(stage.threads.engaged))

    def _threads(self, component: nn.Module, count: int) -> None:
        """Settle the number of threads whenever the component begins to work. A VAE is called by its two halves."""
        halves = (
            [getattr(component, name, None) for name in ("encoder", "decoder")] if hasattr(component, "decode") else []
        )
        for module in [half for half in halves if isinstance(half, nn.Module)] or [component]:
            self._undo.append(module.register_forward_pre_hook(SettleThreads(count)).remove)

    def _cast(self, name: str, component: nn.Module, dtype: str) -> None:
        if not _engaged(dtype):
            return
        cast = cast_component(component, getattr(torch, dtype), weights_file(component))
        if cast is None:
            return
        self.casts[name] = cast

        def undo() -> str | None:
            changed = cast.undo()
            return f"{changed} weights of {name} were changed in {dtype} and keep that value" if changed else None

        self._undo.append(undo)

    def _attention(self, name: str, component: nn.Module, engaged: str) -> None:
        reason = bridge.why_not() or bridge.why_not_model(component)
        if reason:
            self.notes.append(f"{name}'s attention is left alone: {reason}")
            return
        tally = Tally(name, "attention", engaged)
        chosen = cast(AttentionBackend, backend("attention", engaged)) if _engaged(engaged) else None
        patch = bridge.AttentionPatch(component, name, AttentionSlot(chosen, tally) if chosen else None)
        self.patches[name] = patch
        self._undo.append(patch.undo)
        if patch.reached:
            self.tallies.append(tally)

    def _exact_steps(self, name: str, component: nn.Module, pipeline: Any, count: int) -> None:
        slot = self.patches[name].slot if name in self.patches else None
        if not count or slot is None:
            return
        reason = steps.why_not(pipeline)
        if reason:
            self.notes.append(reason)
            return
        self._undo.append(component.register_forward_pre_hook(steps.ExactSteps(pipeline, slot, count)).remove)

    def _linears(self, name: str, component: nn.Module, engaged: str) -> None:
        if not _engaged(engaged):
            return
        tally = Tally(name, "linear", engaged)
        chosen = cast(LinearBackend, backend("linear", engaged))
        linears = pack_linears(component, chosen, tally, weights_file(component))
        self.linears[name] = linears
        self.tallies.append(tally)
        self._undo.append(linears.undo)

    def _convolutions(self, name: str, component: nn.Module, engaged: str) -> None:
        if not _engaged(engaged):
            return
        tally = Tally(name, "vae", engaged)
        chosen = cast(VaeBackend, backend("vae", engaged))
        self._undo.append(chosen.apply(component, tally))
        self.tallies.append(tally)

    def _cache(self, name: str, component: nn.Module, engaged: str, pipeline: Any) -> None:
        if _engaged(engaged):
            self.caches[name] = StepCaching(component, name, engaged, pipeline)
            self._undo.append(self.caches[name].undo)

    def _fuse(self, name: str, component: nn.Module) -> None:
        from accel.compiling import blocks_of
        from accel.fused.wan import fuse_blocks

        tally = Tally(name, "blocks", blocks.FUSED)
        slot = self.patches[name].slot if name in self.patches else None
        try:
            self._undo.append(fuse_blocks(blocks_of(component), slot, tally))
        except Refused as refusal:
            self.notes.append(f"{name}'s blocks are not fused: {refusal}")
            return
        self.tallies.append(tally)

    def _compile(self, name: str, component: nn.Module) -> None:
        from accel.compiling import OPTIONS, blocks_of, compile_blocks

        repeated = blocks_of(component)
        if not repeated:
            self.notes.append(f"{name} is not compiled: it names no repeated blocks")
            return
        self._undo.append(compile_blocks(repeated))
        if name in self.caches:
            self._undo.append(self.caches[name].compile_inside(OPTIONS))
        self.uncompiled.add(name)
        watch = FirstCall(name, self.uncompiled, self.compile_seconds)
        hooks = component.register_forward_pre_hook(watch.begin), component.register_forward_hook(watch.end)
        self._undo.extend(hook.remove for hook in hooks)


def install(pipeline: Any, plan: Plan) -> Installation:
    """Put `plan` into `pipeline`'s text encoders, transformers and VAE.

    Installing the same plan again gives the Installation there is; another plan takes that one out first. Raises
    AccelError when a step fails, with the pipeline as it was.
    """
    names = [name for stage in plan.stages for name in COMPONENTS[stage.stage]]
    parts = [part for name in names if isinstance(part := getattr(pipeline, name, None), nn.Module)]
    there = {id(found): found for part in parts if (found := getattr(part, MARK, None)) is not None}
    for found in there.values():
        if found.plan == plan and all(getattr(part, MARK, None) is found for part in parts):
            return found
        found.remove()
    installation = Installation(plan)
    try:
        installation._install(pipeline)
    except Exception as error:
        installation.remove()
        raise AccelError(f"the plan could not be put into {type(pipeline).__name__}: {error}") from error
    return installation


def _engaged(choice: str) -> bool:
    return choice not in NOT_ENGAGED


def _nothing() -> None:
    return None
