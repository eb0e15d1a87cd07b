"""Where clips land: safe names, one free name among several processes, and files that appear only when complete.

A clip is drafted under hidden, unique names (``.stem-token.mp4.partial``) beside its place and published by hard links,
which fail when the name is taken: no lock is needed, nothing is overwritten, and nothing half-written stands under a
final name. On file systems without hard links (FAT, some network shares) the name is claimed with O_EXCL, then
replaced.

Names are cut by bytes, since file systems count bytes: 255 on most, 143 on eCryptfs. The longest made here has 142.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import tempfile
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from app.errors import CannotRunError, KinetileError
from app.paths import is_device

MAX_STEM_BYTES = 120
FALLBACK_STEM = "clip"
CLIP_SUFFIXES = (".mp4", ".png", ".json")
STALE_SECONDS = 24 * 3600  # no draft is worked on for a day: an older one belongs to a process that died

_SEPARATORS = re.compile(r"[\s/\\:*?\"<>|-]+")
_DRAFT = re.compile(r"\..+-[0-9a-f]{8}\.[a-z0-9]+\.partial")
# Needed inside emoji and Persian words, though of the class (Cf) that hides and reverses text.
_JOINERS = "\u200c\u200d"
_ENDS = ".-" + _JOINERS
# ENOENT: what Windows says to a path that is too long, in a folder that is there.
_BAD_NAME = {errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ENOENT}
_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


def safe_stem(text: str) -> str:
    """A file name without suffix for any text: at most 120 bytes of UTF-8 (NFC), legal on Linux, macOS and Windows.

    White space and ``/ \\ : * ? " < > |`` become one hyphen; control, invisible, unassigned and surrogate characters
    go, and so do dots and hyphens at the ends. Device names of Windows get an underscore. Nothing left gives "clip".
    """
    stem = _cut(_clean(unicodedata.normalize("NFC", _clean(text.strip()[: 8 * MAX_STEM_BYTES]))))
    if is_device(stem):
        stem = _cut("_" + stem)
    return stem or FALLBACK_STEM


def _clean(text: str) -> str:
    kept = "".join(c for c in _SEPARATORS.sub("-", text) if c in _JOINERS or unicodedata.category(c)[0] != "C")
    return _SEPARATORS.sub("-", kept).strip(_ENDS)


def _cut(stem: str) -> str:
    return stem.encode()[:MAX_STEM_BYTES].decode(errors="ignore").rstrip(_ENDS)


def check_space(folder: Path, needed: int) -> None:
    """Before a run: raise CannotRunError unless ``folder`` can be written and its disk has ``needed`` bytes free.

    The folder need not exist; nothing is left behind.
    """
    place = folder.absolute()
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise CannotRunError(
            f"The output folder {folder} cannot be made, since {place} is not a folder: make way for it "
            "(on the command line: --out DIR names another)."
        )
    try:
        with tempfile.TemporaryFile(dir=place, prefix=".kinetile-") as probe:
            probe.write(b"writable?")
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise explained(error, folder) from error
    if free < needed:
        raise CannotRunError(
            f"The disk that holds {folder} has {size_text(free)} free, but this run may need {size_text(needed)}: "
            "free some space (on the command line: --out DIR names another folder)."
        )


def explained(error: OSError, folder: Path) -> KinetileError:
    """The sentence for a failure to write in ``folder``."""
    if error.errno in _FULL:
        return disk_full(folder)
    reason = (error.strerror or type(error).__name__).lower()
    return CannotRunError(
        f"Cannot write in the output folder {folder} ({reason}): make it writable (on the command line: --out DIR "
        "names another)."
    )


def disk_full(folder: Path) -> CannotRunError:
    return CannotRunError(
        f"The disk that holds {folder} is full: free some space (on the command line: --out DIR names another folder)."
    )


def size_text(size: int) -> str:
    """Bytes for people, in binary units: ``1.5 GiB``."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


