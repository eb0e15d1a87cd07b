"""Who may talk to the page: requests that name this machine, from pages that this server made.

A web site that a person visits can make the browser send requests here, and by rebinding its own name to 127.0.0.1
even read the answers (DNS rebinding). Both show: the first in the `Origin` header (and `Sec-Fetch-Site`), the second in
`Host`. An address in digits can't be rebound, so any is taken where other machines may connect.
"""

from __future__ import annotations

import ipaddress
import logging
import shutil
import socket
import traceback
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from pathlib import Path
from typing import Any

from accel.reading import has_too_many_values
from app.video.outputs import size_text

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_UPLOAD = 256 * 2**20
"""Most bytes of one uploaded file."""
MAX_BODY = MAX_UPLOAD + 2**20
"""Most bytes of a request that uploads files."""
DISK_RESERVE = 2**20
"""Bytes that an upload leaves to the queue and its clips."""
MAX_CALL = 10 * 2**20
"""Most bytes of any other request: the longest share code is 8 million characters."""
UPLOADS = "/gradio_api/upload"
_CLOSED = (
    "/gradio_api/proxy=",
    "/proxy=",
    "/gradio_api/deep_link",
    "/gradio_api/vibe",
    "/monitoring",
    "/gradio_api/runs",
)
"""Routes of Gradio that this page does not need and that reach further than it does."""


_log = logging.getLogger("kinetile.page")


class Guard:
    """ASGI middleware that answers what is not allowed itself, in one sentence, before anything else sees it.

    names: host names that stand for this machine. any_address: whether addresses in digits do, too. uploads: the folder
    that uploads go to.
    """

    def __init__(
        self,
        app: App,
        names: Iterable[str] = ("localhost", "127.0.0.1", "::1"),
        any_address: bool = False,
        uploads: Path | None = None,
    ) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in names)
        self._any_address = any_address
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self.why_not(scope)
        if refusal is not None and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[1]})
        elif refusal is not None:
            await _refuse(send, *refusal)
        elif scope["type"] == "websocket" or not _has_body(scope) or scope["path"] == UPLOADS:
            await self._answer(scope, receive, send)
        elif (body := await _bounded(receive)) is None:
            await _refuse(send, 413, "That is more than any call of Kinetile takes.")
        else:
            await self._answer(scope, _again(body, receive), send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The app's answer; what it can't make sense of is one sentence there and one line in the log."""
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:
            if begun or scope["type"] == "websocket":
                raise
            place = traceback.extract_tb(error.__traceback__)[-1]
            _log.warning("%s: %r at %s:%s", scope["path"], error, place.filename, place.lineno)
            await _refuse(send, 500, "Kinetile can't make sense of that; reload the page.")

    def why_not(self, scope: Scope) -> tuple[int, str] | None:
        """Status and sentence of a refusal, None for a request that may go on."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return 421, "This address does not lead to Kinetile here; open the one that it printed when it started."
        for origin in headers.get("origin", []):
            if origin.partition("://")[2].lower() != hosts[0].lower():
                return 403, "Another web page may not talk to Kinetile."
        site, mode = headers.get("sec-fetch-site", [""])[0], headers.get("sec-fetch-mode", [""])[0]
        if site in ("cross-site", "same-site") and mode != "navigate":
            return 403, "Another web page may not use what Kinetile serves."
        if any(scope["path"].startswith(path) for path in _CLOSED):
            return 404, "There is nothing here."
        return _too_much(scope, headers) or self._no_room(scope, headers)

    def _is_ours(self, host: str) -> bool:
        name = host_name(host)
        if name is None:
            return False
        return name in self._names or (self._any_address and _is_address(name))

    def _no_room(self, scope: Scope, headers: dict[str, list[str]]) -> tuple[int, str] | None:
        """An upload that fills the disk would be of no use, and lie there in part until the next start."""
        if self._uploads is None or not scope["path"].endswith("/upload"):
            return None
        length, free = headers.get("content-length", [""])[0], shutil.disk_usage(self._uploads).free
        if (int(length) if length.isascii() and length.isdigit() else 0) + DISK_RESERVE <= free:
            return None
        return 507, f"The data folder's disk has {size_text(free)} free, too little for this file: free some space."


def _has_body(scope: Scope) -> bool:
    return scope["type"] == "http" and scope.get("method") not in ("GET", "HEAD", "OPTIONS")


async def _bounded(receive: Receive) -> bytes | None:
    """The whole body; None for one that is too long, or that would be unpacked to far more than its length (a hundred
    bytes for each bracket).
    """
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_CALL:
            return None
        if not message.get("more_body"):
            return None if has_too_many_values(body) else bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that begins with the body that was read already."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Message:
        return first.pop() if first else await receive()

    return receiving


def _too_much(scope: Scope, headers: dict[str, list[str]]) -> tuple[int, str] | None:
    if not _has_body(scope):
        return None
    length = headers.get("content-length", [""])[0]
    if not (length.isascii() and length.isdigit()):
        return (411, "Say how long the body is.") if "transfer-encoding" in headers else None
    most = MAX_BODY if scope["path"] == UPLOADS else MAX_CALL
    if len(length) > 15 or int(length) > most:
        return 413, f"At most {most // 2**20} MiB are taken."
    return None


def host_name(host: str) -> str | None:
    """The name in a Host header without its port, lower case; None for what is no host."""
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not colon:
        name, port = host, ""
    if colon and not (port.isascii() and port.isdigit()):
        return None
    if name.startswith("["):
        return name[1:-1].lower() if name.endswith("]") and _is_address(name[1:-1]) else None
    return name.lower().removesuffix(".") if name and ":" not in name and "@" not in name else None


def own_names() -> set[str]:
    """What this machine is called by others."""
    name = socket.gethostname().lower()
    short = name.split(".")[0]
    return {name, short, f"{short}.local", "localhost", "127.0.0.1", "::1"} - {""}


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def only_uploads() -> None:
    """Keep Gradio from taking other files than uploads: it would fetch what a request names by an address, and copy
    what one names by a path. Uploads are taken although the page does not serve them.
    """
    import gradio as gr
    from gradio import processing_utils, utils

    otherwise = processing_utils._check_allowed

    def check(path: str | Path, check_in_upload_folder: bool) -> None:
        if not check_in_upload_folder:
            otherwise(path, check_in_upload_folder)
            return
        try:
            real = Path(path).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            real = None
        if real is None or not (real.is_file() and real.is_relative_to(Path(utils.get_upload_folder()).resolve())):
            raise gr.Error("That file is no upload; upload it first.", print_exception=False)

    async def refuse(url: str) -> None:
        raise gr.Error("Kinetile fetches nothing from an address; upload the file itself.", print_exception=False)

    processing_utils.async_ssrf_protected_get = refuse
    processing_utils._check_allowed = check


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = (sentence + "\n").encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
