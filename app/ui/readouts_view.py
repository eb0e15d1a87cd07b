"""Readouts as markup: how a measurement stands, the tables, the chart, and two plans side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accel.readouts import chart, words
from accel.readouts.results import Clip, Measurement, Results
from app.measuring import Measuring
from app.ui.context import escaped, sentences_html
from app.ui.rows import button

MEANING = (
    "Every backend that can run here, at the calls this model really makes, in turns with plain PyTorch. "
    "Automatic takes what won; figures measured beside other programs are noisy."
)


CHART = "Every backend at this model's calls"
"""The chart's own title: the clip's stands above it."""


def panel_html(state: Measuring) -> str:
    """The buttons, or how far the measurement is."""
    if not state.is_over:
        return _bar(state)
    told = ""
    if state.state == "failed":
        told = sentences_html([state.error], "bad")
    elif state.state == "stopped":
        told = sentences_html([state.text])
    buttons = button("Run quick benchmark", "quick", look="strong") + button("Run full benchmark", "full")
    about = (
        "At the size and steps of the clip in Create. Quick takes under a minute for the starter; full some minutes, "
        "and compares clips of 20 prompts."
    )
    return f'{told}<div class="kt-buttons">{buttons}</div><p class="kt-quiet">{about}</p>'


def beside_html(state: Measuring) -> str:
    """The same beside the button that compares: how far it is, or why there is no comparison; nothing otherwise."""
    if not state.is_over:
        return _bar(state)
    ended = {"failed": (state.error, "bad"), "stopped": (state.text, "note")}.get(state.state)
    return sentences_html([ended[0]], ended[1]) if ended and state.kind == "compare" else ""


def _bar(state: Measuring) -> str:
    percent = round(state.fraction * 100)
    return (
        f'<div class="kt-measuring" data-number="{state.number}"><div class="kt-now">'
        f'<span class="kt-state" role="status">{escaped(progress_words(state))}</span>'
        f'<span class="kt-bar" role="progressbar" aria-label="Measuring" aria-valuenow="{percent}">'
        f'<i style="width: {percent}%"></i></span></div>{button("Cancel", "cancel")}</div>'
    )


def progress_words(state: Measuring) -> str:
    """How far it is, in words."""
    return f"{state.fraction:.0%}, {state.words}" if state.state == "running" else state.text


def results_html(data: Mapping[str, Any], model: str) -> str:
    """The newest measurement of a model in what the service's `readouts` gave, and what of the rest is not used."""
    results = None if data["results"] is None else Results.from_dict(data["results"])
    made = newest(results, model)
    stale = [f"Figures of {one['name']} ({one['when'][:10]}) are stale: {one['why']}." for one in data["stale"]]
    notes = sentences_html([*stale, *data["problems"]])
    if results is None or made is None:
        return (
            f'<p class="kt-empty">Nothing was measured for this model on this machine yet: run a benchmark.</p>{notes}'
        )
    remarks = "".join(f"<li>{escaped(line)}</li>" for line in words.remarks(results, made))
    shapes = {"wide": chart.WIDE, "narrow": chart.NARROW}  # the style sheet shows the one that fits the window
    drawn = "".join(
        f'<div class="kt-chart kt-chart-{name}">{chart.svg(made.rows, CHART, shape)}</div>'
        for name, shape in shapes.items()
    )
    tables = "".join(
        f'<h3 class="kt-subheading">{escaped(title)}</h3>{_table(words.COLUMNS, [words.cells(row) for row in rows])}'
        for title, rows in words.groups(made.rows).items()
    )
    return (
        f'<h3 class="kt-subheading">{escaped(made.title)}</h3>{_clips(made.clips)}{drawn}'
        f'<details class="kt-doctor"><summary>All figures</summary>{tables}</details>'
        f'<ul class="kt-lines">{remarks}</ul>{notes}'
    )


def newest(results: Results | None, model: str) -> Measurement | None:
    """The newest measurement of a model, None without one."""
    alike = (one for one in (results.measurements if results is not None else ()) if one.model == model)
    return max(alike, key=lambda one: one.when, default=None)


def compared_html(result: Mapping[str, Any]) -> str:
    """Two plans' clips: the table and the sentence."""
    clips = [Clip.from_dict(clip) for clip in result["clips"]]
    heading = f'<h3 class="kt-subheading">{escaped(result["title"])}, one seed</h3>'
    return f'{heading}{_clips(clips)}<p class="kt-said">{escaped(words.comparison(clips))}</p>'


def sides_html(result: Mapping[str, Any]) -> str:
    """Which plan's clip is on which side of the slider: the first of the two on its left."""
    plans = [Clip.from_dict(clip).plan for clip in result["clips"]][:2]
    told = (f"<span>{side}: {escaped(plan)}</span>" for side, plan in zip(("Left", "Right"), plans, strict=False))
    return f'<p class="kt-sides">{"".join(told)}</p>'


def _clips(clips: Sequence[Clip]) -> str:
    return _table(words.CLIP_COLUMNS, [words.clip_cells(clip) for clip in clips]) if clips else ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escaped(name)}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escaped(first)}</th>{"".join(f"<td>{escaped(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    inside = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="kt-wide"><table class="kt-figures">{inside}</table></div>'
