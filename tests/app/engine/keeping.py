"""What the tests of kept latents share: engines that fail while decoding, and what they leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.engine import Engine
from app.errors import JobFailedError
from app.request import GenerationRequest
from tests.app.engines import pipeline_of


@contextmanager
def failing(engine: Engine, error: Exception) -> Iterator[None]:
    """While entered, nothing can be decoded. The engine has a model in memory."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with pytest.MonkeyPatch.context() as spoiled:
        spoiled.setattr(type(pipeline_of(engine).vae), "decode", fail)
        yield


@contextmanager
def denoising(engine: Engine) -> Iterator[list[int]]:
    """While entered, the calls of the denoiser are listed. The engine has a model in memory."""
    calls: list[int] = []
    kind = type(pipeline_of(engine).transformer)
    forward = kind.forward

    def counted(self: Any, *arguments: Any, **named: Any) -> Any:
        calls.append(1)
        return forward(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as watched:
        watched.setattr(kind, "forward", counted)
        yield calls


def kept_of(engine: Engine, request: GenerationRequest) -> Path:
    """The file that a try leaves which fails while decoding."""
    with failing(engine, ValueError("no")), pytest.raises(JobFailedError, match=r"no\. Its latents are kept: try the"):
        engine.generate(request, keeps=True)
    (path,) = files(engine)
    return path


def files(engine: Engine) -> list[Path]:
    assert engine._home is not None
    return sorted(engine._home.latents.iterdir())


def counted(report: dict[str, Any]) -> dict[str, Any]:
    """What a report says of calls, without the seconds that something took."""
    return {kind: report[kind] for kind in ("attention", "linear", "vae", "blocks", "cache")}
