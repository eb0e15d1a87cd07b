"""The accelerators that came into Create with a clip or a preset: told in words above Generate, taken away by a button.

The rule: what was taken over goes before the switches of the Accelerate tab, so that the same clip comes again, and
this stands where Generate is pressed. Of a clip only what differs from the switches as they stand now is taken over;
the rest, and whatever the clip left to automatic, is for the switches. A preset's choices are all taken over.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.errors import KinetileError
from app.queue.jobs import JobSpec
from app.request import AccelPreferences, GenerationRequest
from app.ui.accelerate_view import CHOICES, GROUPS
from app.ui.context import escaped
from app.ui.form import carried_of
from app.ui.rows import button, clock, script, shortened

TITLES: dict[str, str] = {
    **{name: row[0] for name, row in GROUPS.items()},
    **{name: row[0] for name, row in CHOICES.items()},
    "text_encoder_linear": "Text encoder's linears",
    "exact_steps": "Exact steps",
    "gpus": "GPUs together",
}
_LINE = (
    '<div class="kc-line" role="status" hidden><p class="kt-hint"></p>'
    f"{button('Use my switches instead', 'drop', 'Use the switches of the Accelerate tab instead')}</div>"
)


def carried_field(value: str) -> Any:
    """The field whose value is the accelerators taken over, as JSON; it draws itself from it."""

    def told(what: dict[str, Any]) -> str:
        return sentence(str(what.get("value", "")) if isinstance(what, dict) else "")

    return gr.HTML(
        value,
        html_template=_LINE,
        js_on_load=script("carried.js"),
        server_functions=[told],
        apply_default_css=False,
        elem_id="kt-carried",
    )


def sentence(value: str) -> str:
    """What the field holds, in one sentence; empty for nothing."""
    try:
        wishes = carried_of(value).get("accel", {})
        words = in_words(AccelPreferences.model_validate(wishes))
    except (KinetileError, ValueError):
        return "The accelerators that were taken over can't be read any more."
    named = ", ".join(f"{title[0].lower()}{title[1:]} {choice}" for title, choice in words)
    return f"Accelerators come from the clip or preset, not from your switches: {named}." if named else ""


def whose(name: str, made: float | None = None) -> str:
    """The quiet line above the form about what was taken over: the clip made at that time, or the preset, so called."""
    when = f", made {clock(made)}" if made else ""
    return f'<p class="kt-hint" role="status">Taken over: settings of {escaped(f"“{shortened(name, 60)}”{when}")}.</p>'


def of_the_switches(request: GenerationRequest, switches: AccelPreferences) -> str:
    """What the switches of the Accelerate tab ask for in a clip of `request`, in a few words; empty for nothing."""
    own = request.accel.model_dump()
    left: dict[str, Any] = {name: "auto" for name, choice in own.items() if name != "gpus" and choice != "auto"}
    named = in_words(switches.model_copy(update={**left, "gpus": 1}))
    return f"Accelerate: {', '.join(f'{title} {choice}' for title, choice in named)}" if named else ""


def in_words(wishes: AccelPreferences) -> list[tuple[str, str]]:
    """Title and choice of each setting that is not left to automatic, as the Accelerate tab calls them."""
    found = wishes.model_dump(exclude_defaults=True)
    return [
        (TITLES[name], dict(CHOICES[name][2]).get(choice, choice) if name in CHOICES else str(choice))
        for name, choice in found.items()
    ]


def taken_over(spec: JobSpec, switches: AccelPreferences) -> GenerationRequest:
    """What a clip was asked for, to be asked for again: its accelerators as far as they differ from the switches."""
    asked, now = spec.again, switches.model_dump(exclude={"gpus"})
    same: dict[str, Any] = {name: "auto" for name, choice in now.items() if getattr(asked.accel, name) == choice}
    return asked.model_copy(update={"accel": asked.accel.model_copy(update=same)})
