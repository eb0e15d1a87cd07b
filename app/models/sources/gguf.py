"""What tensors a GGUF file holds, from its table alone.

The format (version 2 and 3, little-endian): "GGUF", version, counts of tensors and of metadata entries, the entries,
then for each tensor its name, number of sides, sides (innermost first), type and offset; as ggml's docs/gguf.md
specifies. Loading such a file is diffusers' task, with the package `gguf`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from accel.reading import open_file

MAX_TEXT = 2**26
"""Longest text accepted; a tokenizer's whole vocabulary comes as many short ones."""
MAX_ENTRIES = 2**20
"""Most entries, values of lists and tensors in all: a file of many nothings would be read for ever."""

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TEXT, _ARRAY = 8, 9


def read_tensors(file: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a GGUF file. Raises OSError, ValueError for what is none or is cut short."""
    with open_file(file) as opened:
        table = _Table(opened)
        if table.take(4) != b"GGUF":
            raise ValueError("it is no GGUF file")
        version = table.number("<I")
        if version not in (2, 3):
            raise ValueError(f"it is GGUF of version {version}; 2 and 3 are read")
        tensors, entries = table.count(), table.count()
        for _ in range(entries):
            table.text()
            table.skip_value(table.number("<I"))
        found = {}
        for _ in range(tensors):
            name, sides = table.text(), table.number("<I")
            if sides > 8:
                raise ValueError("its table is none")
            found[name] = tuple(table.number("<Q") for _ in range(sides))[::-1]
            table.take(12)  # type and offset
        return found


class _Table:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = MAX_ENTRIES

    def take(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ValueError("it ends inside its table")
        return data

    def number(self, kind: str) -> int:
        return int(struct.unpack(kind, self.take(struct.calcsize(kind)))[0])

    def count(self) -> int:
        """How many of something follow."""
        found = self.number("<Q")
        self._left -= found
        if self._left < 0:
            raise ValueError("its table is none")
        return found

    def text(self) -> str:
        size = self.number("<Q")
        if size > MAX_TEXT:
            raise ValueError("its table is none")
        return self.take(size).decode("utf-8", errors="replace")

    def skip_value(self, kind: int, depth: int = 0) -> None:
        if kind in _SIZES:
            self.take(_SIZES[kind])
        elif kind == _TEXT:
            self.text()
        elif kind == _ARRAY and depth < 4:
            inner = self.number("<I")
            if inner in _SIZES:
                size = _SIZES[inner] * self.number("<Q")
                if size > MAX_TEXT:
                    raise ValueError("its table is none")
                self.take(size)
            else:
                for _ in range(self.count()):
                    self.skip_value(inner, depth + 1)
        else:
            raise ValueError("its table is none")
