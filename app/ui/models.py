"""Models: what clips can be made with, what of it is on this machine, and fetching the rest.

A fetch belongs to the program, not to the page: closing the page leaves it going, every open tab sees the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app import catalogue
from app.errors import KinetileError, UsageError, on_page
from app.fetching import Fetching
from app.models import family_for
from app.models.sources import resolving
from app.models.sources.cache import REPO
from app.plain import to_data
from app.queue.service import Service
from app.request import GenerationRequest
from app.ui.context import TO_FORM, Context, TabParts
from app.ui.endpoints import add_endpoints
from app.ui.lines import Lines
from app.ui.models_view import ABOUT, list_html, panel_html, progress_words
from app.ui.rows import HEARD, actions, read_data, script


def build(context: Context) -> TabParts:
    """The tab's components and events, inside the `gr.Tab` that is open."""
    tab = _Tab(context)

    def progress(_: Any = None) -> dict[str, Any]:  # the browser always sends something
        return tab.progress()

    gr.HTML(f'<p class="kt-quiet">{ABOUT}</p>', apply_default_css=False)
    seen = gr.State((0, "none"))
    with gr.Row(elem_classes=["kt-rename", "kt-own-model"]):
        other = gr.Textbox(
            label="Another model: a repository, or a folder or file of this machine",
            placeholder="hf:OWNER/NAME, /models/my-model, /models/transformer.gguf",
            max_lines=1,
            max_length=300,
            scale=3,
            elem_id="kt-other-model",
        )
        use = gr.Button("Use in Create", scale=0, min_width=120, size="sm", elem_id="kt-use-model")
        fetch = gr.Button("Fetch", scale=0, min_width=100, size="sm", elem_id="kt-fetch-model")
    lines = Lines()
    lines.place("other")
    panel = actions("", script("readouts.js"), server_functions=[progress], elem_id="kt-fetch")
    listed = actions('<p class="kt-quiet">Looking …</p>', script("models.js"), elem_id="kt-models")
    shown = [seen, panel, listed]
    form = context.form.components
    to_create = [*form, context.tabs]

    def heard(event: Any, function: Any, inputs: list[Any], outputs: list[Any]) -> Any:
        return event(lines.at("other", function, outputs), inputs, [*outputs, *lines.components], **HEARD)

    context.version.change(tab.refresh, [seen], shown, trigger_mode="always_last", **HEARD)
    panel.apply(tab.show, None, shown, **HEARD)
    heard(panel.click, tab.act, [], shown)
    heard(listed.click, tab.act_in_list, [], shown)
    heard(listed.apply, tab.use_listed, form, to_create).then(**TO_FORM)
    heard(fetch.click, tab.fetch_typed, [other], shown)
    heard(use.click, tab.use, [other, *form], to_create).then(**TO_FORM)
    tab.add_endpoints()
    return TabParts(on_load=[(tab.show, shown)])


@dataclass
class _Tab:
    """The events' functions. `shown` values: what this browser tab has seen, how the fetch stands, the list."""

    context: Context

    def show(self, refused: tuple[str, str] = ("", "")) -> list[Any]:
        """Everything as it stands. refused: the model whose button did nothing, and why."""
        try:
            state = self.context.service.fetching()
        except KinetileError as error:
            state = Fetching(state="failed", error=str(error))
        rows = [catalogue.listed(family) for family in self.context.families]
        panel = panel_html(state, {row.name for row in rows})
        return [(state.number, state.state), panel, list_html(rows, state, refused)]

    def refresh(self, seen: tuple[int, str]) -> list[Any]:
        """After something changed: a fetch began or ended, in this browser or another one."""
        try:
            state = self.context.service.fetching()
        except KinetileError:
            return [gr.skip()] * 3
        return [gr.skip()] * 3 if tuple(seen) == (state.number, state.state) else self.show()

    def progress(self) -> dict[str, Any]:
        """How far the fetch is, for the browser's own timer."""
        return fetch_progress(self.context.service)

    def fetch_typed(self, model: str) -> list[Any]:
        """Begin to fetch the model that was typed."""
        self.context.service.forget_fetch()
        act_on_fetch(self.context.service, {"do": "fetch", "name": _given(model)})
        return self.show()

    def act(self, event: gr.EventData) -> list[Any]:
        """A button of the panel: end the fetch (what came is kept), or tell no more how the last one ended."""
        act_on_fetch(self.context.service, read_data(event))
        return self.show()

    def act_in_list(self, event: gr.EventData) -> list[Any]:
        """A button of the list, which fetches its model too; why it does not is told in that row."""
        data = read_data(event)
        try:
            act_on_fetch(self.context.service, data)
        except KinetileError as error:
            return self.show((data.get("name", ""), on_page(error)))
        return self.show()

    def use_listed(self, event: gr.EventData, *values: Any) -> list[Any]:
        """Open Create with a model of the list."""
        return self.use(read_data(event).get("name", ""), *values)

    def use(self, model: str, *values: Any) -> list[Any]:
        """Open Create with that model and its own sizes and steps; the prompt stays. Raises UsageError for what is no
        model, and for a repository that must be fetched first.
        """
        self.context.service.forget_fetch()
        name = _given(model)
        if name.startswith(resolving.HUB) and catalogue.missing([name]):
            raise UsageError(f"{name} is not on this machine, or not all of it: press Fetch first.")
        name = family_for(name).name
        kept, _ = self.context.form.look(*values)
        fresh = GenerationRequest(model=name, prompt=kept.prompt, seed=kept.seed, count=kept.count)
        return [*self.context.form.fill(fresh), self.context.show_create()]

    def add_endpoints(self) -> None:
        """Register the endpoints on the page that is being built."""

        def fetch(model: str) -> int:
            """Bring a model onto this machine: a name of /models, or hf:OWNER/NAME. Returns the fetch's number at
            once."""
            return self.context.service.fetch(written(model))

        def fetching() -> dict[str, Any]:
            """How the newest fetch stands: state, bytes, speed, seconds left, and why there is no model where it
            failed."""
            return to_data(self.context.service.fetching())

        def fetch_stop() -> None:
            """Stop the fetch that is going on; what came is kept."""
            self.context.service.stop_fetching()

        add_endpoints(fetch, fetching, fetch_stop)


def act_on_fetch(service: Service, data: Mapping[str, str]) -> None:
    """What a button says that is about fetching. Whatever comes of a new fetch, the last one is told of no more: what
    is refused now would stand beside it.
    """
    match data.get("do"):
        case "fetch":
            service.forget_fetch()
            service.fetch(data.get("name", ""))
        case "stop":
            service.stop_fetching()
        case "dismiss":
            service.forget_fetch()


def fetch_progress(service: Service) -> dict[str, Any]:
    """How far the fetch is, as `assets/readouts.js` reads it."""
    try:
        now = service.fetching()
    except KinetileError:
        return {"over": True, "number": 0}
    percent = round(now.progress.fraction * 100)
    return {"over": now.is_over, "number": now.number, "words": progress_words(now), "percent": percent}


def _given(model: str) -> str:
    """What was typed, as `written` reads it. Raises UsageError for nothing."""
    if not model.strip():
        raise UsageError("Nothing is written there yet: write a repository (OWNER/NAME), or a folder or file.")
    return written(model)


def written(model: str) -> str:
    """What was typed, as a request names it: a repository's page or bare name counts as the repository."""
    text = model.strip()
    page = text.partition("huggingface.co/")[2].strip("/") if "://" in text else ""
    repo = "/".join(page.split("/")[:2]) if page else text
    return resolving.HUB + repo if REPO.fullmatch(repo) else text
