"""Fetch models for whoever asks the owner of the queue, one at a time, beside the clips that are made.

A fetch runs in a process of its own and takes hardly any of this one. When the owner leaves, it is ended; what came is
kept, and the next fetch goes on there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.catalogue import Bring, how_to_fetch
from app.errors import Cancelled, KinetileError, UsageError
from app.fetching import Fetching


class Fetcher:
    """`on_change` is called, by the fetching thread, when a fetch begins and when it is over, and by who forgets it."""

    def __init__(
        self, on_change: Callable[[], None], look_up: Callable[[str], tuple[str, Bring]] = how_to_fetch
    ) -> None:
        self._on_change, self._look_up = on_change, look_up
        self._lock = threading.Lock()
        self._state = Fetching()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> Fetching:
        """How the newest fetch stands."""
        return self._state

    def start(self, model: str) -> int:
        """Begin; returns the fetch's number. Raises UsageError for a model that is not known, and while another one is
        fetched.
        """
        title, bring = self._look_up(model)
        with self._lock:
            if not self._state.is_over:
                raise UsageError(f"{self._state.title} is being fetched: wait for it, or stop it first.")
            self._state = Fetching(self._state.number + 1, model, title, "running")
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, args=(bring,), name="fetcher", daemon=True)
            self._thread.start()
            return self._state.number

    def stop(self) -> None:
        """Stop the one that is going on; returns at once."""
        self._stop.set()

    def forget(self) -> None:
        """Tell no more how the last one ended; one that is going on is left alone."""
        with self._lock:
            if not self._state.is_over or self._state.state == "none":
                return
            self._state = Fetching(self._state.number)
        self._on_change()

    def close(self) -> None:
        """Stop, and return when it has."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def _run(self, bring: Callable[..., Path]) -> None:
        self._on_change()
        try:
            bring(lambda progress: self._put(progress=progress), self._stop.is_set)
            self._put(state="done")
        except Cancelled as error:
            self._put(state="stopped", error=str(error))
        except KinetileError as error:
            self._put(state="failed", error=str(error))
        except Exception as error:
            self._put(state="failed", error=f"It can't be fetched for a reason nobody foresaw ({error}).")
        self._on_change()

    def _put(self, **changes: Any) -> None:
        with self._lock:
            self._state = replace(self._state, **changes)
