"""A step cache put into one transformer: diffusers' hooks, told where in the clip they are, counted, and taken out.

The hooks keep what they saw per denoising pass, and want to be told which pass it is. Most pipelines tell some of them,
none tells all: pyramid attention would hand the guided pass's attention to the unguided one. So the pass is told here,
from the step that scheduler or timestep shows, and everything is forgotten when a clip begins.
"""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from accel import bridge, caches, magnitudes
from accel.parallel.branches import ELSEWHERE
from accel.report import Reused

ACTIVE = (0.2, 0.9)
"""Part of a clip's steps between which pyramid attention reuses: the first settle what is where, the last details."""


def why_not(name: str, transformer: nn.Module) -> str:
    """Why this transformer can't be run with the cache `name`, as a clause; empty when it can."""
    if reason := bridge.why_not():
        return reason
    from diffusers import CacheMixin

    who = type(transformer).__name__
    if not isinstance(transformer, CacheMixin):
        return f"{who} is not one of the models that diffusers' caches can be put into"
    if name == "pyramid":
        return "" if attentions(transformer) else f"{who} has no self-attention that diffusers' cache would find"
    others = _other_blocks(transformer)
    if others:
        return f"{who} works on with what {' and '.join(others)} give, which a skipped block would count twice"
    if name == "taylorseer":
        return _why_not_taylorseer(transformer)
    found = _blocks(transformer)
    if len(found) < 2:
        return f"{who} has {len(found)} blocks that diffusers' cache would find, and 2 are needed"
    unknown = sorted({type(block).__name__ for block in found if not _registered(block)})
    return f"diffusers does not know what goes in and out of {' and '.join(unknown)}" if unknown else ""


def attentions(transformer: nn.Module) -> list[nn.Module]:
    """The modules that pyramid attention would act on."""
    from diffusers.hooks._common import _ATTENTION_CLASSES, _SPATIAL_TRANSFORMER_BLOCK_IDENTIFIERS

    return [
        module
        for name, module in transformer.named_modules()
        if isinstance(module, _ATTENTION_CLASSES)
        and any(part in name for part in _SPATIAL_TRANSFORMER_BLOCK_IDENTIFIERS)
        and not getattr(module, "is_cross_attention", False)
    ]


def _blocks(transformer: nn.Module) -> list[nn.Module]:
    from diffusers.hooks._common import _ALL_TRANSFORMER_BLOCK_IDENTIFIERS

    lists = [part for name, part in transformer.named_children() if name in _ALL_TRANSFORMER_BLOCK_IDENTIFIERS]
    return [block for part in lists if isinstance(part, nn.ModuleList) for block in part]


def _other_blocks(transformer: nn.Module) -> list[str]:
    """Lists of blocks beside those that a cache skips, such as VACE's: what they give is added between blocks."""
    from diffusers.hooks._common import _ALL_TRANSFORMER_BLOCK_IDENTIFIERS

    return [
        name
        for name, part in transformer.named_children()
        if isinstance(part, nn.ModuleList) and "block" in name and name not in _ALL_TRANSFORMER_BLOCK_IDENTIFIERS
    ]


def _registered(block: nn.Module) -> bool:
    """Whether diffusers' caches find the hidden states among this block's arguments and results."""
    metadata = _metadata(type(block))
    if metadata is None:
        return False
    wanted = {"hidden_states"}
    if metadata.return_encoder_hidden_states_index is not None:
        wanted.add("encoder_hidden_states")
    return wanted <= set(inspect.signature(metadata._cls.forward).parameters)


def _metadata(kind: type) -> Any:
    """What diffusers knows of a block's class or of one that it stems from, None where that is nothing."""
    from diffusers.hooks._helpers import TransformerBlockRegistry

    for known in kind.__mro__:
        with suppress(ValueError):
            return TransformerBlockRegistry.get(known)
    return None


@contextmanager
def _registered_for_now(transformer: nn.Module) -> Iterator[None]:
    """While entered, diffusers knows the blocks whose classes were exchanged for ones that stem from them."""
    from diffusers.hooks._helpers import TransformerBlockRegistry

    known = TransformerBlockRegistry._registry
    new = {kind: _metadata(kind) for kind in {type(block) for block in _blocks(transformer)} if kind not in known}
    known.update({kind: metadata for kind, metadata in new.items() if metadata is not None})
    try:
        yield
    finally:
        for kind in new:
            known.pop(kind, None)


def _why_not_taylorseer(transformer: nn.Module) -> str:
    from diffusers.hooks.taylorseer_cache import _BLOCK_IDENTIFIERS

    who, names = type(transformer).__name__, [name for name, _ in transformer.named_modules()]
    last = [name for name in names if "." not in name and name.endswith("proj_out")]
    if last != ["proj_out"]:
        return (
            f"{who} has {', '.join(last) or 'no proj_out'} where one layer proj_out is needed, whose output is foretold"
        )
    if not any(re.fullmatch(pattern, name) for pattern in _BLOCK_IDENTIFIERS for name in names):
        return f"{who} has no blocks that diffusers' cache would find"
    return ""


