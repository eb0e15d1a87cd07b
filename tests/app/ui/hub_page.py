"""A page whose program fetches from a small hub of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.app.models.sources.fake_hub import Hub
from tests.app.tiny import save_tiny_pipeline
from tests.app.ui.serving import Served, serving


@contextmanager
def serving_with_hub(hub: Hub, folder: Path) -> Iterator[Served]:
    """A page of its own, its data in `folder`, whose hub holds the tiny pipeline."""
    tiny = save_tiny_pipeline(folder / "tiny")
    hub.files = {path.relative_to(tiny).as_posix(): path.read_bytes() for path in tiny.rglob("*") if path.is_file()}
    with serving(folder / "home") as made:
        yield made
