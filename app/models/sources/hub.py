"""Fetch a repository's model into the Hugging Face cache, so that a fetch that was ended in any way goes on later.

Runs in a process of its own (`process`), the only one of Kinetile that uses the network. huggingface_hub lists the
files, asks for them and retries; its own downloads keep no part of a file once the process ends (they write into a file
of a fresh name and delete it), so the parts are kept here, under the name that the cache gives the finished file. Each
file's content is compared with the checksum in the listing before it counts. At the end the library itself is asked for
the same files: it finds them all, or fetches what is missing, and writes what else its cache needs.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accel.reading import read_json
from app.errors import CannotRunError
from app.models.sources.cache import PARTIAL, cache_folder, storage_of
from app.models.sources.choosing import INDEX, needed
from app.models.sources.explaining import explained
from app.models.sources.fetching import FetchProgress
from app.video.outputs import size_text

FILES_AT_ONCE = 4
CHUNK = 2**20
"""Bytes between two counts; the library's own 10 MiB would show nothing for a minute on a slow line."""
SPARE = 512 * 2**20
"""Bytes of the disk that are to stay free."""
TELL_SECONDS = 0.25
SPEED_SECONDS = 15.0
"""The speed is the mean of this long."""
READ = 2**22

Tell = Callable[[FetchProgress], None]


@dataclass(frozen=True)
class RemoteFile:
    """Content that the hub lists, under one name or more. blob: its name in the cache. sha256: of the content; empty:
    `blob` is git's own sum of it.
    """

    paths: tuple[str, ...]
    size: int
    blob: str
    sha256: str = ""

    @property
    def path(self) -> str:
        """One of the names, to speak of it."""
        return self.paths[0]


