"""One process owns the queue of a data folder; others hand their work over to it through a door on this machine.

The owner holds a file lock (which the system frees however the owner ends), listens on a port of the loopback
interface and leaves the port with a fresh key in a file that only its user can read. Both sides prove that they know
the key before anything else is said. Calls are the methods of `Service`, encoded by their own type hints.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast, get_type_hints

import numpy as np

from app import __version__
from app.answers import Accelerator, PlanAnswer
from app.errors import CannotRunError, KinetileError
from app.estimate import Estimate
from app.fetching import Fetching
from app.measuring import MeasureAsk, Measuring
from app.paths import Home
from app.plain import from_data, to_data
from app.queue.jobs import ENDED, History, Job, JobSpec, JobState, Removal
from app.queue.keeper import error_from
from app.queue.news import LocalSubscription
from app.queue.service import Event, OwnerGoneError, Preview, Service, Snapshot, Subscription
from app.request import AccelPreferences, GenerationRequest
from app.worker.wire import Channel, Closed, Message

HANDSHAKE_SECONDS = 5.0
CALL_SECONDS = 60.0
ASK_SECONDS = 900.0
GREETING_BYTES = 1024
CALLS = (
    "submit", "want", "get", "snapshot", "move", "hold", "remove", "undo", "duplicate", "retry", "cancel", "history",
    "known", "plan", "estimate", "doctor", "accelerators", "readouts", "measure", "measuring",
    "stop_measuring", "fetch", "fetching", "stop_fetching", "forget_fetch", "preferences", "set_preferences",
)  # fmt: skip
_SLOW = ("plan", "estimate", "doctor", "accelerators", "readouts", "set_preferences")


def _card(home: Home) -> Path:
    """The file that says where the owner's door is."""
    return home.database.with_name("owner.json")


