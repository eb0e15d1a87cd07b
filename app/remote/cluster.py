"""A cluster of Ray as this machine sees it: joined by address or made here, with a place for each engine.

Ray's own words become sentences. Joining is first tried in a child process, since Ray waits without end, deaf to
Ctrl-C, where something else answers at the address (seen with 2.60).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accel.advice import pip
from app import __version__
from app.environment.handover import child_environment
from app.environment.packages import read_lists
from app.environment.versions import Version
from app.errors import Cancelled, CannotRunError, KinetileError, UsageError
from app.paths import Home
from app.remote.host import COMMAND, EngineHost
from app.worker.supervisor import ROOT

JOIN_SECONDS = 60.0
REACH_SECONDS = 5.0
PLACE_SECONDS = 90.0
"""How long a machine may take to give an engine its place and to answer: it may have to fetch our files first."""
CALL_SECONDS = 60.0
MAX_HERE = 64
_PROBE = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)"
_SHIPPED = ("app", "accel", "presets", "pyproject.toml")
_NO_REPORTS = {"RAY_USAGE_STATS_ENABLED": "0"}


class LostError(CannotRunError):
    """The machine, or Kinetile's process on it, is gone."""


@dataclass(frozen=True)
class Address:
    """What --ray says: a cluster's address, or empty for one that is made here with so many engines (0: as fit)."""

    joined: str = ""
    engines: int = 0

    @classmethod
    def parse(cls, text: str) -> Address:
        """Of `local`, `local:N`, `HOST:PORT` or `ray://HOST:PORT`. Raises UsageError."""
        if found := re.fullmatch(r"local(?::([0-9]{1,3}))?", text):
            engines = int(found[1] or 0)
            if found[1] is None or 1 <= engines <= MAX_HERE:
                return cls("", engines)
        elif (found := re.fullmatch(r"(?:ray://)?[\w.-]+:([0-9]{1,5})", text)) and 1 <= int(found[1]) <= 65_535:
            return cls(text)
        raise UsageError(
            f"--ray {text[:100]}: write local, local:N for N engines here (at most {MAX_HERE}), or a cluster's address "
            "as HOST:PORT (ray://HOST:PORT from a machine outside it)."
        )


def load_ray() -> Any:
    """The module `ray`. Raises CannotRunError with how to get it."""
    (wanted,) = read_lists(ROOT / "pyproject.toml").extras["scale"]
    how = pip("install", wanted.text)
    os.environ |= _NO_REPORTS  # nothing leaves this machine unasked
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise CannotRunError(f"--ray needs Ray, which is not installed here; get it with: {how}") from error
    if not wanted.allows(ray.__version__):
        raise CannotRunError(f"--ray needs {wanted.text}, and here is {ray.__version__}; get it with: {how}")
    return ray


