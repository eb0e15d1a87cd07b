"""Undo for what was removed: a line at the foot of the page for ten seconds, with one button. It moves nothing.

What brings things back is kept where they were removed (queue or preset folder), so it outlives this page; only the
offer goes after ten seconds.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.ui.context import escaped
from app.ui.rows import button, script

SECONDS = 10


def undo_bar(**settings: Any) -> Any:
    """Where `offer` shows up; listen to its `undo` event."""
    return gr.HTML(
        "", js_on_load=script("undo.js"), apply_default_css=False, elem_classes=["kt-toast-place"], **settings
    )


def offer(what: str, number: int, **data: Any) -> str:
    """The markup of an offer to undo `what`; number: another one each time, so that the seconds start anew."""
    undo = button("Undo", "undo", f"Undo: {what}", "strong", **data)
    return (
        f'<div class="kt-toast" role="status" data-seconds="{SECONDS}" data-number="{number}">'
        f"<span>{escaped(what)}</span>{undo}</div>"
    )


def said(what: str, number: int) -> str:
    """A short notice in the same place, without a button."""
    return (
        f'<div class="kt-toast" role="status" data-seconds="4" data-number="{number}">'
        f"<span>{escaped(what)}</span></div>"
    )
