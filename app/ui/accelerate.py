"""Accelerate: what this machine has, every backend with its state and reason, and switches that are kept.

A switch acts on the next job; a clip that is being made goes on as it began. What the switches mean is `switched`:
turning a backend on chooses it, and turning that off again returns to automatic; turning off what automatic took means
plain PyTorch, which has a row and a switch of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from app.answers import Accelerator
from app.errors import CannotRunError, KinetileError, UsageError
from app.models import family_for, sources
from app.plain import to_data
from app.queue.service import with_preferences
from app.request import MAX_GPUS, AccelPreferences, GenerationRequest
from app.ui.accelerate_view import BELOW, CHOICES, GROUPS, machine_html, table_html
from app.ui.context import Context, TabParts, sentences_html, told
from app.ui.endpoints import add_endpoints
from app.ui.readouts import Readouts
from app.ui.rows import HEARD, actions, read_data, script


@dataclass(frozen=True)
class Seen:
    """What the table of this browser tab was made of: the newest finished clip that is counted in, the preferences, and
    the newest measurement and its state."""

    last: int = -1
    preferences: AccelPreferences | None = None
    measured: tuple[int, str] = (0, "none")


def build(context: Context) -> TabParts:
    """The tab's components and events, inside the `gr.Tab` that is open."""
    seen = gr.State(Seen())
    models = [(family.title, family.name) for family in context.families]
    with gr.Row(elem_classes=["kt-filters"], visible=len(models) > 1):
        model = gr.Dropdown(models, value=models[0][1], label="For the model")
    machine = gr.HTML(machine_html(None), apply_default_css=False, elem_id="kt-machine")
    problem = gr.HTML("", apply_default_css=False, elem_id="kt-accel-problem")
    looking = '<p class="kt-quiet">Looking at this machine …</p>'
    table = actions(looking, script("details.js"), elem_id="kt-accelerators")
    gr.HTML(
        '<p class="kt-quiet">Switches are kept and act on the next clip. A hollow switch is what automatic took: press '
        "it for plain PyTorch in its place, the first row of each group. A full one is your own choice: press it again "
        "to return to automatic. Automatic chooses the fastest exact backend that this machine has proved; approximate "
        "ones are used when you switch them on, or when a full benchmark found them faster and their clips alike.</p>",
        apply_default_css=False,
    )
    rest = gr.HTML("", apply_default_css=False, elem_id="kt-machine-rest")

    readouts = Readouts(context, model)
    measured = readouts.build()
    tab = _Tab(context, readouts)
    shown = [seen, table, problem]
    clip = [model, context.form.by_name["gpus"]]
    context.version.change(
        tab.refresh,
        [seen, *clip, readouts.state, readouts.pair],
        [*shown, *measured],
        trigger_mode="always_last",
        **HEARD,
    )
    gr.on([one.change for one in clip], told(tab.show), clip, shown, trigger_mode="always_last", **HEARD)
    table.click(told(tab.switch), clip, shown, **HEARD)
    tab.add_endpoints()
    first = models[0][1]
    return TabParts(
        on_load=[
            (lambda: tab.load(first), shown),
            (tab.machine, [machine, rest]),
            (lambda: readouts.show(first), measured),
        ]
    )


