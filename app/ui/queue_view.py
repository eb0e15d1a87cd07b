"""The queue and one stretch of the history as markup. Pure: jobs in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.console import describe
from app.engine.acceleration import summary
from app.paths import is_mine_alone
from app.progress import Progress
from app.queue.jobs import ENDED, History, Job, JobState
from app.queue.service import JobProgress, Snapshot
from app.ui.context import Context, escaped, file_url, plural, seconds_text, sentences_html
from app.ui.rows import button, clock, facts, shortened

MOST_SHOWN = 100
"""Waiting jobs that are shown; a count of 1000 would make a page of 1000 rows that nobody reads."""
PAGE = 48
"""Clips on one page of the history: fills whole rows of 2, 3, 4, 6 and 8."""

STATES: Mapping[str, str] = {
    "queued": "waiting",
    "running": "running",
    "done": "done",
    "failed": "failed",
    "cancelled": "cancelled",
    "crashed": "crashed",
}
STATE_MARKS: Mapping[str, str] = {"done": "✓", "failed": "✕", "cancelled": "", "crashed": "✕"}
"""Before the word for a state; a cancel is what the person wanted."""


@dataclass(frozen=True)
class View:
    """What this browser tab looks at. shared: the clip whose code is shown. shown: what was rendered last, so that
    the same markup is not sent again. notices: counts the notices, so that each is a new one.
    """

    offset: int = 0
    chosen: int = -1
    search: str = ""
    states: tuple[JobState, ...] = ENDED
    shared: int = -1
    shown: tuple[str, str, str] = ("", "", "")
    notices: int = 0


def name_of(job: Job) -> str:
    """The prompt; where there is none this is said, with the job's name."""
    return job.spec.request.prompt.strip() or f"No prompt ({job.spec.name})"


# -- the queue --


def queue_html(snapshot: Snapshot) -> str:
    """What runs and what waits, with its buttons."""
    if snapshot.running is None and not snapshot.waiting:
        return (
            '<p class="kt-empty">Nothing is waiting. Press Generate on Create: you may queue as many clips as you '
            "like, and close this page while they are made.</p>"
        )
    parts = [_running(snapshot.running, snapshot.progress)] if snapshot.running else []
    waiting = snapshot.waiting
    if waiting:
        shown = waiting[:MOST_SHOWN]
        rows = "".join(_waiting(job, place, len(waiting)) for place, job in enumerate(shown))
        parts.append(_for_all(waiting))
        parts.append(f'<ol class="kt-list" aria-label="Waiting, the next one first">{rows}</ol>')
        if len(waiting) > len(shown):
            parts.append(f'<p class="kt-quiet">and {plural(len(waiting) - len(shown), "more job")} behind them.</p>')
    if snapshot.worker.note:
        parts.append(f'<p class="kt-quiet">{escaped(snapshot.worker.note)}</p>')
    return f'<div class="kt-queue">{"".join(parts)}</div>'


def _running(job: Job, progress: JobProgress | None) -> str:
    stopping = progress is not None and progress.stopping
    state, percent = progress_of(progress)
    bar = (
        f'<div class="kt-bar" role="progressbar" aria-label="Progress of job {job.id}" aria-valuemin="0" '
        f'aria-valuemax="100" aria-valuenow="{percent}"><i style="width:{percent}%"></i></div>'
    )
    cancel = button("Cancel", "cancel", f"Cancel job {job.id}", disabled=stopping, job=job.id)
    again = button("Once more", "duplicate", f"Queue job {job.id} once more", job=job.id)
    return (
        f'<div class="kt-item kt-running" data-job="{job.id}">{_text(job)}'
        f'<div class="kt-now"><span class="kt-state">{escaped(state)}</span>{bar}</div>'
        f'<span class="kt-buttons">{again}{cancel}</span></div>'
    )


def progress_of(progress: JobProgress | None) -> tuple[str, int]:
    """How far the running job is, in words and in percent."""
    if progress is None:
        return "starting", 0
    percent = round(100 * progress.fraction)
    if progress.stopping:
        return "stopping after this step", percent
    told = Progress(progress.stage, progress.step, progress.steps, progress.fraction, None, progress.eta_seconds)
    return describe(told), percent


def _waiting(job: Job, place: int, count: int) -> str:
    who = f"job {job.id}"
    buttons = [
        button("↑", "up", f"Move {who} up", "icon", place == 0, job=job.id, place=place),
        button("↓", "down", f"Move {who} down", "icon", place == count - 1, job=job.id, place=place),
        button("First", "first", f"Move {who} to the front", "", place == 0, job=job.id, place=place),
        button("Release", "release", f"Release {who}", job=job.id)
        if job.held
        else button("Hold", "hold", f"Hold {who}", job=job.id),
        button("Once more", "duplicate", f"Queue {who} once more", job=job.id),
        button("Remove", "remove", f"Remove {who} from the queue", job=job.id),
    ]
    held = '<span class="kt-state">held: it is passed over until released</span>' if job.held else ""
    return (
        f'<li class="kt-item{" kt-held" if job.held else ""}" data-job="{job.id}">'
        f'<span class="kt-place">{place + 1}</span>{_text(job)}{held}'
        f'<span class="kt-buttons">{"".join(buttons)}</span></li>'
    )


