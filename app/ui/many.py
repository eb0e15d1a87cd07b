"""Very many clips are asked about before they are queued from the page; programs and the batch say what they want."""

from __future__ import annotations

from collections.abc import Sequence

from app.errors import KinetileError
from app.estimate import UNKNOWN
from app.queue.jobs import JobSpec
from app.ui.context import Context, escaped, plural, time_text
from app.ui.rows import button

MANY = 100
"""Most clips that one press of Generate queues without asking: a slip of a digit makes ten times as many."""


def question_html(context: Context, specs: Sequence[JobSpec]) -> str:
    """How long so many clips take, and the button that queues them; its "count" is what the person agrees to."""
    words = f"Nothing was queued yet: {_time(context, specs)}."
    queue = button(f"Queue {plural(len(specs), 'clip')}", "queue", look="strong", count=len(specs))
    return f'<div class="kt-not-here"><p class="kt-hint" role="alert">{escaped(words)}</p>{queue}</div>'


def _time(context: Context, specs: Sequence[JobSpec]) -> str:
    try:
        return time_text(context.service.estimate(specs[0].request), len(specs))
    except KinetileError:  # said beside the form already, and nothing that Generate waits for
        return UNKNOWN