@dataclass(frozen=True)
class Listing:
    """What a fetch will get: of which commit, which files."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def fetch(repo: str, tell: Tell = lambda progress: None, cache: Path | None = None) -> Path:
    """Bring the model of a repository onto this machine and return its folder. Raises CannotRunError."""
    from filelock import FileLock, Timeout
    from huggingface_hub import constants

    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    place = (cache or cache_folder()).absolute()
    tell(FetchProgress("listing"))
    try:
        storage = storage_of(repo, place)
        locks = place / ".locks" / storage.name
        for folder in (storage / "blobs", locks):
            folder.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / "kinetile.lock", timeout=0):
            return _Fetch(listing_of(repo, storage), place, tell).run()
    except Timeout:
        raise CannotRunError(f"{repo} is being fetched already, by another Kinetile: wait for that one.") from None
    except CannotRunError:
        raise
    except Exception as error:
        raise explained(error, repo, place) from error


def listing_of(repo: str, storage: Path) -> Listing:
    """The files to fetch. The listing and the model's index are left in the cache, where they tell what an unfinished
    fetch lacks. Raises what the library raises.
    """
    from huggingface_hub import HfApi, snapshot_download

    api = HfApi()
    commit = str(api.model_info(repo).sha)
    files = {
        item.path: RemoteFile((item.path,), item.size, *_sums(item))
        for item in api.list_repo_tree(repo, recursive=True, revision=commit)
        if hasattr(item, "blob_id")
    }
    if INDEX not in files:
        raise CannotRunError(f"{repo} is no diffusers model, for it has no {INDEX}: name a repository that has one.")
    folder = snapshot_download(repo, revision=commit, allow_patterns=[INDEX], cache_dir=storage.parent)
    chosen = needed(files, read_json(Path(folder) / INDEX), repo)
    by_blob: dict[str, RemoteFile] = {}
    for file in (files[path] for path in chosen):
        same = by_blob.get(file.blob, replace(file, paths=()))
        by_blob[file.blob] = replace(file, paths=(*same.paths, *file.paths))
    return Listing(repo, commit, tuple(by_blob.values()))


def _sums(item: Any) -> tuple[str, str]:
    sha256 = "" if item.lfs is None else str(item.lfs.sha256)
    return sha256 or str(item.blob_id), sha256


class _Fetch:
    """One fetch: several files at once, told about in one voice."""

    def __init__(self, listing: Listing, cache: Path, tell: Tell) -> None:
        self._listing, self._cache, self._tell = listing, cache, tell
        self._storage = storage_of(listing.repo, cache)
        self._pulls = [_Pull(listing.repo, listing.commit, file, self._storage) for file in listing.files]
        self._pace = Pace()

    def run(self) -> Path:
        self._check_space()
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="fetch") as pool:
            waiting: set[Future[Path]] = {pool.submit(pull.run) for pull in self._pulls}
            try:
                while waiting:
                    ended, waiting = wait(waiting, TELL_SECONDS, FIRST_EXCEPTION)
                    self._tell_state()
                    for future in ended:
                        future.result()
            except BaseException:
                for pull in self._pulls:
                    pull.stopped.set()
                pool.shutdown(cancel_futures=True)
                raise
        return self._settle()

    def _check_space(self) -> None:
        """Raise CannotRunError unless the disk has room for what is still to come."""
        missing = sum(pull.missing for pull in self._pulls)
        free = shutil.disk_usage(self._storage).free
        if missing and missing + SPARE > free:
            raise CannotRunError(
                f"{self._listing.repo} needs {size_text(missing)} more on the disk that holds {self._cache}, which has "
                f"{size_text(free)} free: free some space, or set HF_HOME to a folder on another disk."
            )

    def _tell_state(self) -> None:
        done, total = sum(pull.done for pull in self._pulls), self._listing.size
        speed = self._pace.speed(done)
        running = [pull for pull in self._pulls if pull.began and not pull.is_over]
        stage: Any = "checking" if running and all(pull.checking for pull in running) else "downloading"
        left = None if not speed else (total - done) / speed
        name = running[0].file.path if running else ""
        self._tell(FetchProgress(stage, done, total, speed, left, name))

    def _settle(self) -> Path:
        """Have the library find all of it, and let "main" mean this commit."""
        from huggingface_hub import snapshot_download

        listing = self._listing
        names = [glob.escape(path) for file in listing.files for path in file.paths]
        folder = Path(
            snapshot_download(listing.repo, revision=listing.commit, allow_patterns=names, cache_dir=self._cache)
        )
        main = self._storage / "refs" / "main"
        main.parent.mkdir(parents=True, exist_ok=True)
        partial = main.with_name(f"main.{os.getpid()}.partial")
        partial.write_text(listing.commit, encoding="utf-8")
        os.replace(partial, main)
        return folder


class _Pull:
    """One file on its way into the cache. `done`: bytes of it that are here."""

    def __init__(self, repo: str, commit: str, file: RemoteFile, storage: Path) -> None:
        self.file = file
        self._repo, self._commit, self._storage = repo, commit, storage
        self._blob = storage / "blobs" / file.blob
        self._partial = storage / "blobs" / f"{file.blob}{PARTIAL}"
        snapshot = storage / "snapshots" / commit
        self._pointers = [snapshot / Path(*path.split("/")) for path in file.paths]
        self.stopped = threading.Event()
        self.began = self.checking = self.is_over = False
        self.done = file.size if self._is_here() else self._kept()

    @property
    def missing(self) -> int:
        """Bytes that are still to come."""
        return max(0, self.file.size - self.done)

    def run(self) -> Path:
        """Fetch what is missing, compare it with its checksum, put it in its place. Returns where it lies."""
        self.began = True
        if not self._is_here():
            if not self._blob.exists():
                self._get()
            self._place()
        self.done, self.is_over = self.file.size, True
        return self._pointers[0]

    def _is_here(self) -> bool:
        with contextlib.suppress(OSError):
            return all(pointer.stat().st_size == self.file.size for pointer in self._pointers)
        return False

    def _kept(self) -> int:
        for path in (self._blob, self._partial):
            with contextlib.suppress(OSError):
                return min(path.stat().st_size, self.file.size)
        return 0

    def _get(self) -> None:
        resumed = self._kept() > 0
        self._stream()
        if self._is_as_listed():
            os.replace(self._partial, self._blob)
            return
        self._partial.unlink()
        if not resumed:
            raise CannotRunError(
                f"{self.file.path} of {self._repo} arrived with another content than the hub lists, so it was thrown "
                "away: try again later."
            )
        self._get()  # what was kept of an earlier fetch may have been spoiled: once more from its beginning

    def _stream(self) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        self._partial.parent.mkdir(parents=True, exist_ok=True)
        kept = self._partial.stat().st_size if self._partial.exists() else 0
        if kept > self.file.size:
            self._partial.unlink()
            kept = 0
        if kept == self.file.size > 0:
            return
        with self._partial.open("ab") as file:
            # compressed bytes could not be gone on with
            headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
            http_get(
                hf_hub_url(self._repo, self.file.path, revision=self._commit),
                file,
                resume_size=kept,
                headers=headers,
                expected_size=self.file.size,
                displayed_filename=self.file.path,
                tqdm_class=functools.partial(_Counter, self),
            )

    def _is_as_listed(self) -> bool:
        self.checking = True
        sum_ = hashlib.sha256() if self.file.sha256 else hashlib.sha1(f"blob {self.file.size}\0".encode())
        with self._partial.open("rb") as file:
            while data := file.read(READ):
                self.refuse_stopped()
                sum_.update(data)
        self.checking = False
        return sum_.hexdigest() == self.file.blob

    def _place(self) -> None:
        """The names under which the model has the file: links where the system allows links, else the file itself."""
        from huggingface_hub.file_download import are_symlinks_supported

        linking = are_symlinks_supported(self._storage.parent)
        for pointer in self._pointers:
            pointer.parent.mkdir(parents=True, exist_ok=True)
            pointer.unlink(missing_ok=True)
            if linking:
                os.symlink(os.path.relpath(self._blob, pointer.parent), pointer)
            elif pointer == self._pointers[-1]:
                os.replace(self._blob, pointer)
            else:
                shutil.copyfile(self._blob, pointer)

    def refuse_stopped(self) -> None:
        if self.stopped.is_set():
            raise CannotRunError("Stopped, since another file could not be fetched.")


class _Counter:
    """Counts a file's bytes in the place of the library's progress bar."""

    def __init__(self, pull: _Pull, initial: int = 0, **_: object) -> None:
        self._pull = pull
        pull.done = initial

    def __enter__(self) -> _Counter:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put away."""

    def update(self, count: int = 1) -> None:
        """So many bytes more (fewer, when the server began anew)."""
        self._pull.refuse_stopped()
        self._pull.done += count


class Pace:
    """How fast a count grows. `now` is for tests."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: deque[tuple[float, int]] = deque()

    def speed(self, done: int) -> float | None:
        """A second, over the last `SPEED_SECONDS`; None before it can be told."""
        moment = self._now()
        self._seen.append((moment, done))
        while len(self._seen) > 2 and moment - self._seen[0][0] > SPEED_SECONDS:
            self._seen.popleft()
        (begin, before), (end, after) = self._seen[0], self._seen[-1]
        return (after - before) / (end - begin) if end - begin >= 1.0 and after > before else None