def _text(job: Job) -> str:
    name = name_of(job)
    return (
        f'<span class="kt-what"><span class="kt-name" title="{escaped(shortened(name, 500))}">'
        f"{escaped(shortened(name, 160))}</span>"
        f'<span class="kt-facts">{escaped(facts(job.spec.request))} · job {job.id}</span></span>'
    )


def _for_all(waiting: Sequence[Job]) -> str:
    if len(waiting) < 2:
        return ""
    some_run = any(not job.held for job in waiting)
    hold = button("Hold all", "hold_all") if some_run else button("Release all", "release_all")
    held = sum(job.held for job in waiting)
    counted = [f"{plural(len(waiting) - held, 'job')} waiting" if some_run else "", f"{held:,} held" if held else ""]
    words = ", ".join(filter(None, counted))
    return f'<div class="kt-all"><span class="kt-quiet">{words}</span>{hold}' + (
        button("Remove all", "remove_all", "Remove all waiting jobs") + "</div>"
    )


# -- the history --


def history_html(found: History, view: View, context: Context) -> str:
    """One page of the history as a gallery, with where it stands in the whole."""
    if not found.total:
        if view.search.strip():
            return f'<p class="kt-empty">No clip has “{escaped(shortened(view.search, 80))}” in its prompt or name.</p>'
        if len(view.states) < len(ENDED):
            return f'<p class="kt-empty">No clip is {escaped(STATES[view.states[0]])}.</p>'
        return '<p class="kt-empty">No clips yet. Press Generate on Create: the starter needs no download.</p>'
    cards = "".join(_card(job, view.chosen, context) for job in found.jobs)
    return f'{_pager(found, view.offset)}<ul class="kt-grid" aria-label="Clips, the newest first">{cards}</ul>'


def counted(counts: Mapping[JobState, int]) -> str:
    """How many clips there are, and apart from them what never became one: "3 clips, 1 cancelled"."""
    return ", ".join(
        plural(count, "clip") if state == "done" else f"{count:,} {STATES[state]}"
        for state in ENDED
        if (count := counts.get(state))
    )


def _pager(found: History, offset: int) -> str:
    total, where = found.total, counted(found.counts)
    last = min(offset + PAGE, total)
    if total > PAGE:
        mixed = f"{total:,}: " if len(found.counts) > 1 else ""
        where = f"{offset + 1:,} to {last:,} of {mixed}{where}"
    newer = button("‹ Newer", "page", "Newer clips", "", offset == 0, to=max(0, offset - PAGE), way="newer")
    older = button("Older ›", "page", "Older clips", "", last >= total, to=offset + PAGE, way="older")
    arrows = f"{newer}{older}" if total > PAGE else ""
    return f'<div class="kt-pager"><span class="kt-quiet" role="status">{where}</span>{arrows}</div>'


def _card(job: Job, chosen: int, context: Context) -> str:
    name, request = name_of(job), job.spec.request
    poster = shown_file(job.result.poster, context) if job.result else None
    if poster is not None:
        picture = (
            f'<img src="{escaped(file_url(poster))}" alt="" loading="lazy" decoding="async" '
            f'width="{request.width}" height="{request.height}">'
        )
    else:
        picture = f'<span class="kt-no-picture">{escaped("no picture" if job.result else STATES[job.state])}</span>'
    said = filter(None, [clock(job.ended) if job.ended else "", "" if job.state == "done" else _state(job)])
    return (
        f'<li><button type="button" class="kt-card kt-{job.state}" data-do="open" data-job="{job.id}" '
        f'data-event="select" aria-pressed="{"true" if job.id == chosen else "false"}">'
        f'<span class="kt-frame">{picture}</span><span class="kt-name">{escaped(shortened(name, 90))}</span>'
        f'<span class="kt-facts">{escaped(" · ".join(said))}</span></button></li>'
    )


def _state(job: Job) -> str:
    return f"{STATE_MARKS[job.state]} {STATES[job.state]}".strip()


def shown_file(path: Path, context: Context) -> Path | None:
    """The file that a job names, if it is there and the browser may have it: one outside the outputs folder only where
    nobody else can put another file in its place.
    """
    try:
        if not path.is_file():
            return None
        real = path.resolve()
    except OSError:
        return None
    if real.is_relative_to(context.home.outputs.resolve()):
        return path
    if real.name != path.name or not is_mine_alone(path):
        return None
    context.serve(real)
    return path