def who(home: Home) -> str:
    """Which process owns the queue, to complete "Another Kinetile"; empty when it is not known."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return f" (process {json.loads(_card(home).read_text(encoding='utf-8'))['pid']})"
    return ""


def _proof(key: str, side: str, nonce: str) -> str:
    return hmac.new(key.encode(), f"{side} {nonce}".encode(), hashlib.sha256).hexdigest()


@functools.cache
def _hints(call: str) -> dict[str, Any]:
    return get_type_hints(getattr(Service, call))


class Door:
    """The owner's side: answers calls of other processes on `service`, each connection in a thread of its own."""

    def __init__(self, service: Service, home: Home) -> None:
        self._service, self._home = service, home
        self._key = secrets.token_hex(32)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0.5)  # so that closing is noticed on every system
        self._over = threading.Event()
        self._write_card(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        self._over.set()
        with contextlib.suppress(OSError):
            _card(self._home).unlink()

    def _write_card(self, port: int) -> None:
        card = _card(self._home)
        partial = card.with_name(f"{card.name}.{os.getpid()}.partial")
        with contextlib.suppress(OSError):
            partial.unlink()
        try:
            handle = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"pid": os.getpid(), "port": port, "key": self._key, "version": __version__}, file)
            os.replace(partial, card)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _accept(self) -> None:
        with self._listening:
            while not self._over.is_set():
                try:
                    caller, _ = self._listening.accept()
                except TimeoutError:
                    continue
                except OSError:
                    return
                threading.Thread(target=self._serve, args=(caller,), name="door-caller", daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(Closed, OSError):
            caller.settimeout(HANDSHAKE_SECONDS)
            channel = _channel(caller)
            if not self._greet(channel):
                return
            caller.settimeout(None)
            while not self._over.is_set():
                message, _ = channel.receive()
                if message.get("call") == "subscribe":
                    self._stream(channel)
                    return
                channel.send(*self._answer(message))

    def _greet(self, channel: Channel) -> bool:
        nonce = secrets.token_hex(16)
        channel.send({"nonce": nonce})
        message, _ = channel.receive(GREETING_BYTES)
        if not hmac.compare_digest(str(message.get("proof")), _proof(self._key, "client", nonce)):
            return False
        channel.send({"proof": _proof(self._key, "owner", str(message.get("nonce"))), "version": __version__})
        return True

    def _answer(self, message: Message) -> tuple[Message, bytes]:
        call, arguments = str(message.get("call")), message.get("arguments") or {}
        try:
            if call == "preview":
                return _preview_out(self._service.preview(int(arguments["job"])))
            if call not in CALLS:
                raise CannotRunError(f"The owner of the queue knows no call {call[:40]!r}: restart it.")
            hints = _hints(call)
            decoded = {name: from_data(hints[name], value) for name, value in arguments.items()}
            result = getattr(self._service, call)(**decoded)
            return {"result": None if result is None else to_data(result, hints["return"])}, b""
        except KinetileError as error:
            detail = str(getattr(error, "detail", ""))
            return {"kind": type(error).__name__, "message": str(error), "detail": detail}, b""
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            return {"kind": "KinetileError", "message": f"{call} failed in the queue's owner ({reason})."}, b""

    def _stream(self, channel: Channel) -> None:
        with self._service.subscribe() as news:
            channel.send({"subscribed": True})
            while True:
                try:
                    event = news.get(5.0)
                except OwnerGoneError:
                    return
                channel.send({"event": None if event is None else to_data(event)})


class RemoteService(Service):
    """The service of another process. Raises OwnerGoneError, from the constructor too, when that can't be reached."""

    owner = False

    def __init__(self, home: Home) -> None:
        self._home = home
        self._connect().close()

    def stop(self, now: bool = False, finish: bool = False) -> None:
        """Nothing to leave: every call has its own connection."""

    def submit(self, specs: Sequence[JobSpec], held: bool = False) -> tuple[Job, ...]:
        return self._call("submit", specs=specs, held=held)

    def want(self, batch: str) -> None:
        self._call("want", batch=batch)

    def get(self, ids: Sequence[int]) -> tuple[Job, ...]:
        return self._call("get", ids=ids)

    def snapshot(self) -> Snapshot:
        return self._call("snapshot")

    def move(self, identity: int, to: int) -> None:
        self._call("move", identity=identity, to=to)

    def hold(self, ids: Sequence[int], held: bool = True) -> None:
        self._call("hold", ids=ids, held=held)

    def remove(self, ids: Sequence[int]) -> Removal:
        return self._call("remove", ids=ids)

    def undo(self, removal: Removal) -> tuple[Job, ...]:
        return self._call("undo", removal=removal)

    def duplicate(self, identity: int, new_seed: bool = False) -> Job:
        return self._call("duplicate", identity=identity, new_seed=new_seed)

    def retry(self, identity: int) -> Job:
        return self._call("retry", identity=identity)

    def cancel(self, ids: Sequence[int], now: bool = False) -> None:
        self._call("cancel", ids=ids, now=now)

    def history(
        self, search: str = "", offset: int = 0, limit: int = 50, states: Sequence[JobState] = ENDED
    ) -> History:
        return self._call("history", search=search, offset=offset, limit=limit, states=states)

    def known(self, keys: Sequence[str]) -> dict[str, Job]:
        return self._call("known", keys=keys)

    def subscribe(self) -> Subscription:
        connection = self._connect()
        connection.send({"call": "subscribe"})
        connection.receive()
        connection.wait_forever()
        made = LocalSubscription(lambda _: connection.close())
        threading.Thread(target=_listen, args=(connection, made), name="owner-listener", daemon=True).start()
        return made

    def preview(self, job: int) -> Preview | None:
        with self._connect() as connection:
            connection.send({"call": "preview", "arguments": {"job": job}})
            return _preview_in(*connection.receive())

    def plan(self, request: GenerationRequest, recorded: Any = None) -> PlanAnswer:
        return self._call("plan", request=request, recorded=recorded)

    def estimate(self, request: GenerationRequest, folder: Path | None = None) -> Estimate:
        return self._call("estimate", request=request, folder=folder)

    def doctor(self) -> dict[str, Any]:
        return self._call("doctor")

    def accelerators(self, request: GenerationRequest) -> tuple[Accelerator, ...]:
        return self._call("accelerators", request=request)

    def readouts(self) -> dict[str, Any]:
        return self._call("readouts")

    def measure(self, ask: MeasureAsk) -> int:
        return self._call("measure", ask=ask)

    def measuring(self) -> Measuring:
        return self._call("measuring")

    def stop_measuring(self) -> None:
        self._call("stop_measuring")

    def fetch(self, model: str) -> int:
        return self._call("fetch", model=model)

    def fetching(self) -> Fetching:
        return self._call("fetching")

    def stop_fetching(self) -> None:
        self._call("stop_fetching")

    def forget_fetch(self) -> None:
        self._call("forget_fetch")

    def preferences(self) -> AccelPreferences:
        return self._call("preferences")

    def set_preferences(self, preferences: AccelPreferences) -> None:
        self._call("set_preferences", preferences=preferences)

    def _call(self, call: str, **arguments: Any) -> Any:
        hints = _hints(call)
        encoded = {name: to_data(value, hints[name]) for name, value in arguments.items()}
        with self._connect() as connection:
            connection.wait(ASK_SECONDS if call in _SLOW else CALL_SECONDS)
            connection.send({"call": call, "arguments": encoded})
            answer, _ = connection.receive()
        if "message" in answer:
            raise error_from(answer)
        return None if answer["result"] is None else from_data(hints["return"], answer["result"])

    def _connect(self) -> _Connection:
        return _Connection(_card(self._home))


class _Connection:
    """A client's connection after both sides proved themselves; every trouble with it is an OwnerGoneError."""

    def __init__(self, card: Path) -> None:
        try:
            found = json.loads(card.read_text(encoding="utf-8"))
            key, port = str(found["key"]), int(found["port"])
            self._socket = socket.create_connection(("127.0.0.1", port), HANDSHAKE_SECONDS)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OwnerGoneError(f"The queue's owner can't be reached ({error}).") from None
        self._channel = _channel(self._socket)
        try:
            greeting, _ = self.receive()
            nonce = secrets.token_hex(16)
            self.send({"proof": _proof(key, "client", str(greeting.get("nonce"))), "nonce": nonce})
            answer, _ = self.receive()
            if not hmac.compare_digest(str(answer.get("proof")), _proof(key, "owner", nonce)):
                raise OwnerGoneError("Another program answers in the place of the queue's owner.")
            if answer.get("version") != __version__:
                raise CannotRunError(
                    f"The Kinetile that owns the queue is version {answer.get('version')}, this one {__version__}: end "
                    "the other one, or choose another data folder with --home DIR."
                )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, seconds: float) -> None:
        """How long an answer may take."""
        self._socket.settimeout(seconds)

    def wait_forever(self) -> None:
        """Answers come when they come."""
        self._socket.settimeout(None)

    def send(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except Closed as error:
            raise OwnerGoneError(f"The queue's owner is gone ({error}).") from None

    def receive(self) -> tuple[Message, bytes]:
        try:
            return self._channel.receive()
        except Closed as error:
            raise OwnerGoneError(f"The queue's owner is gone or does not answer ({error}).") from None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _channel(connection: socket.socket) -> Channel:
    return Channel(cast(BinaryIO, connection.makefile("rb")), cast(BinaryIO, connection.makefile("wb")))


def _listen(connection: _Connection, listener: LocalSubscription) -> None:
    """Pass events on until the owner is gone or the listener hung up."""
    with contextlib.suppress(OwnerGoneError):
        while True:
            message, _ = connection.receive()
            if message.get("event") is not None:
                listener.put(from_data(Event, message["event"]))
    listener.end()


def _preview_out(found: Preview | None) -> tuple[Message, bytes]:
    if found is None:
        return {"result": None}, b""
    header = {"job": found.job, "number": found.number, "shape": list(found.frames.shape)}
    return {"result": header}, found.frames.tobytes()


def _preview_in(answer: Message, blob: bytes) -> Preview | None:
    if "message" in answer:
        raise error_from(answer)
    header = answer["result"]
    if header is None:
        return None
    return Preview(header["job"], header["number"], np.frombuffer(blob, np.uint8).reshape(header["shape"]))
