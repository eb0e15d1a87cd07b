"""Reading JSON that people wrote: strict, bounded, and every error with its line and column.

The standard reader takes NaN, Infinity and duplicate keys, says no position for them, and recurses as deep as the file
asks. This one refuses all three, caps size, depth and number length, and remembers where each value stood, so that
a later complaint about ``request.steps`` can name the line. Strings are still decoded by the standard library.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from app.errors import UsageError

MAX_BYTES = 2 * 1024 * 1024
"""Default size cap: two prompts of 100,000 characters, each written as a six-byte escape, still fit."""
MAX_DEPTH = 32
MAX_VALUES = 100_000
"""Most values in one text: two million brackets in a small file would take hundreds of MiB otherwise."""
MAX_DIGITS = 64
"""Longest number literal; 2**53 has 16 digits and the longest float64 has 24 characters."""

Keys = tuple[str | int, ...]
"""Where a value stands: keys and list positions from the outside in."""

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[-+]?[A-Za-z_][A-Za-z0-9_]*|[-+.0-9][-+.0-9A-Za-z_]*")
_JOINERS = "\u200c\u200d"  # parts of emoji and of Persian words
_LITERALS = {"true": True, "false": False, "null": None}
_HINTS = {
    "NaN": "not-a-number is not allowed; write a number or null",
    "Infinity": "infinity is not allowed; write a number or null",
    "-Infinity": "infinity is not allowed; write a number or null",
    "True": "write true in small letters",
    "False": "write false in small letters",
    "None": "write null",
    "undefined": "write null",
}


@dataclass(frozen=True)
class Document:
    """A parsed value and where each part of it stood, and the key of it. ``source`` is how errors name it."""

    source: str
    value: Any
    text: str = ""
    offsets: Mapping[Keys, int] = field(default_factory=dict)
    one_line: bool = False
    keys: Mapping[Keys, int] = field(default_factory=dict)

    def place(self, path: Keys = (), key: bool = False) -> str:
        """``source`` with line and column where ``path`` (or its nearest known parent) stood, if there was a text;
        ``key``: where its key stood.
        """
        if not self.offsets:
            return self.source
        known = self.keys if key and path in self.keys else self.offsets
        while path and path not in known:
            path = path[:-1]
        return f"{self.source}{_position(self.text, known.get(path, 0), self.one_line)}"


def parse(data: str | bytes, source: str, *, limit: int = MAX_BYTES, one_line: bool = False) -> Document:
    """Parse one JSON text (UTF-8, a byte order mark is allowed).

    ``one_line``: the source's name already says the line, so errors name the column only.
    Raises UsageError with source, line and column for everything that is not strict JSON within the caps.
    """
    text = _decode(data, source, limit)
    text = text.rstrip("\r\n") if one_line else text  # where a line ends is its last column's place
    return _Parser(text, source, one_line).document()


def dumps(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """``value`` as strict JSON, characters as they are (not escaped).

    Raises ValueError for NaN and infinity.
    """
    separators = None if indent else (",", ":")
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators, sort_keys=sort_keys
    )


def dotted(path: Keys) -> str:
    """A path as people write it: ``request.loras.0.name``."""
    return ".".join(str(part) for part in path)


def short(value: Any, width: int = 60) -> str:
    """``value`` as JSON for a message, cut to about ``width`` characters."""
    if isinstance(value, str):
        value = value[: width * 2]
    elif isinstance(value, (list, tuple)):
        value = list(value[:width])
    elif isinstance(value, Mapping):
        value = dict(list(value.items())[:width])
    try:
        text = json.dumps(value, ensure_ascii=False, default=lambda other: type(other).__name__)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return printable((text if len(text) <= width else text[: width - 1] + "…").encode("utf-8", "replace").decode())


def printable(text: str) -> str:
    """``text`` as a terminal may get it: what moves its cursor, hides or turns round other characters becomes "?".

    File names, prompts and clips come from strangers, and so do the words that messages quote from them.
    """
    return "".join(c if c.isprintable() or c in _JOINERS or unicodedata.category(c) == "Zs" else "?" for c in text)


def _decode(data: str | bytes, source: str, limit: int) -> str:
    size = len(data)
    if size > limit:
        raise UsageError(f"{source}: {size:,} bytes is too long; at most {limit:,} are read.")
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UsageError(f"{source}: this is UTF-16 text; save it as UTF-8.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{source}, line {line}: byte {error.start + 1:,} is not UTF-8 text; save the file as UTF-8."
        ) from error


def _position(text: str, at: int, one_line: bool) -> str:
    """ ", line 3, column 5"; the source of one line says which one it is."""
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    line = "" if one_line else f", line {text.count(chr(10), 0, at) + 1}"
    return f"{line}, column {column}"


class _Parser:
    def __init__(self, text: str, source: str, one_line: bool) -> None:
        self.text = text
        self.source = source
        self.one_line = one_line
        self.offsets: dict[Keys, int] = {}
        self.keys: dict[Keys, int] = {}
        self.strings = json.JSONDecoder()

    def document(self) -> Document:
        start = self.skip(0)
        if start == len(self.text):
            self.fail(start, "there is nothing here; a JSON object was expected")
        value, end = self.value(start, (), 0)
        end = self.skip(end)
        if end < len(self.text):
            self.fail(end, f"{self.shown(end)} stands after the end of the JSON; remove it")
        return Document(self.source, value, self.text, self.offsets, self.one_line, self.keys)

    def value(self, at: int, path: Keys, depth: int) -> tuple[Any, int]:
        self.offsets[path] = at
        if len(self.offsets) > MAX_VALUES:
            self.fail(at, f"there are more than {MAX_VALUES:,} values here")
        head = self.text[at : at + 1]
        if head == '"':
            return self.string(at)
        if head in ("{", "["):
            if depth >= MAX_DEPTH:
                self.fail(at, f"nested deeper than {MAX_DEPTH} levels; flatten it")
            return self.object(at, path, depth) if head == "{" else self.array(at, path, depth)
        return self.scalar(at)

    def object(self, at: int, path: Keys, depth: int) -> tuple[dict[str, Any], int]:
        result: dict[str, Any] = {}
        at = self.skip(at + 1)
        if self.text[at : at + 1] == "}":
            return result, at + 1
        while True:
            if self.text[at : at + 1] != '"':
                self.fail(at, f"a key in double quotes was expected, not {self.shown(at)}{self.trailing(at, '}')}")
            key, end = self.string(at)
            if key in result:
                self.fail(at, f"the key {short(key)} stands here a second time; keep one of them")
            end = self.skip(end)
            if self.text[end : end + 1] != ":":
                self.fail(end, f'a ":" was expected after the key {short(key)}, not {self.shown(end)}')
            self.keys[(*path, key)] = at
            result[key], end = self.value(self.skip(end + 1), (*path, key), depth + 1)
            at, done = self.next_item(self.skip(end), "}")
            if done:
                return result, at

    def array(self, at: int, path: Keys, depth: int) -> tuple[list[Any], int]:
        result: list[Any] = []
        at = self.skip(at + 1)
        if self.text[at : at + 1] == "]":
            return result, at + 1
        while True:
            if self.text[at : at + 1] == "]":
                self.fail(at, f'a value was expected, not "]"{self.trailing(at, "]")}')
            item, end = self.value(at, (*path, len(result)), depth + 1)
            result.append(item)
            at, done = self.next_item(self.skip(end), "]")
            if done:
                return result, at

    def next_item(self, at: int, closing: str) -> tuple[int, bool]:
        """Past a comma to the next item, or past the closing bracket."""
        head = self.text[at : at + 1]
        if head == closing:
            return at + 1, True
        if head != ",":
            self.fail(at, f'"," or "{closing}" was expected, not {self.shown(at)}')
        return self.skip(at + 1), False

    def string(self, at: int) -> tuple[str, int]:
        try:
            value, end = self.strings.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            self.fail(error.pos, _string_problem(error.msg))
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            self.fail(at, "this text holds half of a surrogate pair (a broken \\u escape); write the character itself")
        return value, end

    def scalar(self, at: int) -> tuple[Any, int]:
        found = _WORD.match(self.text, at)
        if not found:
            self.fail(at, f"a value was expected, not {self.shown(at)}")
        word = found.group()
        if word in _LITERALS:
            return _LITERALS[word], found.end()
        if word in _HINTS:
            self.fail(at, f"{word}: {_HINTS[word]}")
        if not _NUMBER.fullmatch(word):
            self.fail(at, f"{short(word)} is neither a number nor true, false, null; put text in double quotes")
        if len(word) > MAX_DIGITS:
            self.fail(at, f"this number has {len(word):,} characters; at most {MAX_DIGITS} are read")
        if word.lstrip("-").isdigit():
            return int(word), found.end()
        number = float(word)
        if not math.isfinite(number):
            self.fail(at, f"{word} is too large for a number")
        return number, found.end()

    def skip(self, at: int) -> int:
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def shown(self, at: int) -> str:
        if at >= len(self.text):
            return f"the end of the {'line' if self.one_line else 'file'}"
        if self.text.startswith(("//", "/*", "#"), at):
            return "a comment (JSON has none)"
        return short(self.text[at])

    def trailing(self, at: int, closing: str) -> str:
        return "; remove the comma before it" if self.text[at : at + 1] == closing else ""

    def fail(self, at: int, problem: str) -> NoReturn:
        place = _position(self.text, min(at, len(self.text)), self.one_line)
        raise UsageError(f"{self.source}{place}: {problem}.")


def _string_problem(message: str) -> str:
    if message.startswith("Unterminated"):
        return 'this text has no closing double quote; add the missing "'
    if message.startswith("Invalid control"):
        return "a line break or control character stands inside a text; write \\n or the escape instead"
    return 'a "\\" inside a text starts an escape that does not exist; write "\\\\" or use "/"'
