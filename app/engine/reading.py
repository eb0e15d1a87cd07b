"""Reading the prompt first and freeing what read it: for machines that can't hold a text encoder beside a transformer.

The pipeline is put together without its transformers' weights and run up to their first use; what its encoders said is
written down. Then the encoders go, the transformers come, and the clip is made from what was written down. No family is
treated apart: whatever a pipeline asks of its encoders it asks again, and gets the same answers.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel.fit.needs import stage_of
from app.engine import loading
from app.errors import JobFailedError
from app.machine_memory import trim

Answers = dict[str, Any]
Run = Callable[[Any], Any]
"""Runs the pipeline it is given, as far as it comes."""


class _Read(BaseException):
    """The encoders have said all they will say. No Exception, so that no library swallows it on the way."""


class Remembered(nn.Module):
    """In the place of an encoder: it answers what it was asked before, and nothing else."""

    def __init__(self, encoder: Any, answers: Answers) -> None:
        super().__init__()
        self.config, self.dtype, self.device = encoder.config, encoder.dtype, encoder.device
        self._answers = answers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raises JobFailedError when asked something new."""
        try:
            return self._answers[question(args, kwargs)]
        except KeyError:
            raise JobFailedError(
                "The text encoder was freed and is asked something new: have it kept, under Accelerate (on the command "
                "line: --accel text_encoder=keep)."
            ) from None


def question(args: Any, kwargs: Mapping[str, Any]) -> str:
    """Equal for calls with equal arguments, tensors by their values."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            plain = value.detach().cpu().contiguous()
            digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
            digest.update(plain.flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, Mapping):
            for key in sorted(value):
                digest.update(f"{key}:".encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            digest.update(f"{len(value)}[".encode())
            for item in value:
                add(item)
        else:
            digest.update(repr(value).encode())

    add(args)
    add(kwargs)
    return digest.hexdigest()


def load_after_reading(
    folder: Path,
    dtypes: Mapping[str, str],
    device: str,
    run: Run,
    prepare: Callable[[Any], Any],
    on_component: Callable[[int, int], None],
    brought: Callable[[], Mapping[str, Any]] = dict,
) -> Any:
    """The pipeline in `folder` with a Remembered in the place of each encoder.

    `prepare` is handed the first pipeline, for accelerating its encoders; `brought` gives components that come from
    elsewhere, once the encoders are gone. Raises what loading and running raise.
    """
    given = _read(folder, dtypes, device, run, prepare, on_component)
    gc.collect()
    trim()
    return loading.load_pipeline(folder, dtypes, on_component, given={**given, **brought()})


def _read(
    folder: Path,
    dtypes: Mapping[str, str],
    device: str,
    run: Run,
    prepare: Callable[[Any], Any],
    on_component: Callable[[int, int], None],
) -> dict[str, Any]:
    """Everything but the transformers, each encoder by what it said."""
    names = loading.components_of(folder)
    bare = [name for name in names if stage_of(name) == "transformer" and name.startswith("transformer")]
    pipeline = loading.load_pipeline(folder, dtypes, on_component, bare=bare)
    modules = {name: part for name, part in pipeline.components.items() if isinstance(part, nn.Module)}
    encoders = {name: part for name, part in modules.items() if stage_of(name) == "text_encoder"}
    for name, part in modules.items():
        if name not in bare:
            part.to(device)
    engaged = prepare(pipeline)
    answers: dict[str, Answers] = {name: {} for name in encoders}
    hooks = [part.register_forward_hook(_writer(answers[name]), with_kwargs=True) for name, part in encoders.items()]
    hooks += [modules[name].register_forward_pre_hook(_stop, prepend=True) for name in bare if name in modules]
    try:
        run(pipeline)
    except _Read:
        pass
    finally:
        for hook in hooks:
            hook.remove()
        pipeline.maybe_free_model_hooks()
    del engaged
    kept = {name: part for name, part in pipeline.components.items() if name not in bare}
    return {name: Remembered(part, answers[name]) if name in encoders else part for name, part in kept.items()}


def _writer(answers: Answers) -> Callable[[nn.Module, Any, dict[str, Any], Any], None]:
    def write(module: nn.Module, args: Any, kwargs: dict[str, Any], answer: Any) -> None:
        answers[question(args, kwargs)] = answer

    return write


def _stop(*_: Any) -> None:
    raise _Read
