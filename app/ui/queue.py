"""Queue and history: what runs and waits, and everything that was made, page by page from the database.

What is shown comes from the service whenever its version grows, never from this browser tab: a second browser, a
reload or a closed tab change nothing. The tab only remembers which page of the history it looks at, and which clip.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gradio as gr

from app.errors import KinetileError, UsageError, on_page
from app.presets import encode_code
from app.queue.jobs import ENDED, Job, JobState, Removal
from app.queue.service import UNDO_SECONDS, Service
from app.ui import queue_endpoints
from app.ui.carried import taken_over, whose
from app.ui.context import QUICK, TO_FORM, Context, TabParts, plural, told
from app.ui.queue_view import PAGE, View, clip_html, history_html, name_of, progress_of, queue_html
from app.ui.rows import HEARD, actions, read_data, read_number, script, shortened
from app.ui.undo import offer, said, undo_bar

FILTERS: tuple[tuple[str, tuple[JobState, ...]], ...] = (
    ("All", ENDED),
    ("Done", ("done",)),
    ("Failed", ("failed", "crashed")),
    ("Cancelled", ("cancelled",)),
)
MAX_SEARCH = 200


def build(context: Context) -> TabParts:
    """The tab's components and events, inside the `gr.Tab` that is open."""
    tab = _Tab(context)
    view = gr.State(View())

    def running(_: Any = None) -> dict[str, Any]:  # the browser always sends something
        return tab.running()

    with gr.Column(elem_classes=["kt-section"]):
        gr.HTML('<h2 class="kt-heading">Queue</h2>', apply_default_css=False)
        queue = actions(elem_id="kt-queue", more=script("queue.js"), server_functions=[running])
    gr.HTML('<h2 class="kt-heading">History</h2>', apply_default_css=False)
    with gr.Row(elem_classes=["kt-filters"]):
        search = gr.Textbox(
            label="Search prompts", placeholder="every word must be in it", max_length=MAX_SEARCH, scale=3, max_lines=1
        )
        states = gr.Radio([name for name, _ in FILTERS], value="All", label="Show", scale=2, elem_classes=["kt-states"])
    with gr.Row(elem_classes=["kt-history"]):
        with gr.Column(scale=2, min_width=300, elem_classes=["kt-history-grid"]):
            history = actions(elem_id="kt-history")
        with gr.Column(scale=1, min_width=300, elem_classes=["kt-history-clip"]):
            clip = actions(clip_html(None, context), script("detail.js"), elem_id="kt-clip")
    notice = undo_bar(elem_id="kt-queue-notice")

    shown = [view, queue, history, clip]
    context.version.change(tab.refresh, [view], shown, **QUICK)
    for changed in (search.change, states.change):  # `input` is not told of everything that is pasted
        changed(tab.searched, [view, search, states], shown, trigger_mode="always_last", **QUICK)
    for listed in (queue, history, clip):
        listed.click(told(tab.act), [view], [*shown, notice], **HEARD)
    history.select(told(tab.choose), [view], shown, **HEARD)
    clip.apply(told(tab.restore), None, [*context.form.components, context.form.source, context.tabs], **HEARD).then(
        **TO_FORM
    )
    notice.undo(told(tab.undo), [view], [*shown, notice], **HEARD)
    queue_endpoints.add(context)
    return TabParts(on_load=[(tab.first, shown)])


