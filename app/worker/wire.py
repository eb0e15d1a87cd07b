"""Messages between processes: a JSON object and, beside it, bytes (a picture). The same frames go through the pipe to
the worker and the socket to the owner of the queue. Nothing is unpickled, and a length that no message has is refused.
"""

from __future__ import annotations

import json
import struct
import threading
from typing import Any, BinaryIO

Message = dict[str, Any]

MAX_TEXT = 64 * 1024 * 1024
MAX_BLOB = 256 * 1024 * 1024
_HEAD = struct.Struct(">II")


class Closed(EOFError):  # noqa: N818 (the ordinary end of a conversation)
    """The other side is gone, or says what no message is."""


class Channel:
    """Both directions of one conversation over binary files. Any thread may send; one thread receives."""

    def __init__(self, reading: BinaryIO, writing: BinaryIO) -> None:
        self._reading, self._writing = reading, writing
        self._sending = threading.Lock()

    def send(self, message: Message, blob: bytes = b"") -> None:
        """Send one message, whole. Raises Closed."""
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
        try:
            with self._sending:
                self._writing.write(_HEAD.pack(len(text), len(blob)) + text)
                if blob:
                    self._writing.write(blob)
                self._writing.flush()
        except (OSError, ValueError) as error:  # ValueError: the file was closed on this side
            raise Closed(str(error)) from None

    def receive(self, limit: int = MAX_TEXT) -> tuple[Message, bytes]:
        """The next message; waits for it. Raises Closed, also for a text of more than `limit` bytes."""
        size, extra = _HEAD.unpack(self._read(_HEAD.size))
        if size > limit or extra > (MAX_BLOB if limit == MAX_TEXT else 0):
            raise Closed(f"a message of {size + extra:,} bytes")
        try:
            message = json.loads(self._read(size))
        except (ValueError, RecursionError) as error:
            raise Closed(f"no message: {error}") from None
        if not isinstance(message, dict):
            raise Closed("no message: an object was expected")
        return message, self._read(extra) if extra else b""

    def close(self) -> None:
        """Close what this side writes, so that the other one sees the end; its reading ends with the other side's."""
        try:
            self._writing.close()
        except OSError:  # what could not be flushed is of no interest any more
            return

    def _read(self, size: int) -> bytes:
        try:
            data = self._reading.read(size)
        except (OSError, ValueError) as error:
            raise Closed(str(error)) from None
        if data is None or len(data) < size:
            raise Closed("the other side is gone")
        return data
