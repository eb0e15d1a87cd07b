"""Files on their way: pictures and LoRAs of a request go there, a finished clip comes home. Each by content, in parts,
and held to its SHA-256 where it arrives.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from app.errors import CannotRunError, JobFailedError, KinetileError
from app.job_types import Job, JobResult
from app.loras import locate
from app.models import family_for
from app.paths import Home
from app.pictures import FIELDS, kept_path
from app.remote.cluster import Place
from app.remote.host import PART, digest_of
from app.request import GenerationRequest
from app.video import outputs

ShouldStop = Callable[[], bool]


@dataclass(frozen=True)
class Parcel:
    """A file that a request needs, and its name in a data folder's "pictures" or "loras"."""

    folder: str
    name: str
    path: Path


def parcels_for(request: GenerationRequest, home: Home) -> tuple[Parcel, ...]:
    """Pictures and LoRAs of a request. A LoRA that comes with the model lies with it there. Raises UsageError for one
    that is missing here.
    """
    family = family_for(request.model)
    pictures = [(name, field) for field in FIELDS if (name := getattr(request, field)) is not None]
    found = [Parcel("pictures", name, kept_path(home, name, field)) for name, field in pictures]
    own = [lora.name for lora in request.loras if lora.name not in family.loras]
    found += [Parcel("loras", name, locate(name, family, home)) for name in own]
    return tuple(dict.fromkeys(found))


def bring(parcels: tuple[Parcel, ...], place: Place, should_stop: ShouldStop) -> None:
    """Have these files there, unless they are. Raises LostError, CannotRunError, Cancelled."""
    for parcel in parcels:
        try:
            digest = digest_of(parcel.path)
            if place.call("has", parcel.folder, parcel.name, digest, should_stop=should_stop):
                continue
            for at, data in _parts(parcel.path):
                place.call("put", parcel.folder, parcel.name, at, data, should_stop=should_stop)
        except OSError as error:
            raise CannotRunError(f"{parcel.path} can't be read ({error.strerror or error}): try again.") from error
        if not place.call("settle", parcel.folder, parcel.name, digest, should_stop=should_stop):
            raise CannotRunError(f"{parcel.path} arrived damaged at {place.name}: try the clip again.")


def land(job: Job, made: JobResult, place: Place, should_stop: ShouldStop) -> JobResult:
    """The clip at home: under its final name once every byte is here and right. Raises LostError, JobFailedError,
    Cancelled, and CannotRunError for the folder here; nothing of it stands under a final name then.
    """
    there = str(made.output)
    files = place.call("files", there, should_stop=should_stop)
    try:
        with outputs.drafting(job.spec.folder, job.spec.stem, job.uid) as draft:
            for suffix, size, digest in files:
                if _fetch(draft.file(suffix), there, suffix, size, place, should_stop) != digest:
                    raise JobFailedError(f"The clip came damaged from {place.name}: try it again.")
            final = draft.publish([suffix for suffix, _, _ in files])
    except OSError as error:
        raise outputs.explained(error, job.spec.folder) from error
    with contextlib.suppress(KinetileError):  # it is home, whatever becomes of that machine
        place.call("forget", there)
    return replace(made, output=final[".mp4"], poster=final[".png"])


def _fetch(into: Path, there: str, suffix: str, size: int, place: Place, should_stop: ShouldStop) -> str:
    """Write the file's parts; the SHA-256 of what came."""
    digest, at = hashlib.sha256(), 0
    with into.open("wb") as file:
        while at < size:
            data = place.call("part", there, suffix, at, should_stop=should_stop)
            if not data:
                break
            digest.update(data)
            at += file.write(data)
    return digest.hexdigest()


def _parts(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        at = 0
        while data := file.read(PART):
            yield at, data
            at += len(data)
