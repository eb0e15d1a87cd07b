"""The Hugging Face cache on this machine: where it lies, what lies in it. No network, and nothing is written.

It is shared with every program that uses huggingface_hub, so a model that another one fetched is found here. Its place
is what HF_HUB_CACHE or HF_HOME say, as the library reads them.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

from accel.reading import read_json
from app.errors import CannotRunError
from app.models.sources.choosing import INDEX, needed
from app.models.sources.wholeness import problems_in

REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""What a repository's name looks like: owner/name."""

PARTIAL = ".kinetile.incomplete"
"""Ends the name of a file that is still being fetched; its beginning is kept so that the next fetch goes on there."""


@dataclass(frozen=True)
class Located:
    """Where a model lies. folder: in diffusers layout, None when there is nothing of it here. problems: what is missing
    or broken, one phrase a file. fetched: bytes of it that are here, parts of files included. repo: the repository.
    """

    folder: Path | None = None
    problems: tuple[str, ...] = ()
    fetched: int = 0
    repo: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether a clip can be made with it."""
        return self.folder is not None and not self.problems


def cache_folder() -> Path:
    """The folder of the cache; it may not exist yet."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def storage_of(repo: str, cache: Path | None = None) -> Path:
    """The folder of one repository in the cache, as the library names it."""
    return (cache or cache_folder()) / f"models--{repo.replace('/', '--')}"


def in_cache(repo: str, cache: Path | None = None) -> Located:
    """What the cache holds of a repository."""
    storage = storage_of(repo, cache)
    fetched = _bytes_in(storage / "blobs")
    snapshot = _snapshot(storage)
    if snapshot is None:
        return Located(fetched=fetched, repo=repo)
    fetched += _own_bytes(snapshot)
    try:
        sizes = _sizes(repo, snapshot)
    except CannotRunError as error:
        return Located(snapshot, (str(error).rstrip("."),), fetched, repo)
    return Located(snapshot, problems_in(snapshot, sizes), fetched, repo)


def _sizes(repo: str, snapshot: Path) -> dict[str, int]:
    """What the files of the model must measure by the hub's listing; empty when that was not kept.

    Raises CannotRunError when the listing has no weights that can be read.
    """
    from huggingface_hub import get_cached_repo_tree

    try:
        tree = get_cached_repo_tree(repo, revision=snapshot.name, cache_dir=snapshot.parents[2])
        index = read_json(snapshot / INDEX)
    except Exception:  # there is none, or it is half-written, of which the library makes any error
        return {}
    sizes = {item.path: int(item.size) for item in tree}
    return {name: sizes[name] for name in needed(sizes, index, repo)}


def _snapshot(storage: Path) -> Path | None:
    """The snapshot that "main" means, else the newest one; None when there is none."""
    with contextlib.suppress(OSError, ValueError):
        commit = (storage / "refs" / "main").read_text(encoding="utf-8").strip()
        if re.fullmatch(r"[0-9a-f]{40}", commit) and (storage / "snapshots" / commit).is_dir():
            return storage / "snapshots" / commit
    with contextlib.suppress(OSError):
        found = [path for path in (storage / "snapshots").iterdir() if path.is_dir()]
        return max(found, key=lambda path: path.stat().st_mtime, default=None)
    return None


def _own_bytes(snapshot: Path) -> int:
    """Bytes of the files that are no links: where a system has no links, the cache keeps files in the snapshot."""
    total = 0
    for path in snapshot.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
    return total


def _bytes_in(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                total += path.stat().st_size
    return total
