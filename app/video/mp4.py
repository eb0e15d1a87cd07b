"""What an MP4 says about itself, read without decoding: size, frames, duration, colour, and its text tags.

An MP4 is a tree of boxes: 4 bytes length, 4 bytes name, then the body (ISO/IEC 14496-12; the ``ilst`` tags are
Apple's). Files come from strangers, so the walker seeks from header to header, keeps every box inside its parent,
visits a bounded number of them, and reads only bodies it knows, each with a cap.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO

MAX_TAG_BYTES = 8 * 1024 * 1024
"""Longest text tag read: room for eight prompts of the longest kind (100,000 characters), at ten bytes each."""
MAX_BOXES = 4096
"""Boxes visited in one file. One of our own clips has about 40."""
TAGS = {b"\xa9nam": "title", b"\xa9too": "encoder", b"\xa9cmt": "comment", b"desc": "description"}


class Mp4Error(Exception):
    """Not an MP4, or a broken one; the text is the end of a sentence that starts with the file's name."""


@dataclass
class Mp4:
    """Facts of the first video track. Sizes in pixels; profile, colour and range as H.264 numbers them."""

    codec: str = ""
    width: int = 0
    height: int = 0
    frames: int = 0
    seconds: Fraction = Fraction(0)
    profile: int | None = None
    colour: tuple[int, int, int] | None = None
    full_range: bool | None = None
    faststart: bool = False
    tags: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class _Box:
    kind: bytes
    start: int
    end: int


def read(path: Path) -> Mp4:
    """The facts of ``path``. Raises Mp4Error for anything but a whole MP4, OSError when it cannot be opened."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would block, a device never end
        raise Mp4Error("is not a file")
    with open(path, "rb") as file:
        return _Walker(file, os.fstat(file.fileno()).st_size).read()


class _Walker:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.size = size
        self.visited = 0
        self.facts = Mp4()

    def read(self) -> Mp4:
        if self.size < 8 or self.bytes(4, 4) != b"ftyp":
            raise Mp4Error("is not an MP4 file" if self.size else "is empty")
        top = list(self.children(0, self.size))
        order = [box.kind for box in top if box.kind in (b"moov", b"mdat")]
        if b"moov" not in order:
            raise Mp4Error("is an MP4 file without an index; it was cut short or never finished")
        if b"mdat" not in order:
            raise Mp4Error("is an MP4 file without pictures; it was cut short")
        self.facts.faststart = order[0] == b"moov"
        self.movie(next(box for box in top if box.kind == b"moov"))
        return self.facts

    def movie(self, moov: _Box) -> None:
        for box in self.children(moov.start, moov.end):
            if box.kind == b"trak" and not self.facts.codec:
                self.track(box)
            elif box.kind == b"udta":
                self.texts(box)

    def track(self, trak: _Box) -> None:
        media = self.child(trak, b"mdia")
        handler = media and self.child(media, b"hdlr")
        if not media or not handler or self.bytes(handler.start + 8, 4, handler) != b"vide":
            return
        header, info = self.child(media, b"mdhd"), self.child(media, b"minf")
        table = info and self.child(info, b"stbl")
        if not header or not table:
            raise Mp4Error("is an MP4 file whose video track has no index")
        self.facts.seconds = self.duration(header)
        sizes, kinds = self.child(table, b"stsz"), self.child(table, b"stsd")
        if not sizes or not kinds:
            raise Mp4Error("is an MP4 file whose video track has no index")
        (self.facts.frames,) = struct.unpack(">I", self.bytes(sizes.start + 8, 4, sizes))
        for entry in self.children(kinds.start + 8, kinds.end):
            self.sample_entry(entry)
            break

    def duration(self, header: _Box) -> Fraction:
        if self.bytes(header.start, 1, header) == b"\1":
            scale, units = struct.unpack(">IQ", self.bytes(header.start + 20, 12, header))
        else:
            scale, units = struct.unpack(">II", self.bytes(header.start + 12, 8, header))
        if not scale:
            raise Mp4Error("is an MP4 file whose clock stands still")
        return Fraction(units, scale)

    def sample_entry(self, entry: _Box) -> None:
        self.facts.codec = entry.kind.decode("latin-1")
        self.facts.width, self.facts.height = struct.unpack(">HH", self.bytes(entry.start + 24, 4, entry))
        for box in self.children(entry.start + 78, entry.end):
            if box.kind == b"avcC":
                self.facts.profile = self.bytes(box.start + 1, 1, box)[0]
            elif box.kind == b"colr" and self.bytes(box.start, 4, box) == b"nclx":
                primaries, transfer, matrix, flags = struct.unpack(">HHHB", self.bytes(box.start + 4, 7, box))
                self.facts.colour, self.facts.full_range = (primaries, transfer, matrix), bool(flags & 0x80)

    def texts(self, udta: _Box) -> None:
        meta = self.child(udta, b"meta")
        if not meta:
            return
        # QuickTime's meta has no version field in front of its boxes.
        skip = 0 if self.bytes(meta.start + 4, 4, meta) == b"hdlr" else 4
        for listing in self.children(meta.start + skip, meta.end):
            if listing.kind == b"ilst":
                for item in self.children(listing.start, listing.end):
                    name = TAGS.get(item.kind)
                    data = self.child(item, b"data") if name and name not in self.facts.tags else None
                    if name and data:
                        self.facts.tags[name] = self.text(data)

    def text(self, data: _Box) -> bytes:
        length = data.end - data.start - 8
        if length > MAX_TAG_BYTES:
            raise Mp4Error(f"is an MP4 file with a text of {length:,} bytes; at most {MAX_TAG_BYTES:,} are read")
        return self.bytes(data.start + 8, length, data)

    def child(self, parent: _Box, kind: bytes) -> _Box | None:
        return next((box for box in self.children(parent.start, parent.end) if box.kind == kind), None)

    def children(self, start: int, end: int) -> Iterator[_Box]:
        """The boxes between two offsets. A rest shorter than a header is padding, as QuickTime writes it."""
        while end - start >= 8:
            self.visited += 1
            if self.visited > MAX_BOXES:
                raise Mp4Error(f"is an MP4 file of more than {MAX_BOXES:,} boxes")
            size, kind = struct.unpack(">I4s", self.bytes(start, 8))
            body = start + 8
            if size == 1 and end - start >= 16:
                (size,) = struct.unpack(">Q", self.bytes(body, 8))
                body += 8
            elif size == 0:
                size = end - start
            if size < body - start or start + size > end:
                raise Mp4Error("is an MP4 file that is damaged or was cut short")
            yield _Box(kind, body, start + size)
            start += size

    def bytes(self, start: int, length: int, box: _Box | None = None) -> bytes:
        if length < 0 or (box and start + length > box.end):
            raise Mp4Error("is an MP4 file that is damaged or was cut short")
        self.file.seek(start)
        data = self.file.read(length)
        if len(data) < length:
            raise Mp4Error("is an MP4 file that is damaged or was cut short")
        return data
