"""A worker's process on another machine, as the `Worker` that a keeper starts, listens to and ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from app.errors import KinetileError
from app.plain import from_data
from app.remote.cluster import LostError, Place
from app.remote.host import Said
from app.worker.supervisor import Death
from app.worker.wire import MAX_TEXT, Channel, Closed, Message

HEAR_SECONDS = 2.0
"""How long a question for news stays open on the other side."""
END_SECONDS = 5.0


class FarChannel(Channel):
    """A conversation through the actor at `place` with its process of that number."""

    def __init__(self, place: Place, number: int) -> None:
        self._place, self._number = place, number
        self._came: deque[Said] = deque()
        self._over = False
        self.death = Death("", None)

    def send(self, message: Message, blob: bytes = b"") -> None:
        assert not blob, "nothing that is told to a worker has a picture"
        try:
            told = not self._over and self._place.call("tell", self._number, message, should_stop=self._is_over)
        except KinetileError as error:
            raise Closed(str(error)) from None
        if not told:
            raise Closed("the process there has ended")

    def receive(self, limit: int = MAX_TEXT) -> Said:
        while not self._came:
            if self._over:
                raise Closed("hung up")
            try:
                self._came += self._place.call("hear", self._number, HEAR_SECONDS, should_stop=self._is_over)
            except KinetileError as error:
                self.death = Death("", None, str(error))
                if isinstance(error, LostError):
                    self._place.drop()
                raise Closed(str(error)) from None
        message, blob = self._came.popleft()
        if message["say"] == "ended":
            if message["death"] is not None:
                self.death = from_data(Death, message["death"])
            raise Closed("the process there has ended")
        return message, blob

    def close(self) -> None:
        self._over = True

    def _is_over(self) -> bool:
        return self._over


class FarWorker:
    """Raises LostError, CannotRunError or Cancelled when no process can be started at `place`."""

    pid = 0  # it has none here

    def __init__(self, place: Place, should_stop: Callable[[], bool]) -> None:
        place.open(should_stop)
        self._place = place
        self._number: int = place.call("start", should_stop=should_stop)
        self._far = FarChannel(place, self._number)
        self.channel: Channel = self._far
        self._cpu = 0.0

    def wait(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        try:
            while not self._place.call("has_ended", self._number, 0.5, seconds=seconds + END_SECONDS):
                if time.monotonic() > until:
                    return False
        except KinetileError:
            return True
        return True

    def kill(self) -> None:
        self.channel.close()
        try:
            self._place.call("kill", self._number, seconds=END_SECONDS)
        except KinetileError:  # the actor does not answer: it goes, and its process with it
            self._place.drop()

    def death(self) -> Death:
        return self._far.death

    def cpu_seconds(self) -> float:
        try:
            self._cpu = self._place.call("cpu_seconds", self._number, seconds=END_SECONDS)
        except KinetileError:
            return self._cpu
        return self._cpu