def is_shown(job: Job, context: Context) -> bool:
    """Whether the browser may have a job's clip; it may then ask for it, and for its poster."""
    files = (job.result.output, job.result.poster) if job.result else ()
    return any([shown_file(file, context) for file in files][:1])


# -- one clip --

NOTHING_CHOSEN = (
    '<p class="kt-empty kt-nothing">Choose a clip to play it, to take its settings over, or to make it again.</p>'
)


def clip_html(job: Job | None, context: Context, code: str = "") -> str:
    """One clip of the history: player, facts, what was adjusted or went wrong, and what can be done with it."""
    if job is None:
        return NOTHING_CHOSEN
    parts = [_player(job, context)]
    parts.append(f'<p class="kt-prompt">{escaped(name_of(job))}</p>')
    parts.append(_facts_table(job))
    if job.error is not None:
        parts.append(sentences_html([job.error.message], "calm" if job.state == "cancelled" else "bad"))
        if job.error.detail:
            parts.append(
                f"<details><summary>Details for a report</summary><pre>{escaped(job.error.detail)}</pre></details>"
            )
    parts.append(sentences_html([*job.spec.told, *(job.result.warnings if job.result else ())]))
    parts.append(f'<div class="kt-buttons">{"".join(_clip_buttons(job, context))}</div>')
    if code:
        parts.append(
            '<label class="kt-code-label">Share code <textarea class="kt-code" readonly rows="3" '
            f'onfocus="this.select()">{escaped(code)}</textarea></label>'
        )
    return f'<article class="kt-clip" data-key="{job.id}" aria-label="Clip {job.id}">{"".join(parts)}</article>'


def _player(job: Job, context: Context) -> str:
    if job.result is None:
        return f'<p class="kt-no-clip">{escaped(_state(job))}</p>'
    clip, poster = shown_file(job.result.output, context), shown_file(job.result.poster, context)
    if clip is None:
        there = job.result.output.is_file()
        gone = "lies outside the outputs folder, where others may change it" if there else "is no longer there"
        return f'<p class="kt-no-clip">The file {escaped(job.result.output)} {gone}, so it can’t be played here.</p>'
    still = f' poster="{escaped(file_url(poster))}"' if poster else ""
    width, height = job.spec.request.width, job.spec.request.height
    return (
        f'<video controls loop playsinline preload="metadata" src="{escaped(file_url(clip))}"{still} '
        f'style="aspect-ratio:{width}/{height}" aria-label="{escaped(shortened(name_of(job), 120))}"></video>'
    )


def _facts_table(job: Job) -> str:
    request = job.spec.request
    rows = [
        ("Model", request.model),
        ("Clip", facts(request)),
        ("Guidance", f"{request.guidance_text}; scheduler {request.scheduler}" if request.guidance is not None else ""),
        ("Not in it", request.negative_prompt or ""),
        ("Made" if job.result else "Ended", clock(job.ended) if job.ended else ""),
    ]
    if job.seconds is not None:
        rows.append(("Took", _took(job)))
    if job.result is not None:
        rows.append(("Made on", job.result.ran_on))
        rows.append(("Served by", summary(job.result.plan, job.result.report)))
        rows.append(("File", job.result.output.name))
    items = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in rows if value)
    return f'<dl class="kt-table">{items}</dl>'


def _took(job: Job) -> str:
    timings = job.result.timings if job.result else {}
    stages = [
        f"{name} {timings[name]:.1f}"
        for name in ("load", "text", "compile", "denoise", "decode", "save")
        if timings.get(name, 0.0) >= 0.05
    ]
    whole = seconds_text(timings.get("total") or job.seconds or 0.0)
    return f"{whole} ({' · '.join(stages)} s)" if stages else whole


def _clip_buttons(job: Job, context: Context) -> list[str]:
    buttons = [button("Use these settings", "restore", "", "strong", job=job.id, event="apply")]
    if job.state != "done":
        buttons.append(button("Retry", "retry", f"Queue job {job.id} anew", job=job.id))
    else:
        buttons.append(button("Once more", "duplicate", "Queue the same clip once more", job=job.id))
    buttons.append(button("Another seed", "sibling", "Queue the same with another seed", job=job.id))
    if job.result is not None and (clip := shown_file(job.result.output, context)) is not None:
        buttons.append(
            f'<a class="kt-do" href="{escaped(file_url(clip))}" download="{escaped(clip.name)}">Download</a>'
        )
    buttons.append(button("Share code", "share", "Show the settings as a share code", job=job.id))
    buttons.append(button("Delete", "delete", "Delete this clip and its files", job=job.id))
    return buttons
