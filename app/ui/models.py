"""Models: what clips can be made with, what of it is on this machine, and fetching the rest.

A fetch belongs to the program, not to the page: closing the page leaves it going, every open tab sees the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from app import catalogue
from app.errors import KinetileError, UsageError
from app.fetching import Fetching
from app.models import family_for
from app.models.sources import resolving
from app.models.sources.cache import REPO
from app.plain import to_data
from app.request import GenerationRequest
from app.ui.context import Context, TabParts, told
from app.ui.endpoints import add_endpoints
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
    panel = actions("", script("readouts.js"), server_functions=[progress], elem_id="kt-fetch")
    listed = actions('<p class="kt-quiet">Looking …</p>', script("models.js"), elem_id="kt-models")
    shown = [seen, panel, listed]
    to_create = [*context.form.components, context.tabs]
    context.version.change(tab.refresh, [seen], shown, trigger_mode="always_last", **HEARD)
    panel.click(told(tab.act), None, shown, **HEARD)
    panel.apply(tab.show, None, shown, **HEARD)
    listed.click(told(tab.act), None, shown, **HEARD)
    listed.apply(told(tab.use_listed), [*context.form.components], to_create, **HEARD)
    fetch.click(told(tab.fetch_typed), [other], shown, **HEARD)
    use.click(told(tab.use), [other, *context.form.components], to_create, **HEARD)
    tab.add_endpoints()
    return TabParts(on_load=[(tab.show, shown)])


@dataclass
class _Tab:
    """The events' functions. `shown` values: what this browser tab has seen, how the fetch stands, the list."""

    context: Context

    def show(self) -> list[Any]:
        """Everything as it stands."""
        try:
            state = self.context.service.fetching()
        except KinetileError as error:
            state = Fetching(state="failed", error=str(error))
        rows = [catalogue.listed(family) for family in self.context.families]
        panel = panel_html(state, {row.name for row in rows})
        return [(state.number, state.state), panel, list_html(rows, state)]

    def refresh(self, seen: tuple[int, str]) -> list[Any]:
        """After something changed: a fetch began or ended, in this browser or another one."""
        try:
            state = self.context.service.fetching()
        except KinetileError:
            return [gr.skip()] * 3
        return [gr.skip()] * 3 if tuple(seen) == (state.number, state.state) else self.show()

    def progress(self) -> dict[str, Any]:
        """How far the fetch is, for the browser's own timer."""
        try:
            now = self.context.service.fetching()
        except KinetileError:
            return {"over": True, "number": 0}
        percent = round(now.progress.fraction * 100)
        return {"over": now.is_over, "number": now.number, "words": progress_words(now), "percent": percent}

    def fetch_typed(self, model: str) -> list[Any]:
        """Begin to fetch the model that was typed."""
        return self._begin(written(model))

    def act(self, event: gr.EventData) -> list[Any]:
        """A button of the panel or of the list: fetch that model, end the fetch (what came is kept), or tell no more
        how the last one ended.
        """
        data, service = read_data(event), self.context.service
        match data.get("do"):
            case "fetch":
                return self._begin(data.get("name", ""))
            case "stop":
                service.stop_fetching()
            case "dismiss":
                service.forget_fetch()
        return self.show()

    def _begin(self, model: str) -> list[Any]:
        """Whatever comes of it, the last fetch is told of no more: what is refused now would stand beside it."""
        self.context.service.forget_fetch()
        self.context.service.fetch(model)
        return self.show()

    def use_listed(self, event: gr.EventData, *values: Any) -> list[Any]:
        """Open Create with a model of the list."""
        return self.use(read_data(event).get("name", ""), *values)

    def use(self, model: str, *values: Any) -> list[Any]:
        """Open Create with that model and its own sizes and steps; the prompt stays. Raises UsageError for what is no
        model, and for a repository that must be fetched first.
        """
        self.context.service.forget_fetch()
        name = written(model)
        if name.startswith(resolving.HUB) and catalogue.missing([name]):
            raise UsageError(f"{name} is not on this machine, or not all of it: press Fetch first.")
        name = family_for(name).name
        kept = self.context.form.read(*values)
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


def written(model: str) -> str:
    """What was typed, as a request names it: a repository's page or bare name counts as the repository."""
    text = model.strip()
    page = text.partition("huggingface.co/")[2].strip("/") if "://" in text else ""
    repo = "/".join(page.split("/")[:2]) if page else text
    return resolving.HUB + repo if REPO.fullmatch(repo) else text
