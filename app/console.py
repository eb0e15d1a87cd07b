"""Progress and results on a terminal: a moving bar with rich where someone is watching, plain lines everywhere else.

Plain lines are for logs and pipes: one when a stage begins, then at most one every few seconds, each complete in
itself. Both show names from elsewhere without the characters that would command a terminal.
"""

import os
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TextIO

from app.errors import UsageError, mistakes_of
from app.progress import Progress, Stage
from app.strict_json import printable

_PLAIN_SECONDS = 5.0

_WORDS: dict[Stage, str] = {
    "loading": "loading the model",
    "text": "reading the prompt",
    "compiling": "compiling",
    "denoising": "denoising",
    "decoding": "decoding",
    "saving": "saving",
}


class Reporter(Protocol):
    """Where a batch tells what it does."""

    def say(self, text: str = "") -> None:
        """One line that stays."""

    def begin(self, label: str) -> None:
        """A clip begins; `label` names it in what follows."""

    def update(self, progress: Progress) -> None:
        """News of that clip. May come often; cheap."""

    def tell(self, fraction: float, text: str) -> None:
        """How far it is (0 to 1) and what is being done, where it is no clip. May come often; cheap."""

    def end(self) -> None:
        """That clip is over, however it ended."""

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table that stays."""


def reporter_for(stream: TextIO) -> Reporter:
    """Rich on a terminal that can move its cursor, plain lines otherwise."""
    if stream.isatty():
        from rich.console import Console

        console = Console(file=stream)
        if not console.is_dumb_terminal:
            return RichReporter(console)
    return PlainReporter(stream)


def complain(error: BaseException, stream: TextIO, label: str = "") -> None:
    """One sentence for a person, and each of several mistakes; where it came from only with KINETILE_DEBUG=1."""
    for one in mistakes_of(error) if isinstance(error, UsageError) else (error,):
        print(printable(f"{label}: {one}" if label else str(one)), file=stream, flush=True)
    if os.environ.get("KINETILE_DEBUG") == "1":
        print(getattr(error, "detail", "") or "".join(traceback.format_exception(error)), file=stream, flush=True)


def duration(seconds: float) -> str:
    """Under a minute in seconds with one digit, under an hour as m:ss, above in hours and minutes."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole >= 3600:
        minutes = round(seconds / 60)
        return f"{minutes // 60:,} h {minutes % 60} min"
    return f"{whole // 60}:{whole % 60:02d} min"


def describe(progress: Progress) -> str:
    """The message as a phrase: "denoising 5 of 20, about 6.1 s left"."""
    text = _WORDS[progress.stage]
    if progress.steps > 1:
        text += f" {progress.step} of {progress.steps}"
    if progress.eta_seconds is not None and progress.eta_seconds >= 0.05:
        text += f", about {duration(progress.eta_seconds)} left"
    return text


class PlainReporter:
    """Whole lines only. `now` is for tests."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._now = stream, now
        self._label = ""
        self._stage: Stage | None = None
        self._told = 0.0

    def say(self, text: str = "") -> None:
        print(printable(text), file=self._stream, flush=True)

    def begin(self, label: str) -> None:
        self._label, self._stage = label, None

    def update(self, progress: Progress) -> None:
        moment = self._now()
        if progress.stage == self._stage and moment - self._told < _PLAIN_SECONDS:
            return
        self._stage, self._told = progress.stage, moment
        self.say(f"{self._label}: {describe(progress)}")

    def tell(self, fraction: float, text: str) -> None:
        moment = self._now()
        if moment - self._told >= _PLAIN_SECONDS:
            self._told = moment
            self.say(f"{self._label}: {fraction:.0%}, {text}")

    def end(self) -> None:
        self._stage = None

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
        for row in [columns, *rows]:
            self.say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


class RichReporter:
    """A bar that moves below the lines that stay."""

    def __init__(self, console: Any) -> None:
        self._console = console
        self._bar: Any = None
        self._task: Any = None
        self._label = ""

    def say(self, text: str = "") -> None:
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def begin(self, label: str) -> None:
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        # No refreshing thread: on two cores it would take its share from the clip.
        self._bar = Bar(*columns, console=self._console, transient=True, auto_refresh=False)
        self._label = label
        self._task = self._bar.add_task(printable(label), total=1.0)
        self._bar.start()

    def update(self, progress: Progress) -> None:
        self.tell(progress.fraction, describe(progress))

    def tell(self, fraction: float, text: str) -> None:
        if self._bar is not None:
            shown = printable(f"{self._label}: {text}")
            self._bar.update(self._task, completed=fraction, description=shown, refresh=True)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = None

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns, box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(Text(printable(cell), overflow="fold") for cell in row))
        self._console.print(table)