class StepCaching:
    """One cache in one transformer. `undo` takes it out; `reset` forgets what was kept and counted.

    Raises ValueError when the transformer can't take it.
    """

    def __init__(self, transformer: nn.Module, component: str, engaged: str, pipeline: Any) -> None:
        cache = caches.known(engaged)
        reason = f"{engaged} is not known" if cache is None else why_not(cache.name, transformer)
        model: Any = transformer
        if not reason and model.is_cache_enabled:
            reason = "a cache is in it already: call its disable_cache() first"
        if cache is None or reason:
            raise ValueError(f"the cache {engaged} can't be put into {component}: {reason}")
        self.name, self._transformer = cache.name, weakref.ref(model)
        self.watch = Watch(pipeline)
        self.tally = Reused(component, cache.name, "attention calls" if cache.attention else "forwards")
        self._before = [(module, _own(module)) for module in model.modules()]
        self.mag = magnitudes.Magnitudes(model, component, pipeline) if cache.name == "mag" else None
        with _registered_for_now(model):
            model.enable_cache(self._config(caches.strength_of(engaged)))
        self._managers = list({id(found): found for found in _managers(model)}.values())
        self._pyramids: list[tuple[Any, list[Any]]] = []
        if cache.attention:
            self._pyramids = [(hook, []) for hook in _hooks(model, "PyramidAttentionBroadcastHook")]
            for hook, states in self._pyramids:
                hook.reset_state = partial(_forget_passes, hook, states)
        first = next(hook for hook in _hooks(model) if hook._is_stateful)
        first.reset_state = partial(self._ended, first.reset_state)
        self._count(model)
        self._handles = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._end),
        ]

    def reset(self) -> None:
        """A clip begins: nothing of the last one is used, and counting starts from zero."""
        self.tally.reset()
        self.watch.forget()
        self._forget()

    def to_dict(self) -> dict[str, Any]:
        """As Reused.to_dict; with `measuring` where nothing was reused for the sake of the next clips."""
        told = self.tally.to_dict()
        if self.mag is not None and self.mag.measured_in_this_clip:
            told |= {"measuring": True, "summary": f"{told['summary']}: this clip measured the model for the next ones"}
        return told

    def undo(self) -> None:
        model: Any = self._transformer()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if model is None or not self._before:
            return
        model.disable_cache()
        for module, own in self._before:
            for name in _OWN - own:
                vars(module).pop(name, None)
        self._before = []

    def compile_inside(self, options: dict[str, Any]) -> Callable[[], None]:
        """Blocks that were compiled whole become blocks whose inner part is: a hook decides anew at each step,
        which can't be compiled in. Returns the way back."""
        changed: list[tuple[Any, Any, Callable[[], None]]] = []
        for block in self._hooked():
            call, reference = getattr(block, "_compiled_call_impl", None), _innermost(block)
            if call is not None and reference is not None:
                counted = isinstance(reference.original_forward, _Counted)
                place, name = (reference.original_forward, "forward") if counted else (reference, "original_forward")
                changed.append((block, call, partial(setattr, place, name, getattr(place, name))))
                block._compiled_call_impl = None
                setattr(place, name, torch.compile(getattr(place, name), fullgraph=True, options=options))

        def undo() -> None:
            for block, call, restore in changed:
                block._compiled_call_impl = call
                restore()

        return undo

    # -- within a clip --

    def _begin(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if self.watch.enter(kwargs):
            self._forget()
            if self.mag is not None:
                self.mag.begin()
        context = self._context()
        for manager in self._managers:
            manager.set_context(context)
        for hook, states in self._pyramids:
            while len(states) <= self.watch.number:
                states.append(type(hook.state)())
            hook.state = states[self.watch.number]
        self.tally.enter(self.watch.step)

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if getattr(module, ELSEWHERE, False):  # another rank's call: nothing was computed here, nor saved
            return
        self.tally.leave()
        if self.mag is not None:
            self.mag.end(self._context().name)

    def _context(self) -> Any:
        from diffusers.hooks.hooks import CacheContext

        return CacheContext(f"pass {self.watch.number}", step_index=self.watch.step)

    def _forget(self) -> None:
        model: Any = self._transformer()
        if model is not None:
            here = dict(vars(self.watch))
            model._reset_stateful_cache()
            vars(self.watch).update(here)

    def _ended(self, reset: Callable[[nn.Module], Any], module: nn.Module) -> nn.Module:
        """Pipelines have the hooks forget what they keep when a clip ends."""
        self.watch.forget()
        reset(module)
        return module

    def _config(self, strength: float) -> Any:
        import diffusers
        from diffusers.hooks import MagCacheConfig, TaylorSeerCacheConfig

        if self.name == "first_block":
            return diffusers.FirstBlockCacheConfig(threshold=strength)
        if self.name == "taylorseer":
            return TaylorSeerCacheConfig(cache_interval=int(strength), use_lite_mode=True)
        if self.name == "pyramid":
            low, high = 1000 * (1 - ACTIVE[1]), 1000 * (1 - ACTIVE[0])
            return diffusers.PyramidAttentionBroadcastConfig(
                spatial_attention_block_skip_range=int(strength),
                spatial_attention_timestep_skip_range=(low, high),
                current_timestep_callback=lambda: 1000 * (1 - self.watch.share),
            )
        assert self.mag is not None
        # the ratios are put in when a clip begins and its steps are known
        self.mag.config = MagCacheConfig(threshold=strength, calibrate=True)
        return self.mag.config

    # -- counting --

    def _hooked(self) -> list[Any]:
        model: Any = self._transformer()
        found = [] if model is None else [module for module in model.modules() if _innermost(module) is not None]
        return [module for module in found if module is not model]

    def _count(self, model: nn.Module) -> None:
        """See what the hooks let through: every attention, or the last block of those that are skipped together."""
        hooked = self._hooked()
        blocks = _blocks(model)
        watched = hooked if self._pyramids else [module for module in hooked if module is blocks[-1]]
        for module in watched:
            reference = _innermost(module)
            reference.original_forward = _Counted(reference.original_forward, self.tally)
        self.tally.parts = len(watched)


_OWN = {"forward", "_diffusers_hook", "_cache_config"}
"""What hooks leave behind in a module."""


def _own(module: nn.Module) -> set[str]:
    return _OWN & set(vars(module))


def _innermost(module: Any) -> Any:
    """The reference through which the first of a module's hooks calls the module's own forward, None without one."""
    registry = vars(module).get("_diffusers_hook")
    references = [] if registry is None else [one for one in registry._fn_refs if one.original_forward is not None]
    return references[0] if references else None


def _hooks(model: nn.Module, kind: str = "") -> Iterator[Any]:
    for module in model.modules():
        registry = vars(module).get("_diffusers_hook")
        for hook in () if registry is None else registry.hooks.values():
            if not kind or type(hook).__name__ == kind:
                yield hook


def _managers(model: nn.Module) -> Iterator[Any]:
    from diffusers.hooks.hooks import StateManager

    for hook in _hooks(model):
        yield from (value for value in vars(hook).values() if isinstance(value, StateManager))


def _forget_passes(hook: Any, states: list[Any], module: nn.Module) -> nn.Module:
    """In the place of pyramid attention's own `reset_state`, which knows one pass only."""
    states.clear()
    hook.state = type(hook.state)()
    return module


class _Counted:
    """A forward that is counted whenever it is really computed."""

    def __init__(self, forward: Callable[..., Any], tally: Reused) -> None:
        self.forward, self.tally = forward, tally

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.tally.computed()
        return self.forward(*args, **kwargs)


class Watch:
    """Where in its clip a transformer is: step, and the number of the pass within the step.

    The step is the scheduler's where it tells. Else a timestep that the scheduler has set is looked up; and where a
    pipeline steps with schedulers of its own, a new step begins with every smaller timestep.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = weakref.ref(pipeline)
        self.forget()

    def forget(self) -> None:
        """Whatever comes next belongs to another clip."""
        self.step, self.number = -1, 0
        self._timestep, self._told = float("inf"), False

    @property
    def share(self) -> float:
        """How much of the clip is done, 0 at its first step."""
        steps = len(getattr(self._scheduler, "timesteps", ()))
        return self.step / steps if steps else 0.0

    @property
    def _scheduler(self) -> Any:
        return getattr(self._pipeline(), "scheduler", None)

    def enter(self, kwargs: dict[str, Any]) -> bool:
        """Take notice of a forward; whether a clip begins with it."""
        before, step = self.step, self._find(kwargs)
        self.number = self.number + 1 if step == before else 0
        self.step = step
        return step < before or before < 0

    def _find(self, kwargs: dict[str, Any]) -> int:
        scheduler = self._scheduler
        tells = hasattr(type(scheduler), "step_index")
        index = scheduler.step_index if tells else None
        if index is not None or self._told:
            self._told = index is not None
            return int(index or 0)
        timestep = kwargs.get("timestep")
        numbers = timestep.float() if isinstance(timestep, torch.Tensor) else torch.tensor(float(timestep or 0))
        known = getattr(scheduler, "timesteps", None)
        if not tells and isinstance(known, torch.Tensor) and len(known):
            return int((known.float() - numbers.max()).abs().argmin())
        before, self._timestep = self._timestep, float(numbers.mean())
        if self._timestep > before:
            return 0
        return self.step if self._timestep == before else self.step + 1
