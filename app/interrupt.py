"""Ctrl-C in two strengths: the first one asks for a stop at the next safe place, the second one stops at once."""

import contextlib
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

# A service manager's polite stop counts like the first Ctrl-C.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While entered, `asked` says whether a stop was asked for; a second Ctrl-C raises KeyboardInterrupt.

    Outside the main thread, where Python allows no signal handlers, it only holds the flag.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.asked = False
        self._on_first = on_first
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        # A stream may be in the middle of a line and refuse another one: the stop counts more than its announcement.
        with contextlib.suppress(RuntimeError):
            self._on_first()
