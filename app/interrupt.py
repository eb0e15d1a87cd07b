"""Ctrl-C in two strengths: the first one asks for a stop at the next safe place, the second one stops at once."""

import contextlib
from collections.abc import Callable
from typing import Self

from app.environment.handover import interrupt, stopping


class Interrupts:
    """While entered, `asked` says whether a stop was asked for; a second Ctrl-C raises KeyboardInterrupt. A service
    manager's polite stop and a closed terminal count like the first one.

    Outside the main thread, where Python allows no signal handlers, it only holds the flag.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.asked = False
        self._on_first = on_first
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._entered.enter_context(stopping(self._ask))
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def _ask(self) -> None:
        if self.asked:
            interrupt()
        self.asked = True
        # A stream may be in the middle of a line and refuse another one: the stop counts more than its announcement.
        with contextlib.suppress(RuntimeError):
            self._on_first()
