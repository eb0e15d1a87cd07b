"""What all tabs share: the service behind the page, the Create form, and the words for times, sizes and errors.

Every tab is one module with `build(context) -> TabParts`, called inside its own `gr.Tab`. It attaches its own events.

- `context.version` changes whenever the queue or the history did, in every open tab of the browser: listen to
  `context.version.change(...)` rather than polling. `TabParts.on_load` is for what is shown when the page is opened.
- `context.form` fills and reads the Create form; `context.show_create()` as an output for `context.tabs` opens it.
- Actions of a tab that programs may want have an endpoint of their own: `gr.api(fn, api_name=...)` with typed
  arguments and plain data; the page's own events are private (`PRIVATE`).
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import gradio as gr

from app.errors import CannotRunError, KinetileError, UsageError, on_page
from app.estimate import Estimate
from app.models import all_families, family_for, sources
from app.models.base import Family
from app.paths import Home
from app.pictures import fitted
from app.queue.jobs import JobSpec
from app.queue.service import Service, open_service, with_preferences
from app.request import GenerationRequest
from app.ui.form import FormFields

Answer = TypeVar("Answer")

PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
"""For events of the page itself: no endpoint, and no veil over the outputs while they run."""

QUICK: dict[str, Any] = {**PRIVATE, "queue": False}
"""For events that answer at once: they do not wait behind others."""


TO_FORM: dict[str, Any] = {"fn": None, "js": "() => window.kinetile.toForm()", **PRIVATE}
"""What follows an event that filled the form and opened Create: its top is seen."""

MOST_SERVED = 1000
"""Files outside the outputs folder that are served at once: each request is held against all of them."""


@dataclass
class TabParts:
    """What a tab gives to the page. `on_load`: functions without inputs that are called when the page is opened, each
    with the components it returns values for. `outside`: functions that make what must be there before the tab was ever
    looked at; they are called below all tabs, since a tab's own components come to life when it is first shown.
    """

    on_load: list[tuple[Callable[..., Any], list[Any]]] = field(default_factory=list)
    outside: list[Callable[[], None]] = field(default_factory=list)


@dataclass
class Context:
    """One page. The components are set while it is built, in the order Create, Queue, Presets, Accelerate."""

    service: Service
    home: Home
    families: tuple[Family, ...] = field(default_factory=all_families)
    uploads: Path | None = None
    """The folder into which the browser's uploads go; None: outputs only."""
    served: list[str] = field(default_factory=list)
    """What the server hands out: Gradio looks into this very list at each request."""
    form: FormFields = field(default_factory=FormFields)
    version: Any = None
    """The component whose `change` fires after each change of the queue or the history; it has no value to read."""
    tabs: Any = None
    page: Any = None
    """The gr.Blocks that is being built."""

    def reopen(self) -> bool:
        """Take over when the process that owned the queue is gone; False when that is not possible yet."""
        try:
            self.service = open_service(self.home, seconds=2.0)
        except KinetileError:
            return False
        return True

    def serve(self, file: Path) -> None:
        """Let the browser have one more file; of those that lie elsewhere than the outputs the newest are kept."""
        if str(file) not in self.served:
            self.served.append(str(file))
            del self.served[1:-MOST_SERVED]

    def show_create(self) -> Any:
        """The update of `tabs` that opens Create."""
        return gr.Tabs(selected="create")

    def wished(self, request: GenerationRequest) -> GenerationRequest:
        """`request` under the switches of the Accelerate tab, as it is queued and as it is estimated."""
        return with_preferences(request, self.service.preferences())

    def specs(self, request: GenerationRequest, name: str = "", origin: str = "page") -> tuple[JobSpec, ...]:
        """The clips that `request` asks for, under the stored preferences. Raises UsageError, CannotRunError
        for a model that is not on this machine.
        """
        wished = self.wished(request)
        family = family_for(wished.model)
        if why := sources.why_not_here(family):
            raise CannotRunError(why)
        made = []
        for one in wished.expand():
            normalised = fitted(family.normalise(one), self.home)
            title = name or " ".join(one.prompt.split())[:60] or family.title
            notes, folder = tuple(normalised.notes.values()), self.home.outputs
            made.append(JobSpec(title, one, normalised.request, folder, normalised.adjustments, notes, origin=origin))
        return tuple(made)

    def open_path(self, path: str | Path) -> Path:
        """A file that the browser named, if it is one of ours: a clip in the outputs or an upload.

        Raises UsageError for any other, without saying whether it exists.
        """
        roots = [self.home.outputs, *([self.uploads] if self.uploads else [])]
        try:
            real = Path(path).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            real = None
        if real is None or not real.is_file() or not any(real.is_relative_to(root.resolve()) for root in roots):
            raise UsageError("That file is neither one of the clips nor an upload; choose another one.")
        return real


def file_url(path: Path | str) -> str:
    """Where the browser finds a clip or its poster; it is served from where it lies, nothing is copied."""
    return "/gradio_api/file=" + quote(Path(path).as_posix(), safe="/:")


def told(function: Callable[..., Answer]) -> Callable[..., Answer]:
    """An event's function whose expected errors become one sentence on the page; whatever was typed stays."""

    @functools.wraps(function)
    def telling(*values: Any, **named: Any) -> Answer:
        try:
            return function(*values, **named)
        except KinetileError as error:
            raise gr.Error(escaped(on_page(error)), duration=12, title="Not done", print_exception=False) from error

    return telling


def escaped(text: object) -> str:
    """Any text as HTML shows it."""
    return html.escape(str(text))


def seconds_text(seconds: float) -> str:
    """Under a minute in seconds with one digit, above as m:ss."""
    from app.console import duration

    return duration(seconds)


def time_text(found: Estimate, clips: int) -> str:
    """What so many clips take of which one is estimated, and what that is reckoned from: "3 clips take about 18.0 s,
    from 2 clips made here".
    """
    if found.seconds is None:
        return found.basis
    of = f"{plural(clips, 'clip')} take " if clips > 1 else ""
    return f"{of}about {seconds_text(found.seconds * clips)}, {found.basis}"


def bytes_text(size: int) -> str:
    """Bytes in binary units: "1.1 GiB"."""
    from app.video.outputs import size_text

    return size_text(size)


def plural(count: int, word: str) -> str:
    """ "1 clip", "3 clips"."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def sentences_html(sentences: Sequence[str], kind: str = "note") -> str:
    """Sentences as a small list, without what only a command line offers; empty for none."""
    items = "".join(f"<li>{escaped(on_page(sentence))}</li>" for sentence in sentences)
    return f'<ul class="kt-sentences kt-{kind}">{items}</ul>' if items else ""
