"""The Models tab as markup: every model with its licence, size and state, and how far a fetch is."""

from __future__ import annotations

import shutil
from collections.abc import Container, Sequence

from app.catalogue import Listed, download_text
from app.fetching import Fetching
from app.models.sources.cache import cache_folder
from app.ui.context import bytes_text, escaped, sentences_html
from app.ui.rows import button

ABOUT = (
    "Nothing is fetched before you press Fetch, here or on Create, and nothing else asks another machine for anything. "
    "Models come from Hugging Face into its usual cache, shared with other programs. A fetch that stops half-way goes "
    "on from there when you press its button again."
)
WORDS = {"here": "on this machine", "partly": "partly on this machine", "not here": "not on this machine"}


def panel_html(state: Fetching, listed: Container[str] = ()) -> str:
    """How far the fetch is, or how the last one ended: that of a model in `listed` is told in its own row."""
    if not state.is_over:
        return running_html(state)
    return "" if state.model in listed else ended_html(state)


def running_html(state: Fetching) -> str:
    """The fetch that is going on: a bar that moves by itself, and a button that stops it."""
    percent = round(state.progress.fraction * 100)
    return (
        f'<div class="kt-measuring" data-number="{state.number}"><div class="kt-now">'
        f'<span class="kt-name">{escaped(state.title)}</span>'
        f'<span class="kt-state" role="status">{escaped(progress_words(state))}</span>'
        f'<span class="kt-bar" role="progressbar" aria-label="Fetching {escaped(state.title)}" '
        f'aria-valuenow="{percent}"><i style="width: {percent}%"></i></span></div>{button("Stop", "stop")}</div>'
    )


def ended_html(state: Fetching) -> str:
    """How a fetch ended, naming its model, until it is dismissed; empty where there was none."""
    if state.state == "done":
        said = f'<p class="kt-said">{escaped(state.title)} is on this machine now.</p>'
    elif state.error:
        failed = state.state == "failed"
        what = f"{state.title} was not fetched: " if failed and state.title else ""
        said = sentences_html([what + state.error], "bad" if failed else "note")
    else:
        return ""
    return f'<div class="kt-ended" role="status">{said}{button("Dismiss", "dismiss")}</div>'


def progress_words(state: Fetching) -> str:
    """How far it is, in words: "12%, 3.1 GiB of 28.4 GiB, 12 MiB/s, about 34:10 min left"."""
    share = f"{state.progress.fraction:.0%}, " if state.progress.total else ""
    return share + state.progress.sentence()


def list_html(rows: Sequence[Listed], state: Fetching, refused: tuple[str, str] = ("", "")) -> str:
    """Every model, with what can be done with it. refused: the model whose button did nothing, and why."""
    told = {refused[0]: refused[1]}
    return f'<ul class="kt-list">{"".join(_row(row, state, told.get(row.name, "")) for row in rows)}</ul>'


def _row(row: Listed, state: Fetching, refused: str) -> str:
    size = ""
    if row.state == "here":
        size = f"{bytes_text(row.fetched)} on the disk" if row.fetched else ""
    elif row.download:
        size = to_fetch(row)
    facts = [row.licence, size, row.repo]
    said = " · ".join(escaped(fact) for fact in facts if fact)
    lacks = sentences_html([row.remedy]) if row.state == "partly" else ""
    ended = ended_html(state) if state.is_over and state.model == row.name else ""
    if refused:
        ended = f'<p class="kt-ended kt-problem" role="alert">{escaped(refused)}</p>'
    return (
        f'<li class="kt-item"><div class="kt-what"><span class="kt-name">{escaped(row.title)}</span>'
        f'<span class="kt-quiet">{escaped(row.summary)}</span><span class="kt-facts">{said}</span>{lacks}</div>'
        f'<span class="kt-state">{escaped(_state(row))}</span>'
        f'<div class="kt-buttons">{_buttons(row, state)}</div>{ended}</li>'
    )


def to_fetch(row: Listed) -> str:
    """How much there is to fetch, and how much room there is for it where that is too little."""
    words, free = f"{download_text(row)} to fetch", _room()
    short = row.download is not None and row.download - row.fetched > free
    return f"{words}; only {bytes_text(free)} free" if short else words


def _room() -> int:
    """Bytes that are free where models are kept, whether or not that folder is there yet."""
    cache = cache_folder().absolute()
    return shutil.disk_usage(next(one for one in (cache, *cache.parents) if one.exists())).free


def _state(row: Listed) -> str:
    if row.state == "partly" and row.fetched:
        of = f" of {bytes_text(row.download)}" if row.download else ""
        return f"{WORDS[row.state]}, {bytes_text(row.fetched)}{of}"
    return WORDS[row.state]


def _buttons(row: Listed, state: Fetching) -> str:
    if row.state == "here":
        return button("Use in Create", "use", f"Use {row.title} in Create", event="apply", name=row.name)
    if not row.repo:
        return ""
    busy = not state.is_over
    text = "Fetch the rest" if row.state == "partly" else "Fetch"
    return button(text, "fetch", f"{text}: {row.title}", disabled=busy, name=row.name)
