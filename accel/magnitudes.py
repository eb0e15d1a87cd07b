"""What MagCache must know of a model: by how much its blocks' work grows or shrinks from one step to the next.

These ratios belong to a checkpoint, its LoRAs and its noise schedule. The first whole clip of a model measures them,
with nothing skipped, and they are kept beside accel's other records; from then on every clip uses them.
"""

from __future__ import annotations

import hashlib
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel import cache
from accel.reading import read_json

MEASURED: dict[str, list[float]] = {}
"""By key, for the length of this process."""

SAMPLED = 16
"""Parameters that tell one checkpoint from another."""


class Magnitudes:
    """The ratios of one transformer in one pipeline. `config` is diffusers' MagCacheConfig, shared by all its hooks."""

    config: Any = None

    def __init__(self, transformer: nn.Module, component: str, pipeline: Any) -> None:
        self._model, self._pipeline = weakref.ref(transformer), weakref.ref(pipeline)
        self._component, self._print = component, fingerprint(transformer)
        self._key, self._steps = "", 0
        self.measuring = self.measured_in_this_clip = False

    def begin(self) -> None:
        """When a clip begins: say how many steps it has and hand in its ratios."""
        from diffusers.hooks.mag_cache import nearest_interp

        model, scheduler = self._model(), getattr(self._pipeline(), "scheduler", None)
        self._steps = own_steps(self._pipeline(), self._component)
        self._key = self._print + ("" if model is None else loras(model)) + _schedule(scheduler)
        ratios = known(self._key)
        self.measuring = self.measured_in_this_clip = self.config.calibrate = ratios is None
        # one more than there are: at the last step diffusers would print its measurements
        self.config.num_inference_steps = self._steps + 1
        self.config.mag_ratios = None if ratios is None else nearest_interp(torch.tensor(ratios), self._steps)

    def end(self, context: str) -> None:
        """After each forward: what was measured counts once the last step was seen."""
        if not self.measuring or context != "pass 0":
            return
        ratios = self._measured(context)
        if len(ratios) == self._steps > 1:
            self.measuring = False
            keep(self._key, ratios)

    def _measured(self, context: str) -> list[float]:
        model: Any = self._model()
        for module in () if model is None else model.modules():
            registry = vars(module).get("_diffusers_hook")
            for hook in () if registry is None else registry.hooks.values():
                if type(hook).__name__ == "MagCacheHeadHook":
                    state = hook.state_manager._state_cache.get(context)
                    return [] if state is None else list(state.calibration_ratios)
        return []


def own_steps(pipeline: Any, component: str) -> int:
    """Steps of a clip that this transformer makes: all, or its side of the border where two share them."""
    scheduler = getattr(pipeline, "scheduler", None)
    timesteps = getattr(scheduler, "timesteps", ())
    border = getattr(getattr(pipeline, "config", None), "boundary_ratio", None)
    if border is None or getattr(pipeline, "transformer_2", None) is None:
        return len(timesteps)
    trained = getattr(getattr(scheduler, "config", None), "num_train_timesteps", 1000)
    first = sum(float(timestep) >= border * trained for timestep in timesteps)
    return first if component == "transformer" else len(timesteps) - first


def fingerprint(transformer: nn.Module) -> str:
    """Another text for another checkpoint, by its settings and some of its small weights."""
    config = {key: value for key, value in dict(getattr(transformer, "config", {})).items() if key[:1] != "_"}
    digest = hashlib.sha256(f"{type(transformer).__name__} {sorted(config.items(), key=str)}".encode())
    small = [
        (name, parameter)
        for name, parameter in transformer.named_parameters()
        if type(parameter) is nn.Parameter and 0 < parameter.numel() <= 2**16 and parameter.device.type != "meta"
    ]
    for name, parameter in small[:SAMPLED]:
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:24]


def loras(transformer: nn.Module) -> str:
    """Another text for other LoRAs or strengths, by some of what acts; empty without any. They change the ratios."""
    layers = [one for one in transformer.named_modules() if isinstance(getattr(one[1], "lora_A", None), nn.ModuleDict)]
    digest = hashlib.sha256()
    for name, layer in layers[:SAMPLED]:
        for adapter in layer.active_adapters:
            if adapter in layer.lora_A:
                digest.update(f"{name} {layer.scaling[adapter]} ".encode())
                some = layer.lora_A[adapter].weight.detach().flatten()[:SAMPLED]
                digest.update(some.float().cpu().numpy().tobytes())
    return f"-{digest.hexdigest()[:24]}" if layers else ""


def _schedule(scheduler: Any) -> str:
    config = getattr(scheduler, "config", {})
    shift = config.get("flow_shift", config.get("shift", "")) if hasattr(config, "get") else ""
    return f"-{type(scheduler).__name__}-{shift}"


def known(key: str) -> list[float] | None:
    """The ratios measured before, None without any."""
    if key not in MEASURED:
        with suppress(OSError, ValueError):
            found = read_json(_place() / _file(key), finite=False)
            if isinstance(found, list) and len(found) > 1 and all(isinstance(one, float) for one in found):
                MEASURED[key] = found
    return MEASURED.get(key)


def keep(key: str, ratios: list[float]) -> None:
    """Where no place can be written to, they are known until the process ends."""
    MEASURED[key] = ratios
    with suppress(OSError):
        cache.write(_place(), _file(key), ratios)


def _place() -> Path:
    return cache.folder().parent / "magnitudes"


def _file(key: str) -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