class _Tab:
    """The events' functions: each takes the view and returns the next one with whatever looks different now."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @property
    def service(self) -> Service:
        """The one of the moment: when its owner is gone, the page opens another."""
        return self.context.service

    # -- showing --

    def running(self) -> dict[str, Any]:
        """How far the running job is, for the browser's own timer: words and numbers, no markup."""
        now = self.service.snapshot()
        if now.running is None:
            return {}
        words, percent = progress_of(now.progress)
        return {"job": now.running.id, "words": words, "percent": percent}

    def first(self) -> tuple[Any, ...]:
        """What a page shows that was just opened."""
        return self.refresh(View())

    def refresh(self, view: View) -> tuple[Any, ...]:
        """The view and the three lists; those that look as before are not sent."""
        found = self.service.history(view.search, view.offset, PAGE, view.states)
        if view.offset and view.offset >= found.total:  # the last page emptied
            view = replace(view, offset=max(0, (found.total - 1) // PAGE * PAGE))
            found = self.service.history(view.search, view.offset, PAGE, view.states)
        job = self._chosen(view)
        code = _code(job) if job is not None and view.shared == job.id else ""
        chosen = job.id if job is not None else -1
        now = (
            queue_html(self.service.snapshot()),
            history_html(found, replace(view, chosen=chosen), self.context),
            clip_html(job, self.context, code),
        )
        updates = [text if text != before else gr.skip() for text, before in zip(now, view.shown, strict=True)]
        return replace(view, chosen=chosen, shown=now), *updates

    def _chosen(self, view: View) -> Job | None:
        if view.chosen < 0:
            return None
        try:
            (job,) = self.service.get([view.chosen])
        except UsageError:
            return None
        return job if job.is_over else None

    def searched(self, view: View, search: str, states: str) -> tuple[Any, ...]:
        """Another search or another kind of clips, from the newest on."""
        kinds = dict(FILTERS).get(states, ENDED)
        return self.refresh(replace(view, search=(search or "")[:MAX_SEARCH], states=kinds, offset=0))

    def choose(self, view: View, event: gr.EventData) -> tuple[Any, ...]:
        """One clip, with all about it."""
        return self.refresh(replace(view, chosen=read_number(read_data(event), "job"), shared=-1))

    # -- doing --

    def act(self, view: View, event: gr.EventData) -> tuple[Any, ...]:
        """What a button in one of the lists says. Returns the shown and the notice."""
        data = read_data(event)
        do, job = data.get("do", ""), read_number(data, "job")
        if do == "page":
            return *self.refresh(replace(view, offset=max(0, read_number(data, "to")))), gr.skip()
        if do == "share":
            return *self.refresh(replace(view, shared=job)), gr.skip()
        if do in ("remove", "delete", "remove_all"):
            return self._remove(view, do, job)
        words = self._simple(do, job, read_number(data, "place"))
        view = replace(view, notices=view.notices + 1)
        return *self.refresh(view), said(words, view.notices) if words else gr.skip()

    def _simple(self, do: str, job: int, place: int) -> str:
        """An action on a job that needs no way back; returns what to say of it."""
        service = self.service
        waiting = [one.id for one in service.snapshot().waiting] if do in ("hold_all", "release_all") else []
        known: dict[str, tuple[Callable[[], Any], str]] = {
            "up": (lambda: service.move(job, max(0, place - 1)), ""),
            "down": (lambda: service.move(job, place + 1), ""),
            "first": (lambda: service.move(job, 0), ""),
            "hold": (lambda: service.hold([job]), ""),
            "release": (lambda: service.hold([job], False), ""),
            "hold_all": (lambda: service.hold(waiting), ""),
            "release_all": (lambda: service.hold(waiting, False), ""),
            "cancel": (lambda: service.cancel([job]), ""),
            "retry": (lambda: service.retry(job), "Queued anew."),
            "duplicate": (lambda: service.duplicate(job), "Queued once more."),
            "sibling": (lambda: service.duplicate(job, new_seed=True), "Queued with another seed."),
        }
        if do not in known:
            raise UsageError(f"{do[:40]!r} is nothing that can be done here; reload the page.")
        action, words = known[do]
        action()
        return words

    def _remove(self, view: View, do: str, job: int) -> tuple[Any, ...]:
        ids = [one.id for one in self.service.snapshot().waiting] if do == "remove_all" else [job]
        if not ids:
            return *self.refresh(view), gr.skip()
        first = self.service.get(ids[:1])[0]
        name = shortened(name_of(first), 40)
        removal = self.service.remove(ids)
        what = f"{plural(len(ids), 'job')} removed." if len(ids) > 1 else f"“{name}” removed."
        if first.result is not None:
            what += f" Its files go after {UNDO_SECONDS / 60:g} minutes."
        view = replace(view, notices=view.notices + 1, chosen=-1 if view.chosen in ids else view.chosen)
        return *self.refresh(view), offer(what, view.notices, token=removal.token, job=job)

    def undo(self, view: View, event: gr.EventData) -> tuple[Any, ...]:
        """Bring back what the notice is about."""
        data = read_data(event)
        back = self.service.undo(Removal(data.get("token", ""), ()))
        words = f"“{shortened(name_of(back[0]), 40)}” is back." if len(back) == 1 else f"{len(back)} jobs are back."
        chosen = back[0].id if len(back) == 1 and back[0].is_over else view.chosen
        view = replace(view, notices=view.notices + 1, chosen=chosen)
        return *self.refresh(view), said(words, view.notices)

    def restore(self, event: gr.EventData) -> list[Any]:
        """The clip's settings in the Create form, as they were asked for, and Create in front."""
        (job,) = self.service.get([read_number(read_data(event), "job")])
        asked = taken_over(job.spec, self.service.preferences())
        return [*self.context.form.fill(asked), whose(name_of(job), job.ended), self.context.show_create()]


def _code(job: Job) -> str:
    try:
        return encode_code(job.spec.again)
    except KinetileError as error:
        return on_page(error)
