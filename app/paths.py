"""Where Kinetile keeps its data, and which names a file from elsewhere may use.

All data lives under one root: ``--home DIR``, else ``KINETILE_HOME``, else the user's data folder of the system.
Names inside presets are written with ``/`` and are relative; nothing a preset says can point outside its own folder.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from app.errors import CannotRunError, UsageError

MAX_NAME = 1000
"""Longest relative name accepted, in characters."""

OUTPUTS = "outputs"
"""Name of the folder of finished clips below the data folder."""

MAX_SEARCHED = 50_000
"""Most files looked at when a LoRA is searched by its base name."""

_DEVICES = {"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"} | {
    f"{port}{number}" for port in ("COM", "LPT") for number in "0123456789¹²³"
}


@dataclass(frozen=True)
class Home:
    """The folders of one installation. Each folder is made when it is first asked for.

    Every property raises CannotRunError when its folder can't be made or written.
    """

    root: Path

    @property
    def outputs(self) -> Path:
        """Finished clips."""
        return self._folder(OUTPUTS)

    @property
    def presets(self) -> Path:
        """The person's own presets."""
        return self._folder("presets")

    @property
    def loras(self) -> Path:
        """LoRA files; names in requests are relative to it."""
        return self._folder("loras")

    @property
    def pictures(self) -> Path:
        """Pictures that clips begin or end with, each named by its content."""
        return self._folder("pictures")

    @property
    def cache(self) -> Path:
        """What can be made again: probe results, previews, downloads in progress."""
        return self._folder("cache")

    @property
    def latents(self) -> Path:
        """Final latents of clips that are not saved yet, or could not be."""
        return self._folder("latents")

    @property
    def database(self) -> Path:
        """The queue's SQLite file (its folder exists, the file may not)."""
        return self._folder("") / "kinetile.sqlite3"

    def _folder(self, name: str) -> Path:
        path = self.root / name if name else self.root
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotRunError(_unwritable(path, error.strerror or str(error))) from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise CannotRunError(_unwritable(path, "permission denied"))
        return path


def home(path: str | Path | None = None) -> Home:
    """The data folders under ``path``, else $KINETILE_HOME, else the system's user data folder.

    Touches no disk. Raises UsageError for a path that no system could have.
    """
    chosen = str(path) if path is not None else os.environ.get("KINETILE_HOME", "")
    if path is not None and not chosen.strip():
        raise UsageError("--home is empty; name a folder for Kinetile's data.")
    if "\0" in chosen:
        raise UsageError("The data folder's name holds a NUL character; name another folder with --home DIR.")
    if not is_text(chosen):
        raise UsageError("The data folder's name holds a byte that is not UTF-8; name another folder with --home DIR.")
    if not chosen.strip():
        from platformdirs import user_data_dir

        chosen = user_data_dir("kinetile", appauthor=False)
    try:
        return Home(Path(os.path.abspath(os.path.expanduser(chosen))))
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"The data folder {chosen[:200]!r} can't be used ({error}); name another with --home."
        ) from error


def relative_name(name: str) -> str:
    """``name`` as a relative path with ``/`` only; both slashes are read.

    Raises ValueError, with the end of a sentence as its text, for names that could leave a folder or mean a device.
    """
    text = name.replace("\\", "/")
    if not text.strip():
        raise ValueError("is empty")
    if len(text) > MAX_NAME:
        raise ValueError(f"is {len(text):,} characters long, at most {MAX_NAME:,} are allowed")
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise ValueError("holds a control character")
    if not is_text(text):
        raise ValueError("holds a byte that is not UTF-8")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if is_foreign(name) or is_foreign("/".join(parts)):
        raise ValueError("is an absolute path")
    # Windows drops dots and spaces at the end of a name, so ".. " climbs as well.
    if any(not part.strip(". ") for part in parts):
        raise ValueError('holds ".." or a name of dots and spaces')
    if ":" in text:
        raise ValueError('holds ":"')
    if not parts:
        raise ValueError("names no file")
    for part in parts:
        if is_device(part):
            raise ValueError(f"holds {part!r}, a device name on Windows")
    return "/".join(parts)


def is_text(name: str) -> bool:
    """Whether JSON and databases can hold the name: bytes of a file's name that are not UTF-8 are half surrogates."""
    return not any("\ud800" <= c <= "\udfff" for c in name)


