"""Reading what others wrote (a model's tables, readouts, records): no pipe or device, no more than a cap, and JSON that
can't cost more memory or time than its size suggests.
"""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

MAX_JSON_BYTES = 16 * 1024 * 1024
MAX_VALUES = 1_000_000
"""Most brackets and commas in one JSON text: Python makes up to a hundred bytes of each."""
MAX_DEPTH = 32
MAX_DIGITS = 64
"""Longest whole number; sizes have 20 digits, and products of longer ones would take for ever."""


def open_file(path: Path) -> BinaryIO:
    """A regular file, opened for reading. Raises OSError, also for what is none: a pipe would block, a device never
    end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError("it is not a file")
    return path.open("rb")


def read_file(path: Path, limit: int) -> bytes:
    """All of a regular file. Raises OSError, ValueError for more than `limit` bytes, of which no more is read."""
    with open_file(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"it has more than {limit:,} bytes, which is too long to be read")
    return data


def read_json(path: Path, limit: int = MAX_JSON_BYTES, *, finite: bool = True) -> Any:
    """The value in a JSON file. Raises OSError, ValueError as `read_file` and `parse_json` do."""
    return parse_json(read_file(path, limit), finite=finite)


def parse_json(text: bytes, *, finite: bool = True) -> Any:
    """The value of a JSON text in UTF-8. Raises ValueError for what is none, and for what no honest program writes:
    NaN and infinity (unless not `finite`), endless numbers, halves of surrogate pairs, more than MAX_VALUES values or
    MAX_DEPTH levels."""
    if has_too_many_values(text):
        raise ValueError(f"there are more than {MAX_VALUES:,} values in it")
    try:
        numbers: dict[str, Any] = {"parse_constant": _refused, "parse_float": _finite} if finite else {}
        value = json.loads(text.decode("utf-8-sig"), parse_int=_int, **numbers)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    _check(value)
    return value


def has_too_many_values(text: bytes | bytearray) -> bool:
    """Whether a JSON text may hold more than MAX_VALUES values, before any is made."""
    return sum(map(text.count, (b"[", b"{", b","))) > MAX_VALUES


def _refused(text: str) -> Any:
    raise ValueError(f"{text[:40]} is no number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refused(text)


def _int(text: str) -> int:
    return int(text) if len(text) <= MAX_DIGITS else _refused(text)


def _check(value: Any) -> None:
    """Level by level, since recursion would end with the nesting that it looks for."""
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                below += [*part.keys(), *part.values()]
            elif isinstance(part, list):
                below += part
            elif isinstance(part, str):
                part.encode()  # UnicodeEncodeError is a ValueError
        if not below:
            return
        level = below
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
