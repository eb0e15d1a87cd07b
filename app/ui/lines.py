"""Why something was not done, in a line where the person acted. It stands until the next action of its tab.

lines = Lines()
lines.place("save")                                     where the line is to stand, while the tab is built
save.click(lines.at("save", tab.save, shown), ...,  [*shown, *lines.components])
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr

from app.errors import KinetileError, on_page
from app.ui.context import escaped


class Lines:
    """The lines of one tab by the name of their place."""

    def __init__(self) -> None:
        self._by_place: dict[str, Any] = {}

    def place(self, name: str) -> None:
        """Make the line of a place; it takes no room while there is nothing to say."""
        self._by_place[name] = gr.HTML("", apply_default_css=False, elem_classes=["kt-line-place"])

    @property
    def components(self) -> list[Any]:
        """What every event of the tab has as its last outputs."""
        return list(self._by_place.values())

    def at(
        self,
        place: str,
        function: Callable[..., Sequence[Any]],
        outputs: Sequence[Any],
        refused: Callable[[], Mapping[Any, Any]] | None = None,
    ) -> Callable[..., list[Any]]:
        """An event's function that tells its expected errors at `place` and takes away what stood at any; `outputs` are
        those without the lines. They stay as they are where it fails, but those that `refused` gives values for then.
        """

        @functools.wraps(function)
        def telling(*values: Any, **named: Any) -> list[Any]:
            try:
                done, words = list(function(*values, **named)), ""
            except KinetileError as error:
                instead = refused() if refused is not None else {}
                done = [instead.get(output, gr.skip()) for output in outputs]
                words = f'<p class="kt-problem" role="alert">{escaped(on_page(error))}</p>'
            return [*done, *(words if name == place else "" for name in self._by_place)]

        return telling