def is_device(part: str) -> bool:
    """Whether Windows takes this part of a path for a device, whatever suffix it has."""
    return part.split(".")[0].rstrip().upper() in _DEVICES


def is_foreign(name: str) -> bool:
    """Whether ``name`` is an absolute path of any system: /x, \\\\server\\x, C:\\x, C:x, ~/x."""
    return bool(re.match(r"[/\\]|~|[A-Za-z]:", name))


def without_home(name: str) -> str:
    """``name`` with "~" for the person's own folder where it is a path below it: requests are handed on in clips,
    presets and codes, and a user's name is nobody's business.
    """
    try:
        return f"~/{Path(name).relative_to(Path.home()).as_posix()}"
    except (ValueError, RuntimeError):
        return name


def inside(folder: Path, name: str) -> Path:
    """The existing regular file ``name`` in ``folder``, links followed.

    Raises UsageError if the name is unsafe, the file is missing, or a link leads out of the folder.
    """
    try:
        relative = relative_name(name)
    except ValueError as error:
        raise UsageError(f"{name[:80]!r} {error}; use a relative path inside {folder}.") from error
    try:
        path = (folder / relative).resolve(strict=True)
        root = folder.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{relative!r} is not in {folder}; put the file there or change its name.") from error
    if not path.is_relative_to(root):
        raise UsageError(f"{relative!r} is a link that leads out of {folder}; put the file itself there.")
    if not path.is_file():
        raise UsageError(f"{relative!r} in {folder} is not a file.")
    return path


def find_lora(folder: Path, name: str) -> Path:
    """The LoRA file ``name`` (relative, "/") in the LoRA folder; if it is not there, the one file of that base name.

    Raises UsageError if there is none or more than one.
    """
    if (folder / name).is_file():
        return inside(folder, name)
    base = name.rsplit("/", 1)[-1]
    found = []
    for count, path in enumerate(folder.rglob("*")):
        if count == MAX_SEARCHED:
            break
        if path.name == base and path.is_file():
            found.append(path.relative_to(folder).as_posix())
    if len(found) == 1:
        return inside(folder, found[0])
    if found:
        raise UsageError(
            f"LoRA {name!r}: {folder} holds {len(found)} files of that name; say {' or '.join(found[:5])}."
        )
    raise UsageError(f"LoRA {name!r} is missing; put the file into {folder}.")


def slug(title: str, kind: str = "preset") -> str:
    """A file name (without suffix) for a title: letters and digits of any script, at most 100 bytes. ``kind`` begins
    the name where the title gives none.
    """
    words = re.sub(r"[\W_]+", "-", unicodedata.normalize("NFKC", title[:1000]).lower()).strip("-")
    words = words.encode("utf-8", "ignore")[:100].decode("utf-8", "ignore").strip("-")
    try:
        return relative_name(words)
    except ValueError:
        return f"{kind}-{words}".strip("-")


def is_mine_alone(path: Path) -> bool:
    """Whether nobody but this user (and root) can put something else in the place of `path`, or of what it leads to:
    what of it does not exist yet is taken to become this user's. False on Windows, where that can't be told.
    """
    if os.name == "nt":
        return False
    try:
        real = path.resolve()
        states = [one.stat() for one in {real, *real.parents, *path.absolute().parents} if one.exists()]
    except (OSError, RuntimeError):
        return False
    return all(state.st_uid in (0, os.getuid()) and not _others_write(state) for state in states)


def _others_write(state: os.stat_result) -> bool:
    """Whether others may write it; in a folder with the sticky bit nobody can move what is another's."""
    if stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX:
        return False
    shared = state.st_mode & stat.S_IWGRP and not _is_own_group(state.st_gid)
    return bool(shared or state.st_mode & stat.S_IWOTH)


def _is_own_group(number: int) -> bool:
    """Whether nobody else but root is in that group: many Linux systems have a group for each user."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return number == 0 or (
        number == user.pw_gid and group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name}
    )


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most ``limit`` bytes. Raises UsageError otherwise."""
    from accel.reading import read_file

    try:
        return read_file(path, limit)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} can't be read ({getattr(error, 'strerror', None) or error}).") from error


def _unwritable(path: Path, why: str) -> str:
    return (
        f"Kinetile can't write to {path} ({why}): make it writable (on the command line: --home DIR or "
        "KINETILE_HOME names another folder)."
    )
