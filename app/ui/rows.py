"""The markup that the tabs' lists share: buttons that say what they do, facts about a request, times of day.

A list is one `gr.HTML`. Its buttons carry what they do in `data-` attributes, `assets/lists.js` sends these to Python
as the event's data: one listener for thousands of buttons, and the keyboard's focus stays with the row that it was on.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gradio as gr

from app.request import GenerationRequest
from app.ui.context import PRIVATE, escaped

HEARD: dict[str, Any] = {**PRIVATE, "concurrency_limit": 8}
"""For events that may fail: Gradio shows an error's sentence only for events that go through its queue."""


def script(name: str) -> str:
    """One of the page's own JavaScript files, for `gr.HTML(js_on_load=...)`."""
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


def actions(value: str = "", more: str = "", **settings: Any) -> Any:
    """A list whose buttons are heard. more: further JavaScript that runs when it is loaded."""
    return gr.HTML(value, js_on_load=script("lists.js") + more, apply_default_css=False, **settings)


def button(text: str, do: str, label: str = "", look: str = "", disabled: bool = False, **data: object) -> str:
    """A button of a list. label: what a screen reader says where `text` is not enough. data: what comes along."""
    attributes = "".join(f' data-{name}="{escaped(value)}"' for name, value in data.items())
    said = f' aria-label="{escaped(label)}" title="{escaped(label)}"' if label else ""
    off = ' aria-disabled="true"' if disabled else ""
    style = f"kt-do kt-do-{look}" if look else "kt-do"
    return (
        f'<button type="button" class="{style}" data-do="{escaped(do)}"{attributes}{said}{off}>{escaped(text)}</button>'
    )


def facts(request: GenerationRequest) -> str:
    """A resolved request in one line: "256 × 160 · 25 frames, 3.1 s · 20 steps · seed 42"."""
    said = []
    if request.width and request.height:
        said.append(f"{request.width} × {request.height}")
    if request.frames:
        length = f", {request.frames / request.fps:.1f} s" if request.fps else ""
        said.append(f"{request.frames} frames{length}")
    if request.steps:
        said.append(f"{request.steps} steps")
    if request.seed is not None:
        said.append(f"seed {request.seed}")
    return " · ".join(said)


def clock(moment: float, now: float | None = None) -> str:
    """A time (seconds since 1970) as people say it: "14:32" today, else "29 Nov 14:32", with the year if another."""
    then, today = time.localtime(moment), time.localtime(now)
    text = time.strftime("%H:%M", then)
    if then[:3] == today[:3]:
        return text
    day = f"{then.tm_mday} {time.strftime('%b', then)}"
    return f"{day} {text}" if then.tm_year == today.tm_year else f"{day} {then.tm_year} {text}"


def shortened(text: str, length: int) -> str:
    """White space made single, cut at `length` characters with an ellipsis."""
    plain = " ".join(text.split())
    return plain if len(plain) <= length else plain[: length - 1].rstrip() + "…"


def read_data(event: gr.EventData) -> dict[str, str]:
    """What came along with a list's event: texts by name, of bounded length, whatever the browser sent."""
    data = event._data
    return {str(k)[:40]: str(v)[:400] for k, v in list(data.items())[:20]} if isinstance(data, dict) else {}


def read_number(data: dict[str, str], name: str) -> int:
    """A whole number that came along, -1 where there is none."""
    text = data.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else -1
