"""The one place that touches diffusers' private attention dispatcher.

diffusers' set of backends is a closed Enum. An Enum member made outside its maps passes the dispatcher's instance
check, so each installation registers a member of its own and points every attention processor of ONE model at it:
nothing is process wide but the registry's entry, which `undo` takes out again. The dispatcher drops arguments that a
backend does not name, so the function below names all of them, the mask above all.
Processors without the `_attention_backend` field (CogVideoX, Mochi, Allegro, Cosmos) never ask the dispatcher, or ask
for no backend of their own: they can't be reached, and their calls are counted.
"""

from __future__ import annotations

import weakref
from importlib import metadata
from typing import Any

import torch
from torch import nn

from accel.contract import Refused
from accel.ops import ATTENTION, AttentionSlot, Lease, attention
from accel.report import Unreached

KNOWN_SERIES = ("0.42.",)  # releases whose dispatcher was read and run
FIELD = "_attention_backend"
PREFIX = "accel_"
"""How the names of our members begin."""


class Shared:
    """Whoever computes a self-attention whose tokens are dealt out: what a processor may hand over beside the call."""

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, causal: bool, slot: int
    ) -> torch.Tensor:
        """`accel::attention` of the tokens of all, for this one's own: (batch, own tokens, heads, head_dim)."""
        raise NotImplementedError


def why_not() -> str:
    """Why attention can't be put into diffusers here, as one sentence; empty when it can."""
    try:
        version = metadata.version("diffusers")
    except metadata.PackageNotFoundError:
        return "diffusers is not installed"
    if not version.startswith(KNOWN_SERIES):
        known = ", ".join(series + "x" for series in KNOWN_SERIES)
        return (
            f"diffusers {version} is not one whose attention dispatcher is known here ({known}); "
            "install diffusers 0.42.1"
        )
    try:
        from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry
    except ImportError as error:
        return f"diffusers {version} does not import: {error}"
    maps = ("_backends", "_constraints", "_supported_arg_names", "register")
    missing = [name for name in maps if not hasattr(_AttentionBackendRegistry, name)]
    if missing or not hasattr(AttentionBackendName, "NATIVE"):
        return f"diffusers {version} has changed its attention dispatcher: no {', '.join(missing) or 'NATIVE'}"
    return ""


def why_not_model(model: nn.Module) -> str:
    """Why this model's attention must be left alone, as one sentence; empty when it need not be."""
    for _, module in attention_modules(model):
        parallel = getattr(module.processor, "_parallel_config", None)
        if getattr(parallel, "context_parallel_config", None) is not None:
            return "it runs with context parallelism, for which diffusers computes attention in its own way"
    return ""


def own_attention(name: str) -> Any:
    """diffusers' own function behind one of its names, for (batch, tokens, heads, head_dim). Raises Refused."""
    reason = why_not()
    if reason:
        raise Refused(reason)
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    return _AttentionBackendRegistry._backends[AttentionBackendName(name)]


def dispatch(
    processor: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, across: Shared | None = None
) -> torch.Tensor:
    """Attention of (batch, tokens, heads, head_dim) by the backend that `processor` was given, as the processor itself
    would call it. across: over whom the tokens are dealt out, for self-attention."""
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    backend: Any = getattr(processor, FIELD, None)
    parallel: Any = across
    out: torch.Tensor = dispatch_attention_fn(query, key, value, backend=backend, parallel_config=parallel)
    return out


def attention_modules(model: nn.Module) -> list[tuple[str, Any]]:
    """(name, module) of every attention module of `model` that has a processor."""
    from diffusers.models.attention import AttentionModuleMixin
    from diffusers.models.attention_processor import Attention, MochiAttention

    kinds = (Attention, MochiAttention, AttentionModuleMixin)
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, kinds) and getattr(module, "processor", None) is not None
    ]


class AttentionPatch:
    """A backend put into one model; `undo` restores each processor's field and the registry.

    Without a slot nothing is put in, and only the calls that no backend could reach are counted.
    """

    def __init__(self, model: nn.Module, component: str, slot: AttentionSlot | None) -> None:
        self._model, self.slot = weakref.ref(model), slot
        self._restore: list[tuple[Any, bool, Any]] = []
        self._hooks: list[Any] = []
        self._lease: Lease | None = None
        self.unreached: Unreached | None = None
        modules = attention_modules(model)
        deaf = [module for _, module in modules if not hasattr(module.processor, FIELD)]
        processors = {id(m.processor): m.processor for _, m in modules if hasattr(m.processor, FIELD)}
        self.reached = len(modules) - len(deaf) if slot is not None else 0
        if processors and slot is not None:
            self.member, lease = _register(slot)
            self._lease = lease
            for processor in processors.values():
                self._restore.append((processor, FIELD in vars(processor), getattr(processor, FIELD)))
                setattr(processor, FIELD, self.member)
                processor._accel_lease = lease
        if deaf:
            self._count(deaf, component)

    def replaced(self) -> int:
        """How many processors of the model were exchanged since, and so are no longer served."""
        model = self._model()
        if model is None or not self.reached:
            return 0
        now = [module.processor for _, module in attention_modules(model)]
        return sum(getattr(processor, FIELD, None) is not self.member for processor in now if hasattr(processor, FIELD))

    def undo(self) -> None:
        for processor, had_own, value in self._restore:
            if had_own:
                setattr(processor, FIELD, value)
            else:
                vars(processor).pop(FIELD, None)
            vars(processor).pop("_accel_lease", None)
        self._restore, self._lease = [], None
        for hook in self._hooks:
            hook.remove()

    def _count(self, modules: list[Any], component: str) -> None:
        kinds = sorted({type(module.processor).__name__ for module in modules})
        counter = Unreached(
            component, len(modules), f"{', '.join(kinds)} calls PyTorch itself and not diffusers' dispatcher"
        )

        def count(module: nn.Module, args: Any) -> None:
            if torch.compiler.is_compiling():
                counter.compiled = True
            else:
                counter.calls += 1

        self._hooks = [module.register_forward_pre_hook(count) for module in modules]
        self.unreached = counter


def _register(slot: AttentionSlot) -> tuple[Any, Lease]:
    """A new member of diffusers' Enum, outside its maps, registered with a function that calls our op."""
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    number = ATTENTION.add(slot)
    name = f"{PREFIX}{slot.backend.name}_{number}"
    member = str.__new__(AttentionBackendName, name)
    member._name_, member._value_ = name.upper(), name
    member.__dict__["__deepcopy__"] = lambda _: member  # Python 3.11.3 and older would look it up in the maps

    def backend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        _parallel_config: Any = None,
    ) -> torch.Tensor:
        across = _parallel_config if isinstance(_parallel_config, Shared) else None
        if (_parallel_config is not None and across is None) or dropout_p:
            what = "dropout" if dropout_p else "diffusers' context parallelism"
            raise RuntimeError(
                f"{slot.backend.name} does not do {what}: call remove() on the installation, enable it, then install "
                "again"
            )
        if across is not None:
            if attn_mask is not None:
                raise RuntimeError(f"{slot.backend.name} does not do a mask over several GPUs: run it on one")
            return across.attend(query, key, value, scale, is_causal, number)
        return attention(query, key, value, attn_mask, scale, is_causal, number)

    _AttentionBackendRegistry.register(member, supports_context_parallel=False)(backend)

    def unregister() -> None:
        for entries in ("_backends", "_constraints", "_supported_arg_names"):
            getattr(_AttentionBackendRegistry, entries).pop(member, None)

    return member, Lease(ATTENTION, number, unregister)
