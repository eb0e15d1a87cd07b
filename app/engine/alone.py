"""What an engine asks the other ranks of its clip. Here there are none; `together` has those of several GPUs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.engine import acceleration
from app.engine.watcher import Stop
from app.errors import CannotRunError
from app.models.base import Family
from app.request import GenerationRequest


class Alone:
    """One rank by itself."""

    first = True
    """Whether this rank's frames, previews and report are the clip's."""

    def decide(
        self, family: Family, request: GenerationRequest, recorded: Mapping[str, Any] | None, cache: Path | None
    ) -> acceleration.Decision:
        """The plan for `request`. Raises what `acceleration.decide` raises."""
        found = acceleration.decide(family, request, recorded, cache)
        if found.shared is not None:
            raise CannotRunError(
                f"gpus={found.shared.count}: this engine works on one device; make the clip by way of the queue."
            )
        return found

    def section(self) -> contextlib.AbstractContextManager[None]:
        """What all ranks do together, or leave together: where one is stopped or fails, the others do not go on."""
        return contextlib.nullcontext()

    def meet(self, stop: bool) -> None:
        """A point that every rank passes. Raises Stop when one was told to stop."""
        if stop:
            raise Stop

    def agreed(self, stop: bool) -> bool:
        """Whether to stop here, asked between blocks: the same answer on all ranks that share a forward's tokens."""
        return stop

    def resumes(self, found: bool) -> bool:
        """Whether the clip goes on from kept latents: where the first rank `found` some."""
        return found

    def shared(self, pipeline: Any, guided: bool) -> contextlib.AbstractContextManager[None]:
        """While entered, the forwards of `pipeline`, whose accelerators are in, are dealt out."""
        return contextlib.nullcontext()

    def signs(self, report: dict[str, Any]) -> dict[str, Any]:
        """A report, with whose it is."""
        return report
