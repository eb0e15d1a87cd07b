"""Create's model: the box with all of them, those on this machine first, and a line below it for one that is not here.

The line fetches the model, shows how far that is and how it ended, as the Models tab does: both look at the one fetch
of the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from app import catalogue
from app.catalogue import Listed, download_text
from app.errors import KinetileError, on_page
from app.fetching import Fetching
from app.ui.context import QUICK, Context, bytes_text, escaped
from app.ui.mistakes import place_for
from app.ui.models import act_on_fetch, fetch_progress
from app.ui.models_view import WORDS, ended_html, running_html, to_fetch
from app.ui.rows import HEARD, actions, button, read_data, script

Seen = tuple[int, str, tuple[tuple[str, str], ...]]
"""What this browser tab knows: number and state of the fetch, and the choices."""


@dataclass
class ModelField:
    """The box and its line; `build` makes them, `connect` their events."""

    context: Context
    box: Any = None
    line: Any = None
    seen: Any = None

    def build(self, value: str) -> None:
        """Inside the form that is being built."""

        def progress(_: Any = None) -> dict[str, Any]:  # the browser always sends something
            return fetch_progress(self.context.service)

        names = [(family.title, family.name) for family in self.context.families]
        # a repository or folder that was chosen under Models is none of the choices
        self.box = gr.Dropdown(names, value=value, label="Model", allow_custom_value=True, elem_id="kt-model")
        place_for("model")
        self.line = actions("", script("readouts.js"), server_functions=[progress], elem_id="kt-model-here")
        self.seen = gr.State((0, "none", ()))

    def connect(self) -> None:
        """Look at what is here when the page opens and when a fetch begins or ends."""
        shown = [self.seen, self.box, self.line]
        self.context.page.load(self.show, [self.seen, self.box], shown, **QUICK)
        self.context.version.change(self.refresh, [self.seen, self.box], shown, trigger_mode="always_last", **HEARD)
        self.box.change(self.told, [self.box], [self.line], trigger_mode="always_last", **HEARD)
        self.line.click(self.act, [self.seen, self.box], shown, **HEARD)
        self.line.apply(self.show, [self.seen, self.box], shown, **HEARD)

    def show(self, seen: Seen, model: str) -> list[Any]:
        """What has been seen, the choices where they changed (others may unfold the list), and the line."""
        state, choices = self._state(), self.choices()
        box = gr.skip() if seen[2] == tuple(choices) else gr.update(choices=choices)
        return [(state.number, state.state, tuple(choices)), box, line_html(model, state)]

    def refresh(self, seen: Seen, model: str) -> list[Any]:
        """After something changed: a fetch began or ended, in this browser or another one."""
        state = self._state()
        return [gr.skip()] * 3 if seen[:2] == (state.number, state.state) else self.show(seen, model)

    def told(self, model: str) -> str:
        """The line of another model."""
        return line_html(model, self._state())

    def act(self, seen: Seen, model: str, event: gr.EventData) -> list[Any]:
        """A button of the line."""
        try:
            act_on_fetch(self.context.service, read_data(event))
        except KinetileError as error:
            return [*self.show(seen, model)[:-1], line_html(model, self._state(), on_page(error))]
        return self.show(seen, model)

    def choices(self) -> list[tuple[str, str]]:
        """Title and name of each model, those that are here first; the others say that they are not."""
        rows = [catalogue.listed(family) for family in self.context.families]
        rows.sort(key=lambda row: row.state != "here")
        return [(title_of(row), row.name) for row in rows]

    def _state(self) -> Fetching:
        try:
            return self.context.service.fetching()
        except KinetileError as error:
            return Fetching(state="failed", error=str(error))


def title_of(row: Listed) -> str:
    """As the list of the box names a model: "Wan 2.1 T2V 1.3B · not here, 27.0 GiB"."""
    if row.state == "here":
        return row.title
    size = f", {download_text(row)}" if row.download else ""
    return f"{row.title} · {'partly here' if row.state == 'partly' else 'not here'}{size}"


def line_html(model: str, state: Fetching, refused: str = "") -> str:
    """What there is to do about a model that is not here, or how far its fetch is; empty for one that is here.
    refused: why a button of the line did nothing.
    """
    row = catalogue.offered(model) if isinstance(model, str) else None
    if row is None:
        return ""
    own = state.model in (row.name, row.repo) or state.title == row.title
    if own and not state.is_over:
        return running_html(state)
    ended = ended_html(state) if own and state.is_over else ""
    if row.state == "here":
        return ended
    words = WORDS[row.state].capitalize()
    if row.state == "partly" and row.fetched:
        words += f", {bytes_text(row.fetched)}"
    size = to_fetch(row) if row.download else ""
    facts = " · ".join(escaped(fact) for fact in (words, size, row.licence) if fact)
    text = "Fetch the rest" if row.state == "partly" else "Fetch"
    busy = "" if state.is_over else f"{state.title} is being fetched: wait for it, or stop it under Models."
    said = "".join(f'<p class="kt-problem" role="alert">{escaped(why)}</p>' for why in (refused,) if why)
    wait = f'<p class="kt-hint">{escaped(busy)}</p>' if busy else ""
    fetch = button(text, "fetch", f"{text}: {row.title}", disabled=bool(busy), name=row.name)
    return f'<div class="kt-not-here"><p class="kt-hint">{facts}</p>{fetch}</div>{wait}{said}{ended}'
