"""How the fetch of a model stands, as plain data that page, command line and the queue's owner share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from app.models.sources.fetching import FetchProgress


@dataclass(frozen=True)
class Fetching:
    """number: counts them; 0 before the first. model: as it was asked for; title: what to call it. progress: how far it
    is. error: why the model is not here, where it failed or was stopped.
    """

    number: int = 0
    model: str = ""
    title: str = ""
    state: Literal["none", "running", "done", "failed", "stopped"] = "none"
    progress: FetchProgress = field(default_factory=lambda: FetchProgress("listing"))
    error: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state != "running"