class Draft:
    """The files of one clip while they are written; see `drafting`."""

    def __init__(self, folder: Path, stem: str, token: str) -> None:
        self.folder = folder
        self.stem = stem
        self._token = token
        self._files: dict[str, Path] = {}

    def file(self, suffix: str) -> Path:
        """A hidden, empty file of this draft, made on the first call for ``suffix``. Raises OSError."""
        if suffix not in self._files:
            path = self.folder / f".{self.stem}-{self._token}{suffix}.partial"
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            self._files[suffix] = path
        return self._files[suffix]

    def publish(self, suffixes: Sequence[str]) -> dict[str, Path]:
        """Give the drafted files their final names, in this order, under the first number free for every suffix.

        Returns suffix -> final path. Raises OSError, with none of the names taken.
        """
        for suffix in suffixes:
            _flush(self._files[suffix])
        for number in count(1):
            stem = self.stem if number == 1 else f"{self.stem}-{number}"
            if any(os.path.lexists(self.folder / (stem + suffix)) for suffix in CLIP_SUFFIXES):
                continue
            final = {suffix: self.folder / (stem + suffix) for suffix in suffixes}
            try:
                self._place(final)
            except FileExistsError:  # another process was quicker
                continue
            _flush_folder(self.folder)
            return final
        raise AssertionError("unreachable: the numbers do not end")

    def _place(self, final: dict[str, Path]) -> None:
        placed: list[str] = []
        try:
            for suffix, path in final.items():
                place(self._files[suffix], path)
                placed.append(suffix)
        except BaseException:
            for suffix in placed:
                if self._files[suffix].exists():
                    final[suffix].unlink()
                else:
                    os.replace(final[suffix], self._files[suffix])
            raise

    def discard(self) -> None:
        for path in self._files.values():
            path.unlink(missing_ok=True)


@contextmanager
def drafting(folder: Path, stem: str, uid: str = "") -> Iterator[Draft]:
    """A Draft in ``folder`` (made if missing) named after any text ``stem``; what was not published is gone afterwards.

    With the ``uid`` of a job (hexadecimal), `remove_drafts` finds what a process left that was killed meanwhile.

    A system that refuses the name for reasons of its own (a path limit) gets "clip" instead. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    token = uid[:8] or secrets.token_hex(4)
    draft = Draft(folder, safe_stem(stem), token)
    try:
        draft.file(CLIP_SUFFIXES[0])
    except OSError as error:
        if error.errno not in _BAD_NAME or draft.stem == FALLBACK_STEM:
            raise
        draft = Draft(folder, FALLBACK_STEM, token)
        draft.file(CLIP_SUFFIXES[0])
    try:
        yield draft
    finally:
        draft.discard()


def remove_drafts(folder: Path, uid: str) -> None:
    """Remove what a killed process left of the clip of the job with that ``uid``."""
    for draft in folder.glob(f".*-{uid[:8]}.*.partial"):
        with suppress(OSError):
            draft.unlink()


def new_folder(parent: Path, stem: str) -> Path:
    """A new, empty folder below ``parent``, numbered if the name is taken. Raises OSError."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable: the numbers do not end")


def place(draft: Path, final: Path) -> None:
    """Make ``final`` the drafted file, whole or not at all; the draft may remain. Raises OSError, FileExistsError if
    the name is taken.
    """
    try:
        os.link(draft, final)
    except FileExistsError:
        raise
    except OSError:  # no hard links here
        if os.name == "nt":
            os.rename(draft, final)  # refuses a taken name on Windows
            return
        os.close(os.open(final, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            os.replace(draft, final)
        except BaseException:
            final.unlink()
            raise


def _flush(path: Path) -> None:
    with open(path, "r+b") as file:  # Windows flushes only what is open for writing
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":
        return  # folders cannot be opened there
    handle = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # some network file systems have no fsync for folders
        os.fsync(handle)
    os.close(handle)


def _sweep(folder: Path) -> None:
    """Remove drafts left by processes that were killed. Names are unique, so no living draft can be hit."""
    limit = time.time() - STALE_SECONDS
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _DRAFT.fullmatch(entry.name):
                continue
            with suppress(OSError):  # other processes finish theirs meanwhile
                if entry.stat(follow_symlinks=False).st_mtime < limit:
                    os.unlink(entry.path)