@dataclass
class _Tab:
    """The events' functions; each returns what the table is made of, the table, and a problem or nothing."""

    context: Context
    readouts: Readouts

    def load(self, model: str, gpus: object = 1) -> list[Any]:
        """What a page shows that was just opened."""
        try:
            return self.show(model, gpus)
        except KinetileError as error:
            return [Seen(), "", machine_html(None, str(error))]

    def show(self, model: str, gpus: object = 1) -> list[Any]:
        """The table for a model as things stand, on as many GPUs as Create asks for; on one where that can't be."""
        seen = self._seen()  # not after the rows, which can take long: what happens meanwhile is still to be told
        preferences, count, problem = self.context.service.preferences(), _count(gpus), ""
        try:
            rows = self.rows(model, count)
        except KinetileError as error:
            if count == 1 or not isinstance(error, CannotRunError):
                return self._without_table(seen, error)
            problem = sentences_html([f"{error} The table is for one device."], "bad")
            try:
                rows, count = self.rows(model), 1
            except KinetileError as other:
                return self._without_table(seen, other)
        return [seen, table_html(rows, preferences, count), problem]

    def _without_table(self, seen: Seen, error: KinetileError) -> list[Any]:
        """What is shown of a model of which nothing can be said; whatever happens next, that is tried again."""
        return [replace(seen, preferences=None), "", machine_html(None, str(error))]

    def rows(self, model: str, gpus: int = 1) -> tuple[Accelerator, ...]:
        """Every backend for clips of the model's usual size, under the stored preferences. Raises CannotRunError where
        so many GPUs can't make one.
        """
        service, family = self.context.service, family_for(model)
        if why := sources.why_not_here(family):
            raise CannotRunError(why)
        # with a prompt there is guidance, whose two branches are dealt out; what the pictures show changes no verdict
        pictures: dict[str, Any] = dict.fromkeys(family.needs, "any.png")
        asked = GenerationRequest(model=model, prompt="any", accel=AccelPreferences(gpus=gpus), **pictures)
        return service.accelerators(with_preferences(family.normalise(asked).request, service.preferences()))

    def refresh(self, seen: Seen, model: str, gpus: object, measuring: tuple[int, str] | None, pair: int) -> list[Any]:
        """After a clip ended, a switch was moved in another browser, or a measurement began or ended. measuring and
        pair: what the readouts show, which may be other news than the table's."""
        now = self._seen()
        measured = [gr.skip()] * 9 if measuring == now.measured else self.readouts.show(model, pair)
        if seen == now or (replace(seen, measured=now.measured) == now and now.measured[1] != "done"):
            return [now, gr.skip(), gr.skip(), *measured]
        return [*self.load(model, gpus), *measured]

    def _seen(self) -> Seen:
        service = self.context.service
        newest = service.history(limit=1, states=("done",)).jobs
        state = service.measuring()
        return Seen(newest[0].id if newest else -1, service.preferences(), (state.number, state.state))

    def switch(self, model: str, gpus: object, event: gr.EventData) -> list[Any]:
        """A switch was moved. What can't be is refused with its sentence, and nothing changes."""
        data = read_data(event)
        setting, name, on = data.get("setting", ""), data.get("name", ""), data.get("on") == "on"
        service = self.context.service
        before = service.preferences()
        if data.get("do") == "choose":
            after = chosen(before, setting, name)
        else:
            after = switched(before, self.rows(model), setting, name, on)
        service.set_preferences(after)
        return self.show(model, gpus)

    def machine(self) -> tuple[str, str]:
        """The doctor's sentences, above and below the table."""
        try:
            report = self.context.service.doctor()
        except KinetileError as error:
            return machine_html(None, str(error)), ""
        return machine_html(report), machine_html(report, names=BELOW)

    def add_endpoints(self) -> None:
        """Register the endpoints on the page that is being built."""

        def accelerators(model: str = "starter", gpus: int = 1) -> list[dict[str, Any]]:
            """Every backend of every stage, for clips that so many GPUs make together: state, reasons, and what the
            last clip counted."""
            return [to_data(row) for row in self.rows(model, _count(gpus))]

        def accelerate(setting: str, choice: str) -> dict[str, Any]:
            """Choose a backend (or dtype, or compile) for the next clips: its name, or "auto". Returns all settings."""
            self.context.service.set_preferences(chosen(self.context.service.preferences(), setting, choice))
            return self.context.service.preferences().model_dump()

        def preferences() -> dict[str, Any]:
            """The accelerators that are chosen for the next clips."""
            return self.context.service.preferences().model_dump()

        def doctor() -> dict[str, Any]:
            """What this machine has, what is used, what is missing and what could be turned on."""
            return self.context.service.doctor()

        add_endpoints(accelerators, accelerate, preferences, doctor)


def _count(gpus: object) -> int:
    """GPUs together, as a field has them; one where that is no such number, which Create itself tells."""
    return int(gpus) if isinstance(gpus, (int, float)) and gpus in range(1, MAX_GPUS + 1) else 1


def chosen(preferences: AccelPreferences, setting: str, choice: str) -> AccelPreferences:
    """With one setting chosen. Raises UsageError for a setting that does not exist."""
    if setting not in GROUPS and setting not in CHOICES:
        raise UsageError(f"{setting[:40]!r} is no setting; possible: {', '.join([*GROUPS, *CHOICES])}.")
    if setting in CHOICES and choice not in dict(CHOICES[setting][2]):
        possible = ", ".join(value for value, _ in CHOICES[setting][2])
        raise UsageError(f"{setting}: {choice[:40]!r} is not possible; choose one of {possible}.")
    return preferences.model_copy(update={setting: choice})


def switched(
    preferences: AccelPreferences, rows: Sequence[Accelerator], setting: str, name: str, on: bool
) -> AccelPreferences:
    """The preferences after a switch was moved; name: the backend's, "" for the switch "automatic".

    Raises UsageError for a setting or backend that does not exist.
    """
    own = [row for row in rows if row.setting == setting]
    reference = next((row.name for row in own if row.reference), "auto")
    if not name:
        engaged = next((row.name for row in own if row.state == "on"), reference)
        return chosen(preferences, setting, "auto" if on else engaged)
    row = next((row for row in own if row.name == name), None)
    if row is None:
        raise UsageError(f"{name[:40]!r} is no backend for {setting[:40]}; reload the page.")
    if on:
        return chosen(preferences, setting, name)
    if getattr(preferences, setting) != "auto":
        return chosen(preferences, setting, "auto")
    if row.reference:
        raise UsageError(
            f"{row.title} is what automatic took, and what is left where every other row is off: to use another one, "
            "press the switch of its row."
        )
    return chosen(preferences, setting, reference)
