"""Every error that Kinetile raises on purpose, and the exit code each one means.

    KinetileError           1    anything below; catch this one at a boundary
    ├── UsageError          2    bad usage, preset or request; the person can fix it
    │   ├── SourceError          several mistakes of one source
    │   └── NameTakenError       another preset has the name
    ├── CannotRunError      3    this machine can't do it (disk, encoder, memory)
    │   ├── PlanRefusedError     a forced accelerator can't run on it
    │   ├── ModelMissingError    the model's files are not on it
    │   └── DatabaseError   3    the queue's database can't be read or written
    ├── JobFailedError      1    one clip failed; others may still run
    └── Cancelled         130    stopped on request

``str(error)`` is one sentence for a person: what, which value, what is allowed, what to do next. What only a command
line offers stands in it in parentheses, "(on the command line: --accel vae=stock)", and `on_page` leaves that out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

_BY_COMMAND = re.compile(r" \(on the command line: [^()]*\)")


class KinetileError(Exception):
    """Base of all expected errors; ``exit_code`` is what the process returns when nothing catches it."""

    exit_code: ClassVar[int] = 1


class UsageError(KinetileError):
    """The command line, a preset, a share code or a request is not acceptable."""

    exit_code: ClassVar[int] = 2


class SourceError(UsageError):
    """One source has several mistakes. problems: a sentence for each; the error's own is the first and their number."""

    def __init__(self, message: str, problems: Sequence[UsageError] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class NameTakenError(UsageError):
    """Another preset of one's own has this name."""


class CannotRunError(KinetileError):
    """The request is fine, but not on this machine as it is now."""

    exit_code: ClassVar[int] = 3


class DatabaseError(CannotRunError):
    """The queue's database can't be read or written: `app.queue.trouble` says why, and what to do."""


class PlanRefusedError(CannotRunError):
    """An accelerator that the request forces can't run on this machine."""


class ModelMissingError(CannotRunError):
    """The model's files are not on this machine, or not all of them; only the clips that need it can't be made."""


class JobFailedError(KinetileError):
    """One clip could not be finished."""

    exit_code: ClassVar[int] = 1


class Cancelled(KinetileError):  # noqa: N818 (an answer to a wish, not an error)
    """Somebody asked the run to stop, and it did."""

    exit_code: ClassVar[int] = 130


def mistakes_of(error: UsageError) -> tuple[UsageError, ...]:
    """Every mistake that an error stands for: itself, if for no other."""
    return (error.problems if isinstance(error, SourceError) else ()) or (error,)


def refuse_all(problems: Sequence[UsageError]) -> None:
    """Raise UsageError if there are mistakes: the one that there is, or SourceError of them all."""
    found = [mistake for problem in problems for mistake in mistakes_of(problem)]
    if len(found) == 1:
        raise found[0]
    if found:
        more = len(found) - 1
        raise SourceError(f"{found[0]} ({more:,} more mistake{'s' * (more > 1)}.)", found)


def on_page(sentence: object) -> str:
    """A sentence, or an error's, as the page tells it: without what only a command line offers."""
    return _BY_COMMAND.sub("", str(sentence))


def error_named(kind: str, message: str, detail: str = "") -> KinetileError:
    """The error that another process raised as one of this class; KinetileError where it is no such class."""
    found = globals().get(kind)
    made = found if isinstance(found, type) and issubclass(found, KinetileError) else KinetileError
    error: KinetileError = made(message)
    error.detail = detail  # type: ignore[attr-defined]
    return error
