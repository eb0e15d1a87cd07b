"""Open the page: a port, who may connect, the service behind it, and an end without loss.

Gradio is imported here and not before, so that the command line's other verbs stay quick, and after the settings that
keep it from asking anybody else anything.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import CannotRunError, UsageError
from app.models.sources.network import go_offline
from app.paths import Home

FIRST_PORT = 7860
PORTS_TRIED = 100
LOOPBACK = "127.0.0.1"
PUT_BACK = "Closing: the clip that is being made goes back to the head of the queue, and the next start makes it."


@dataclass(frozen=True)
class PageSettings:
    """What the command line says about the page. port None: the first free one from 7860. auth: (user, password)."""

    home: Home
    port: int | None = None
    open_browser: bool = False
    listen: bool = False
    auth: tuple[str, str] | None = None
    no_auth: bool = False


def settings_of(
    home: Home, port: int | None, open_browser: bool, listen: bool, auth: str | None, no_auth: bool
) -> PageSettings:
    """Settings from command line values. Raises UsageError."""
    if auth is not None and no_auth:
        raise UsageError("--auth and --no-auth exclude each other: leave one out.")
    if listen and auth is None and not no_auth:
        raise UsageError(
            "--listen lets other machines connect: add --auth USER:PASSWORD, or --no-auth if everybody on your network "
            "may use it."
        )
    return PageSettings(home, port, open_browser, listen, None if auth is None else _credentials(auth), no_auth)


def _credentials(text: str) -> tuple[str, str]:
    user, colon, password = text.partition(":")
    if not (user.strip() and colon and password):
        raise UsageError(
            "--auth needs a user and a password with a colon between them, for example --auth ada:lovelace."
        )
    return user, password


@dataclass
class OpenPage:
    """A page that is up. `close` ends it; jobs that wait stay in the queue, and a clip `is_making` goes back there."""

    url: str
    port: int
    is_making: Callable[[], bool]
    close: Callable[[], None]


def serve(settings: PageSettings, wait: Callable[[], Any] | None = None) -> int:
    """Open the page and keep it open until it is interrupted. Returns the exit code."""
    opened = open_page(settings)
    print(f"Kinetile is open at {opened.url} (Ctrl-C ends it; the queue is kept).", flush=True)
    if settings.listen:
        print(_who_may(settings), file=sys.stderr, flush=True)
    try:
        if settings.open_browser:
            import webbrowser

            webbrowser.open(opened.url)
        (wait or _until_ended)()
    except KeyboardInterrupt:
        print(PUT_BACK if opened.is_making() else "Closing.", flush=True)
    finally:
        opened.close()
    return 0


def _until_ended() -> None:
    never = threading.Event()
    while not never.wait(0.5):  # Windows delivers a signal only between two waits
        pass


def _who_may(settings: PageSettings) -> str:
    if settings.auth is None:
        return "Everybody who reaches this machine on that port can use it, without a password (--no-auth)."
    return "Other machines can connect with the user and password of --auth; they travel unencrypted."


def open_page(settings: PageSettings) -> OpenPage:
    """The page, up and answering. Raises CannotRunError when the port or the data folder can't be used."""
    _port(
        settings
    )  # a port that is taken is said at once; it is chosen when it is bound, for what lies between is long
    uploads = _uploads(settings.home)
    go_offline()
    os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": str(uploads)}
    from starlette.middleware import Middleware

    from app.queue.service import open_service
    from app.ui.context import Context
    from app.ui.live import Live
    from app.ui.page import build, looks
    from app.ui.safety import MAX_UPLOAD, Guard, only_uploads, own_names

    only_uploads()
    service = open_service(settings.home, warm=True)
    try:
        context = Context(service, settings.home, uploads=uploads, served=[str(settings.home.outputs)])
        live = Live(context)
        page = build(context, live).queue(default_concurrency_limit=8)
        others: dict[str, Any] = {"names": own_names(), "any_address": True} if settings.listen else {}
        guard = Middleware(Guard, uploads=uploads, **others)
        options: dict[str, Any] = {
            "auth": settings.auth,
            "allowed_paths": context.served,
            "blocked_paths": [str(uploads)],
            "max_file_size": MAX_UPLOAD,
            "app_kwargs": {"middleware": [guard]},
            **looks(),
        }
        port = _launch(page, settings, options)
        live.start()
    except BaseException:
        service.stop()
        raise

    def close() -> None:
        live.stop()
        page.close(verbose=False)
        context.service.stop()

    def is_making() -> bool:
        return context.service.owner and context.service.snapshot().running is not None

    return OpenPage(f"http://{LOOPBACK}:{port}", port, is_making, close)


def _launch(page: Any, settings: PageSettings, options: dict[str, Any]) -> int:
    """Put the page on a port, which is returned. Raises CannotRunError when it can't be had."""
    port = _port(settings)
    try:
        page.launch(
            server_name="0.0.0.0" if settings.listen else LOOPBACK,
            server_port=port,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            ssr_mode=False,
            enable_monitoring=False,
            run_history=False,
            footer_links=["api"],
            show_error=True,
            **options,
        )
    except OSError as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise CannotRunError(
            f"The page can't be opened on port {port} ({reason}): name another with --port N."
        ) from error
    return port


def _uploads(home: Home) -> Path:
    """An empty folder for this run's uploads; those of runs before are gone."""
    folder = home.cache / "uploads"
    for old in folder.iterdir() if folder.is_dir() else ():
        if not _alive(old.name.partition("-")[0]):
            shutil.rmtree(old, ignore_errors=True)
    mine = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
    mine.mkdir(parents=True)
    return mine


def _alive(pid: str) -> bool:
    import psutil

    return pid.isdigit() and psutil.pid_exists(int(pid))


def _port(settings: PageSettings) -> int:
    address = "0.0.0.0" if settings.listen else LOOPBACK
    if settings.port is not None:
        if not _free(address, settings.port):
            raise CannotRunError(
                f"Port {settings.port} is taken by another program, or not yours to use: name another with --port N, "
                "or leave it out for the next free one."
            )
        return settings.port
    for port in range(FIRST_PORT, FIRST_PORT + PORTS_TRIED):
        if _free(address, port):
            return port
    raise CannotRunError(
        f"No port from {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1} is free: name one with --port N."
    )


def _free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        if os.name != "nt":  # there it would let two programs share a port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
