"""Open the service of a data folder: become the owner of its queue, or a client of the process that is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import filelock

from app.errors import CannotRunError
from app.paths import Home
from app.queue.handing_over import Door, RemoteService, who
from app.queue.owner import LocalService
from app.queue.service import OwnerGoneError, Service


def open_service(
    home: Home, seconds: float, options: dict[str, Any], serve: Callable[..., LocalService] = LocalService
) -> Service:
    """See `app.queue.service.open_service`. serve: makes the owner, where this process becomes it."""
    lock = filelock.FileLock(home.database.with_name("owner.lock"), thread_local=False)
    until = time.monotonic() + seconds
    while True:
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            try:
                return RemoteService(home)
            except OwnerGoneError as error:
                if time.monotonic() > until:
                    raise CannotRunError(
                        f"Another Kinetile{who(home)} uses the data folder {home.root} but does not answer: end it, "
                        "or choose another data folder with --home DIR."
                    ) from error
                time.sleep(0.2)
        except (OSError, NotImplementedError) as error:
            raise CannotRunError(
                f"The data folder {home.root} can't be locked ({error}): choose another one with --home DIR."
            ) from error
        else:
            return _owning(home, lock, options, serve)


def _owning(
    home: Home, lock: filelock.FileLock, options: dict[str, Any], serve: Callable[..., LocalService]
) -> Service:
    """The owner, with its door; whatever fails, nothing of it is left and the lock is free."""
    try:
        service = serve(home, lock.release, **options)
    except BaseException:
        lock.release()
        raise
    try:
        service.close_door = Door(service, home).close
    except BaseException as error:
        service.stop(now=True)
        if isinstance(error, OSError):
            raise CannotRunError(
                f"The data folder {home.root} can't be used ({error.strerror or error}): see that its disk has "
                "room and this user may write there, or choose another one with --home DIR."
            ) from error
        raise
    return service
