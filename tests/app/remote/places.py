"""Places of a cluster that are no farther than this process: real hosts, processes and files, without Ray."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from app.errors import CannotRunError, KinetileError
from app.paths import Home
from app.remote.cluster import Cluster, LostError, Place
from app.remote.host import EngineHost
from app.remote.service import CrewService
from tests.app.services import QUICK
from tests.app.standin import COMMAND


class NearPlace(Place):
    """`lose` takes its host away in the middle of whatever goes on; it comes back `returns` times. `refusing`: what
    every method raises, by its name.
    """

    def __init__(self, name: str, data: Home, returns: int = 0) -> None:
        self.name, self.folder, self.data = name, "", data
        self.host: EngineHost | None = None
        self.left = 1 + returns
        self.refusing: dict[str, KinetileError] = {}
        self.calls: list[str] = []

    def open(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        if self.host is not None:
            return
        if self.left == 0:
            raise LostError(f"{self.name} has left the cluster.")
        self.left -= 1
        self.host = EngineHost(str(self.data.root), COMMAND[-1], 0, self.name)
        self.folder = self.host.facts()["folder"]

    def call(self, method: str, *values: Any, seconds: float = 60.0, should_stop: Any = None) -> Any:
        self.calls.append(method)
        if method in self.refusing:
            raise self.refusing[method]
        if (host := self.host) is None:
            raise LostError(f"{self.name} is gone.")
        try:
            return getattr(host, method)(*values)
        except (OSError, ValueError) as error:
            raise CannotRunError(f"{self.name}: {error}.") from error

    def lose(self) -> None:
        """As when the machine is switched off."""
        host, self.host = self.host, None
        if host is not None:
            host.close()

    def drop(self) -> None:
        self.lose()

    def close(self) -> None:
        self.lose()


class NearCluster:
    """As much of `Cluster` as a service needs."""

    def __init__(self, places: list[NearPlace]) -> None:
        self.places = places


def crew_service(home: Home, *places: NearPlace) -> CrewService:
    """The owner whose clips these places make, with the stand-in's engine."""
    for place in places:
        place.open()
    cluster = cast(Cluster, NearCluster(list(places)))
    return CrewService(home, cluster=cluster, patience=QUICK)


def names_made(folder: Path) -> list[str]:
    """The finished clips' names."""
    return sorted(path.name for path in folder.glob("*.mp4"))
