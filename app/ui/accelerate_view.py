"""The Accelerate tab as markup: what the machine has, and one row per backend and stage with its state and switch.

Colour never speaks alone: each state stands there in words, behind a mark of its own shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from accel.doctor import NOTHING
from accel.precision import BF16_COST
from accel.readouts import words
from app.answers import Accelerator
from app.errors import on_page
from app.request import AccelPreferences
from app.ui.context import escaped, plural, sentences_html
from app.ui.rows import button

Look = Literal["proved", "unproved", "plain", "off", "unavailable"]

GROUPS: Mapping[str, tuple[str, str]] = {
    "attention": ("Attention", "of the transformer: most of a clip's time for long or large clips"),
    "linear": ("Linears", "of the transformer"),
    "text_encoder_linear": ("Text encoder", "its linears, once per clip"),
    "vae": ("Decoding", "the VAE: latents to frames"),
    "cache": ("Step cache", "what steps have in common is computed once: faster, and the clip changes"),
}
"""Title and meaning of each setting, in the order of the page."""

CHOICES: Mapping[str, tuple[str, str, tuple[tuple[str, str], ...]]] = {
    "dtype": (
        "Precision",
        f"the numbers that the model computes with; {BF16_COST}",
        (("auto", "Automatic"), ("float32", "fp32"), ("bfloat16", "bf16"), ("float16", "fp16")),
    ),
    "compile": (
        "Compiled blocks",
        "torch.compile for the transformer: slow first clip, faster later ones of the same size",
        (("auto", "Automatic"), ("yes", "On"), ("no", "Off")),
    ),
    "offload": (
        "Where weights wait",
        "on a GPU that is too small: whole parts, blocks or layers come to it when they work",
        (
            ("auto", "Automatic"),
            ("none", "On the GPU"),
            ("model", "Parts move"),
            ("group", "Blocks move"),
            ("sequential", "Layers move"),
        ),
    ),
    "tiling": (
        "Decode in tiles",
        "less memory for large frames; slower, and seams may show",
        (("auto", "Automatic"), ("on", "On"), ("off", "Off")),
    ),
    "text_encoder": (
        "Text encoder",
        "free its memory once the prompt is read; it is read again for each new prompt",
        (("auto", "Automatic"), ("keep", "Kept"), ("free", "Freed")),
    ),
}
"""Settings that are no backend: title, meaning, and what can be chosen."""

HEADINGS: Mapping[str, str] = {
    "have": "What this machine has",
    "missing": "What is missing, and what to do",
    "use": "What would be used for a large model",
    "could": "What could be turned on",
}
ABOVE, BELOW = ("have", "missing"), ("use", "could")
"""Where the doctor's sections stand: facts above the table, what follows from them below it."""

MARKS: Mapping[Look, str] = {"proved": "●", "unproved": "◐", "plain": "○", "off": "–", "unavailable": "×"}


_ADD = re.compile(r"add `--accel [^`]+`")
"""What the doctor says for a terminal; here are the switches."""
_REMEDY = re.compile(r"install|choose|switch|set |update|upgrade|build|dtype|compil|host|again|made for", re.IGNORECASE)
"""A reason that says itself what would help; a missing instruction or chip does not."""


@dataclass(frozen=True)
class State:
    """How a row looks: `look` chooses colour and mark, `words` say it."""

    look: Look
    words: str


def state_of(row: Accelerator) -> State:
    """Green is only for what is engaged, exact, and served every call of the last clip."""
    if row.state == "unavailable":
        return State("unavailable", "unavailable")
    if row.state == "off":
        return State("off", "off")
    how = "on, chosen by you" if row.forced else "on, automatically"
    if row.reference:
        return State("plain", f"{how}: plain PyTorch")
    if not row.exact:
        return State("unproved", f"{how}: approximate")
    if not row.calls:
        return State("unproved", f"{how}: not proved by a clip yet")
    if row.served < row.calls:
        return State("unproved", f"{how}: some calls fell back")
    return State("proved", f"{how}: proved by the last clip")


def counts_of(row: Accelerator) -> str:
    """What the last clip counted."""
    if not row.calls:
        return "–"
    if row.setting == "cache":
        return f"{row.served:,} of {row.calls:,} saved"
    fallen = row.calls - row.served
    return f"{row.served:,} of {plural(row.calls, 'call')}" + (f", {fallen:,} fell back" if fallen else "")


COLUMNS = ("Backend", "State", "Why", "Speed-up", "Error", "Of peak", "Last clip", "Switch")


