"""Tell every listener in this process what changed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from app.queue.service import Event, OwnerGoneError, Subscription


class LocalSubscription(Subscription):
    """One listener's events, kept until it takes them; of progress only the newest."""

    def __init__(self, forget: Callable[[LocalSubscription], None]) -> None:
        self._forget = forget
        self._changed = threading.Condition()
        self._events: deque[Event] = deque()
        self._over = False

    def get(self, timeout: float | None = None) -> Event | None:
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._over, timeout)
            if self._events:
                return self._events.popleft()
            if self._over:
                raise OwnerGoneError("The queue was closed.")
            return None

    def close(self) -> None:
        self._forget(self)
        self.end()

    def put(self, event: Event) -> None:
        """Add an event."""
        with self._changed:
            if event.kind == "progress" and self._events and self._events[-1].kind == "progress":
                self._events.pop()
            self._events.append(event)
            self._changed.notify_all()

    def end(self) -> None:
        """No more events will come; those that are here can still be taken."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


class News:
    """All listeners. `version` counts what was told, `changes` what of it was more than progress."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[LocalSubscription] = []
        self._over = False
        self.version = self.changes = 0

    def tell(self, event: Event) -> None:
        """Give an event to every listener."""
        with self._lock:
            self.version += 1
            self.changes += event.kind != "progress"
            for listener in self._listeners:
                listener.put(event)

    def subscribe(self) -> LocalSubscription:
        """A new listener."""
        with self._lock:
            made = LocalSubscription(self._drop)
            if self._over:
                made.end()
            self._listeners.append(made)
            return made

    def end(self) -> None:
        """Nothing more will be told."""
        with self._lock:
            self._over = True
            for listener in self._listeners:
                listener.end()

    def _drop(self, listener: LocalSubscription) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