class Place:
    """Where one engine runs; `name` is how a person knows it. The actor there is made when it is first needed, and made
    anew when it was lost.
    """

    def __init__(self, cluster: Cluster, node: str, name: str, needs: dict[str, float], threads: int) -> None:
        self.cluster, self.node, self.name = cluster, node, name
        self._needs, self._threads = needs, threads
        self._actor: Any = None
        self.folder = ""
        """Where the clips lie there until they are home."""

    def open(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Have an actor there that fits this machine's Kinetile. Raises LostError, CannotRunError, Cancelled."""
        if self._actor is not None:
            return
        self._actor = self.cluster.make_actor(self.node, self.name, self._needs, self._threads)
        try:
            facts = self.call("facts", seconds=PLACE_SECONDS, should_stop=should_stop)
            self._refuse_others(facts)
        except BaseException:
            self.drop()
            raise
        self.folder = facts["folder"]

    def call(
        self,
        method: str,
        *values: Any,
        seconds: float = CALL_SECONDS,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Any:
        """What a method of `EngineHost` returns there. Raises LostError, what the method raises as CannotRunError, and
        Cancelled.
        """
        ray, actor = self.cluster.ray, self._actor
        if actor is None:
            raise LostError(f"{self.name} is gone.")
        until = time.monotonic() + seconds
        try:
            asked = getattr(actor, method).remote(*values)
            while not ray.wait([asked], timeout=0.2)[0]:
                if should_stop():
                    raise Cancelled("Stopped.")
                if time.monotonic() > until:
                    raise LostError(f"{self.name} did not answer within {seconds:.0f} s.")
            return ray.get(asked)
        except ray.exceptions.RayTaskError as error:
            raise CannotRunError(f"{self.name}: {_short(error.cause or error)}.") from error
        except ray.exceptions.RayError as error:
            raise LostError(f"{self.name} was lost ({_short(error)}).") from error
        except KinetileError:
            raise
        except Exception as error:  # Ray's own sockets, when the cluster has ended
            raise LostError(f"{self.name} can't be reached ({_short(error)}).") from error

    def drop(self) -> None:
        """End the actor at once; what it had is gone."""
        actor, self._actor = self._actor, None
        if actor is not None:
            self.cluster.kill(actor)

    def close(self) -> None:
        """End it, with its files."""
        if self._actor is not None:
            with contextlib.suppress(KinetileError):  # it is gone already
                self.call("close", seconds=10.0)
            self.drop()

    def _refuse_others(self, facts: dict[str, Any]) -> None:
        if facts["kinetile"] != __version__:
            raise CannotRunError(
                f"{self.name} has Kinetile {facts['kinetile']}, this machine {__version__}: bring both to one version."
            )
        if facts["lacking"]:
            raise CannotRunError(
                f"{self.name} lacks {', '.join(facts['lacking'])}: install that in the environment its Ray was started "
                "from."
            )


class Cluster:
    """A cluster that was joined or made. places: one per GPU, and per machine without one. notes: what a person should
    know of those that can't be used. data: of a cluster made here, the data folder it shares.
    """

    def __init__(self, ray: Any, address: Address, home: Home, module: str = COMMAND[-1]) -> None:
        self.ray, self._address, self._module = ray, address, module
        self._data = None if address.joined else str(home.root)
        self.places = self._find_places()
        self.notes: list[str] = []

    def open(self) -> None:
        """Open every place, all at once; those that can't be used are left out with a note. Raises CannotRunError when
        none is left.
        """
        from concurrent.futures import ThreadPoolExecutor

        stopped = False
        pool = ThreadPoolExecutor(max(1, len(self.places)))
        try:
            found = list(pool.map(lambda place: _problem(lambda: place.open(lambda: stopped)), self.places))
        except BaseException:
            stopped = True
            raise
        finally:
            pool.shutdown(wait=False)
        self.notes = [str(problem) for problem in found if problem is not None]
        self.places = [place for place, problem in zip(self.places, found, strict=True) if problem is None]
        if not self.places:
            why = " ".join(self.notes) or "It has no machine with a processor or GPU to give."
            raise CannotRunError(f"No machine of the cluster can make clips. {why}")

    def make_actor(self, node: str, name: str, needs: dict[str, float], threads: int) -> Any:
        """A new actor on that node. Raises LostError when the node is gone."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        try:
            alive = {one["NodeID"] for one in self.ray.nodes() if one["Alive"]}
            if node not in alive:
                raise LostError(f"{name} has left the cluster.")
            kind = self.ray.remote(EngineHost).options(
                num_cpus=needs.get("CPU", 0),
                num_gpus=needs.get("GPU", 0),
                max_concurrency=8,
                max_restarts=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            return kind.remote(self._data, self._module, threads, name)
        except KinetileError:
            raise
        except Exception as error:
            raise LostError(f"{name} can't be reached ({_short(error)}).") from error

    def kill(self, actor: Any) -> None:
        """End an actor at once."""
        try:
            self.ray.kill(actor)
        except Exception:  # the cluster is gone, and the actor with it
            return

    def close(self) -> None:
        """Leave the cluster, or end the one that was made here."""
        for place in self.places:
            place.drop()
        self.ray.shutdown()

    def _find_places(self) -> list[Place]:
        nodes = [one for one in self.ray.nodes() if one["Alive"]]
        hosts = Counter(one["NodeManagerHostname"] for one in nodes)
        found: list[Place] = []
        for node in nodes:
            host, gpus = node["NodeManagerHostname"], int(node["Resources"].get("GPU", 0))
            cpus = node["Resources"].get("CPU", 0.0)
            if hosts[host] > 1:
                host = f"{host} ({node['NodeManagerAddress']}, {node['NodeID'][:6]})"
            wanted = self._address.engines
            if gpus and wanted > gpus:
                raise CannotRunError(
                    f"--ray local:{wanted}: an engine takes a GPU, and here are {gpus}; take that many."
                )
            engines = wanted or gpus or int(cpus >= 1)
            share = float(max(1, int(cpus) // max(1, engines))) if cpus >= engines else 0.0
            for index in range(engines):
                name = f"{host} #{index + 1}" if engines > 1 else host
                needs = {"CPU": share, "GPU": float(bool(gpus))}
                found.append(Place(self, node["NodeID"], name, needs, int(share) if engines == 1 else 0))
        return found


def connect(address: Address, home: Home, module: str = COMMAND[-1]) -> Cluster:
    """The cluster that --ray names, its places open. Raises CannotRunError."""
    ray = load_ray()
    if address.joined:
        _try_to_join(address.joined)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    shared, shipped = {"env_vars": {"PYTHONPATH": path}}, {"working_dir": str(ROOT), "excludes": _kept_here()}
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    quiet["runtime_env"] = shipped if address.joined else shared
    try:
        if address.joined:
            ray.init(address=address.joined, **quiet)
        else:  # on loopback alone, so that no other machine reaches it
            cpus = max(address.engines, os.cpu_count() or 1)
            ray.init("local", _node_ip_address="127.0.0.1", include_dashboard=False, num_cpus=cpus, **quiet)
        cluster = Cluster(ray, address, home, module)
        cluster.open()
    except KinetileError:
        ray.shutdown()
        raise
    except BaseException as error:
        ray.shutdown()
        if not isinstance(error, Exception):
            raise
        raise CannotRunError(_why_not_joined(address.joined or "local", _short(error))) from error
    return cluster


def _kept_here() -> list[str]:
    """What of this folder does not travel, as Ray wants it told: in git's patterns, each of which means one name."""
    kept = [path.name for path in ROOT.iterdir() if path.name not in _SHIPPED]
    return [*("/" + re.sub(r"([\\*?\[\] !#])", r"\\\1", name) for name in kept), "__pycache__"]


def _try_to_join(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except OSError as error:
        raise CannotRunError(_why_not_joined(address, error.strerror or str(error))) from error
    command = [sys.executable, "-c", _PROBE, address]
    environment = child_environment(_NO_REPORTS)
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment) as child:
        try:
            _, told = child.communicate(timeout=JOIN_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            why = f"nothing that is a Ray of version {_ray_version()} answered within {JOIN_SECONDS:.0f} s"
            raise CannotRunError(_why_not_joined(address, why)) from None
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        raise CannotRunError(_why_not_joined(address, _reason(told.decode("utf-8", "replace"))))


def _why_not_joined(address: str, why: str) -> str:
    if address == "local":
        return f"--ray local: no Ray could be started here ({why}); try again, or leave --ray out."
    return (
        f"--ray {address}: that cluster can't be joined ({why}). Check the address that `ray start --head` printed; "
        "HOST:PORT works on a machine that has itself joined with `ray start --address`, ray:// elsewhere; Ray and "
        "Python must be the same everywhere."
    )


def _reason(told: str) -> str:
    """What Ray says went wrong: its mismatch of versions, else its last line."""
    if mismatch := re.search(
        r"Version mismatch:.*?Ray: (\S+).*?Python: (\S+).*?Ray: (\S+).*?Python: (\S+)", told, re.S
    ):
        there, here = mismatch.group(1, 2), mismatch.group(3, 4)
        return f"it runs Ray {there[0]} on Python {there[1]}, this is Ray {here[0]} on Python {here[1]}".rstrip(".")
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return (lines[-1] if lines else "it ended without a word")[:300].rstrip(".")


def _ray_version() -> Version:
    return Version.parse(importlib.import_module("ray").__version__)


def _problem(act: Callable[[], None]) -> KinetileError | None:
    try:
        act()
    except KinetileError as error:
        return error
    return None


def _short(error: BaseException) -> str:
    """A library's error on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (
        _reason(str(error))
        if "Version mismatch" in str(error) or "creation task" in str(error)
        else (lines or [type(error).__name__])[0][:300].rstrip(".")
    )
