"""What the browser kept of the form: checked field by field, since a browser's storage can hold anything."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.errors import KinetileError
from app.models import family_for
from app.request import MAX_PROMPT
from app.ui.form import BROKEN, FIXED, NAMES, RANDOM, REUSE, WHOLE

_NUMBERS = (*WHOLE, *BROKEN, "gpus")


def restored(stored: Any) -> list[Any]:
    """Updates for the form's components; a value that can't be one leaves its field as it is."""
    values = stored if isinstance(stored, dict) else {}
    return [
        gr.update(value=values[name]) if name in values and _fits(name, values[name]) else gr.skip() for name in NAMES
    ]


def _fits(name: str, value: Any) -> bool:
    if name in _NUMBERS:
        return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9)
    if not isinstance(value, str) or len(value) > MAX_PROMPT:
        return False
    if name == "seed_mode":
        return value in (RANDOM, FIXED, REUSE)
    if name == "model":
        try:
            family_for(value)
        except KinetileError:
            return False
    return True