def table_html(rows: Sequence[Accelerator], preferences: AccelPreferences, gpus: int = 1) -> str:
    """Every backend by setting, and the other choices. gpus: how many make the clips that the rows are about."""
    groups = "".join(
        _group(setting, [row for row in rows if row.setting == setting], preferences)
        for setting in GROUPS
        if any(row.setting == setting for row in rows)
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    together = f'<p class="kt-quiet">For clips that {gpus} GPUs make together, as Create asks.</p>' if gpus > 1 else ""
    return (
        f'{together}<table class="kt-accel"><thead><tr>{head}</tr></thead>{groups}</table>'
        f'<div class="kt-choices">{"".join(_choice(name, preferences) for name in CHOICES)}</div>'
    )


def _group(setting: str, rows: Sequence[Accelerator], preferences: AccelPreferences) -> str:
    title, meaning = GROUPS[setting]
    automatic = getattr(preferences, setting) == "auto"
    switch = _switch(automatic, f"{title}: choose automatically", "automatic", setting=setting, name="")
    head = (
        f'<tr class="kt-group"><th scope="rowgroup" colspan="{len(COLUMNS) - 1}">{escaped(title)} '
        f'<span class="kt-quiet">{escaped(meaning)}</span></th>'
        f'<td class="kt-switch-cell"><span class="kt-quiet">automatic</span>{switch}</td></tr>'
    )
    return f"<tbody>{head}{''.join(_row(row, title) for row in rows)}</tbody>"


def _row(row: Accelerator, title: str) -> str:
    state = state_of(row)
    reasons = " ".join(_sentence(_own(reason, row)) for reason in row.reasons)
    if row.state == "unavailable" and not _REMEDY.search(reasons):
        reasons += f" Nothing to do: it needs {'another model' if row.setting == 'cache' else 'other hardware'}."
    disabled = row.state == "unavailable"
    on, label = row.state == "on", f"{title}: {row.title}"
    by = "automatic" if on and not row.forced else "hand"
    label += ", taken automatically" if by == "automatic" else ""
    switch = _switch(on, label, "toggle", disabled, setting=row.setting, name=row.name, by=by)
    return (
        f'<tr class="kt-look-{state.look}"><th scope="row"><span class="kt-name">{escaped(row.title)}</span> '
        f"<code>{escaped(row.name)}</code></th>"
        f'<td class="kt-state-cell"><span><span class="kt-mark" aria-hidden="true">{MARKS[state.look]}</span>'
        f"<span>{escaped(state.words)}</span></span> "
        f'<button type="button" class="kt-details" data-row="{escaped(row.setting)} {escaped(row.name)}" '
        f'aria-expanded="false" aria-label="Details of {escaped(row.title)}">Details</button></td>'
        f'<td class="kt-why">{escaped(reasons)}</td>'
        f"{_measured(row)}"
        f'<td class="kt-count{"" if row.calls else " kt-none"}">{escaped(counts_of(row))}</td>'
        f'<td class="kt-switch-cell">{switch}</td></tr>'
    )


def _measured(row: Accelerator) -> str:
    """What readouts say: cells that are empty where nothing was measured."""
    if row.speedup is None:
        return '<td class="kt-figure kt-none">–</td>' * 3
    error = words.NOTHING if row.error is None else f"{row.error:.1e}"
    share = words.NOTHING if row.share_of_peak is None else f"{row.share_of_peak:.0%}"
    cells = (("Speed-up", words.ratio(row.speedup)), ("Error", error), ("Of peak", share))
    return "".join(f'<td class="kt-figure" data-of="{name}">{escaped(text)}</td>' for name, text in cells)


def _switch(on: bool, label: str, do: str, disabled: bool = False, **data: str) -> str:
    attributes = "".join(f' data-{name}="{escaped(value)}"' for name, value in data.items())
    return (
        f'<button type="button" role="switch" class="kt-switch" aria-checked="{"true" if on else "false"}" '
        f'aria-label="{escaped(label)}" data-do="{do}" data-on="{"off" if on else "on"}"{attributes}'
        f"{' disabled' if disabled else ''}><i></i></button>"
    )


def _choice(name: str, preferences: AccelPreferences) -> str:
    title, meaning, choices = CHOICES[name]
    now = getattr(preferences, name)
    buttons = "".join(
        button(text, "choose", "", "chosen" if value == now else "", setting=name, name=value).replace(
            "<button ", f'<button aria-pressed="{"true" if value == now else "false"}" ', 1
        )
        for value, text in choices
    )
    return (
        f'<div class="kt-choice" role="group" aria-label="{escaped(title)}"><span><b>{escaped(title)}</b> '
        f'<span class="kt-quiet">{escaped(meaning)}</span></span><span class="kt-buttons">{buttons}</span></div>'
    )


def machine_html(report: Mapping[str, Any] | None, problem: str = "", names: Sequence[str] = ABOVE) -> str:
    """The doctor's sentences under the headings of these names."""
    if problem:
        return sentences_html([problem], "bad")
    if report is None:
        return '<p class="kt-quiet" role="status">Looking at this machine …</p>'
    parts = []
    for name in names:
        heading = HEADINGS[name]
        sentences = [on_page(_ADD.sub("switch it on above", str(sentence))) for sentence in report.get(name, ())]
        if not sentences and name != "missing":
            continue
        items = "".join(
            f"<li{' class=kt-inner' if sentence.startswith(' ') else ''}>{escaped(sentence.strip())}</li>"
            for sentence in sentences or [NOTHING]
        )
        opened = " open" if name in ABOVE else ""
        parts.append(
            f'<details class="kt-doctor"{opened}><summary>{escaped(heading)}</summary>'
            f'<ul class="kt-lines">{items}</ul></details>'
        )
    return "".join(parts)


def _own(reason: str, row: Accelerator) -> str:
    """A reason without the name of its own row."""
    return reason.removeprefix(f"{row.setting}={row.name} can't be used here: ")


def _sentence(reason: str) -> str:
    text = on_page(reason).strip().rstrip(".")
    return f"{words.capital(text)}." if text else ""
