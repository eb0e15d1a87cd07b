""".venv beside launch.py: made, looked at from outside, stamped when whole, locked while it is worked on.

The stamp is what makes the second start quick: it says which pyproject.toml and which table the environment was
checked against and which Python file it belongs to. Any difference only costs a new check; pip runs when that check
finds something missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from app import OLDEST
from app.environment.builds import TABLE
from app.environment.handover import child_environment
from app.errors import CannotRunError

_LOOK = "import json, sys, sysconfig; print(json.dumps([list(sys.version_info[:3]), sysconfig.get_path('purelib')]))"
_ON_WINDOWS = os.name == "nt"


@dataclass(frozen=True)
class Stamp:
    """What a whole environment was checked against; ``chosen`` is ``auto`` or the build that was asked for."""

    fingerprint: str
    seal: str
    extras: tuple[str, ...]
    build: str
    chosen: str
    torch: str


@dataclass(frozen=True)
class Facts:
    """A working environment: its Python's version and its site-packages folder."""

    version: tuple[int, ...]
    site: Path


def fingerprint(root: Path) -> str:
    """A hash of what decides the environment's content: pyproject.toml and the table."""
    digest = hashlib.sha256()
    for file in (root / "pyproject.toml", TABLE):
        try:
            digest.update(file.read_bytes())
        except OSError as error:
            raise CannotRunError(
                f"{file} cannot be read ({error.strerror}); restore it with `git checkout`."
            ) from error
    return digest.hexdigest()


class Venv:
    """The folder ``.venv`` of one clone."""

    def __init__(self, root: Path, windows: bool = _ON_WINDOWS) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / ("Scripts/python.exe" if windows else "bin/python")
        self.stamp_file = self.folder / "kinetile.json"

    def is_running(self) -> bool:
        """Whether this very process runs in it."""
        return Path(sys.prefix).resolve() == self.folder.resolve()

    def seal(self) -> str:
        """Which Python file is behind ``.venv``: another after the system's Python was replaced, "" when gone."""
        try:
            real = self.python.resolve(strict=True)
            state = real.stat()
        except OSError:
            return ""
        return f"{real} {state.st_size} {state.st_mtime_ns}"

    def stamp(self, extras: Iterable[str]) -> Stamp | None:
        """The stamp, when it still holds and covers some extras; None otherwise."""
        try:
            data = json.loads(self.stamp_file.read_text(encoding="utf-8"))
            stamp = Stamp(**{**data, "extras": tuple(data["extras"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        fits = stamp.fingerprint == fingerprint(self.root) and stamp.seal == self.seal() != ""
        return stamp if fits and set(extras) <= set(stamp.extras) else None

    def write_stamp(self, stamp: Stamp) -> None:
        """Store the stamp, whole or not at all."""
        partial = self.stamp_file.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(stamp), indent=1) + "\n", encoding="utf-8")
        os.replace(partial, self.stamp_file)

    def former_extras(self) -> tuple[str, ...]:
        """The extras that a stamp names even if it no longer holds, so that a new check keeps them."""
        try:
            return tuple(str(name) for name in json.loads(self.stamp_file.read_text(encoding="utf-8"))["extras"])
        except (OSError, ValueError, TypeError, KeyError):
            return ()

    def look(self) -> Facts | None:
        """Start its Python once; None when it does not run."""
        done = _run([os.fspath(self.python), "-I", "-c", _LOOK])
        try:
            version, site = json.loads(done.stdout)
            return Facts(tuple(version), Path(site))
        except (ValueError, TypeError):
            return None

    def make(self, say: Callable[[str], None]) -> Facts:
        """Make the environment, or make it work again; what is installed in a working one stays.

        Raises CannotRunError when this Python cannot make one or the folder cannot be written.
        """
        facts = self.look() if self.python.exists() else None
        if facts is None:
            say(f"making {self.folder} with Python {sys.version.split()[0]}")
            clear = ["--clear"] if self.folder.exists() else []
            if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
                raise CannotRunError(f"{self.folder} is no folder; move it away and start again.")
            done = _run([sys.executable, "-m", "venv", *clear, os.fspath(self.folder)])
            facts = self.look()
            if done.returncode != 0 or facts is None:
                raise CannotRunError(self._why_not_made(done))
        if facts.version < OLDEST:
            seen = ".".join(str(number) for number in facts.version)
            raise CannotRunError(
                f"{self.folder} has Python {seen}, 3.11 or newer is needed; delete it and start again."
            )
        if _run([os.fspath(self.python), "-m", "pip", "--version"]).returncode != 0:
            say("adding pip to .venv")
            done = _run([os.fspath(self.python), "-m", "ensurepip", "--upgrade", "--default-pip"])
            if done.returncode != 0:
                raise CannotRunError(self._why_not_made(done))
        return facts

    def _why_not_made(self, done: subprocess.CompletedProcess[str]) -> str:
        output = (done.stdout + done.stderr).strip()
        last = output.splitlines()[-1] if output else f"exit code {done.returncode}"
        if "ensurepip" in output:
            return (
                f"{sys.executable} has no ensurepip, so .venv gets no pip; install it (Debian, Ubuntu: "
                "`apt install python3-venv`), delete .venv and start again."
            )
        return (
            f"{self.folder} could not be made ({last}); check that the folder can be written and is not full, "
            "or run from an environment that has what pyproject.toml lists."
        )


@contextmanager
def locked(root: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Hold the clone's install lock; gives its file descriptor. A second start says that it waits, and waits.

    The lock is the system's own, so it ends with its holder however that dies; a pip that outlives its parent keeps it.
    """
    path = root / ".venv.lock"
    try:
        file = path.open("a+b")
    except OSError as error:
        raise CannotRunError(
            f"{root} cannot be written ({error.strerror}), so no .venv can be made there; clone Kinetile to a folder "
            "of your own, or run it from an environment that has what pyproject.toml lists."
        ) from error
    with file:
        if not try_lock(file):
            say("another start is preparing .venv; waiting for it")
            while not try_lock(file):
                time.sleep(0.2)
        yield file.fileno()


def try_lock(file: IO[Any], windows: bool = _ON_WINDOWS) -> bool:
    """Take the lock of an open file, or say at once that somebody else has it. Windows: untested there."""
    try:
        if windows:
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a short command quietly; a command that cannot be started counts as failed."""
    try:
        return subprocess.run(
            command, env=child_environment(), capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
