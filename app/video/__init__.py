"""Clips as files: frames in, an H.264 MP4 that carries its own request out, and both back again.

What is written: H.264 High, yuv420p, BT.709 limited range, avc1, index in front, exactly the frames, size and fps
given. The whole metadata dict stands in the file's ``comment`` tag as ASCII JSON. The file is read back, decoded and
compared before it gets its name; see `outputs` for names and `ffmpeg` for colour.

Sides: 4:2:0 needs even ones. An odd side gets its last row or column of pixels repeated once, never a stretch; the
``description`` tag keeps the true size, `decode_frames` crops to it, and a warning says so.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from accel.reading import parse_json, read_file
from app import __version__
from app.errors import JobFailedError, KinetileError, UsageError
from app.request import GenerationRequest, parse_request
from app.video import mp4, outputs
from app.video.ffmpeg import Frames, check_encoder, count_frames, decode, encode

__all__ = [
    "Frames",
    "SavedClip",
    "check_encoder",
    "decode_frames",
    "read_metadata",
    "read_request",
    "save",
    "space_needed",
]

DEFAULT_CRF = 18
"""x264's constant quality. Larger is smaller and worse; 0 would be lossless, which browsers do not play."""
CRF_RANGE = (1, 51)
_MAX_SIDECAR_BYTES = 4 * mp4.MAX_TAG_BYTES
_PICTURE = re.compile(rb"picture (\d{1,5})x(\d{1,5}), edges repeated to even sides")


@dataclass(frozen=True)
class SavedClip:
    """Where a clip lies. ``sidecar`` holds the metadata as JSON when the MP4 itself could not."""

    path: Path
    poster: Path
    sidecar: Path | None = None
    warnings: tuple[str, ...] = ()


def space_needed(width: int, height: int, frames: int) -> int:
    """Bytes to keep free for a clip: raw 4:2:0 and a poster. Noise at CRF 18 took half of that (measured)."""
    return width * height * (frames * 3 // 2 + 4) + 1024 * 1024


def save(
    frames: Frames,
    fps: float,
    folder: Path,
    stem: str,
    metadata: Mapping[str, Any],
    crf: int = DEFAULT_CRF,
    *,
    uid: str = "",
) -> SavedClip:
    """Write ``frames`` (uint8, (frames, height, width, 3), RGB) as ``folder``/name.mp4, with a poster name.png.

    The name comes from any text ``stem`` through `outputs.safe_stem`, numbered when taken. Drafts carry the ``uid`` of
    a job, see `outputs.remove_drafts`. ``fps`` in frames per second; 23.976 means 24000/1001.

    Raises UsageError for a bad fps or crf, before anything is written. Raises CannotRunError (disk, encoder) or
    JobFailedError when saving fails: nothing stands under a final name then, and the frames are kept as PNG pictures in
    a folder that the error names.
    """
    rate = _rate(fps)
    if not CRF_RANGE[0] <= crf <= CRF_RANGE[1]:
        raise UsageError(
            f"The quality crf is {crf}; it must lie between {CRF_RANGE[0]} (best) and {CRF_RANGE[1]} (smallest file)."
        )
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
        raise JobFailedError(
            f"There is no clip to save: uint8 RGB frames were expected, not {frames.dtype} {frames.shape}."
        )
    data = plain(metadata)
    try:
        return _save(frames, rate, folder, stem, data, crf, uid)
    except Exception as error:  # whatever it is, the frames have cost more than the file
        told = _told_error(error, folder)
        kept = _keep_frames(frames, rate, folder, stem, data)
        where = f"The frames are kept as PNG pictures in {kept}." if kept else "The frames could not be kept either."
        raise type(told)(f"{told} {where}") from error


def read_metadata(path: Path | str) -> dict[str, Any]:
    """The metadata dict of a clip, from the MP4 or from the sidecar beside it. Fast: nothing is decoded.

    Raises UsageError for whatever is not one of our clips; safe on files from strangers.
    """
    path = Path(path)
    comment = _facts(path).tags.get("comment", b"")
    try:
        return _parse(comment, path)
    except UsageError:
        sidecar = path.with_suffix(".json")
        if not sidecar.is_file() or sidecar.stat().st_size > _MAX_SIDECAR_BYTES:
            raise
        try:
            return _parse(read_file(sidecar, _MAX_SIDECAR_BYTES), sidecar)
        except OSError as error:
            raise UsageError(f"{sidecar} can't be read ({error.strerror or error}): make it readable.") from error


def read_request(path: Path | str) -> GenerationRequest:
    """The request that made a clip. Raises UsageError like `read_metadata`, or when the request is not acceptable."""
    return parse_request(read_metadata(path)["request"], source=str(path))


def decode_frames(path: Path | str) -> Frames:
    """The pictures of a clip as uint8 (frames, height, width, 3) RGB, cropped to the size it was saved with.

    Raises UsageError for what is not an MP4 video, JobFailedError for one that does not decode or is too large to hold
    (4 GiB).
    """
    path = Path(path)
    facts = _facts(path)
    if not facts.codec:
        raise UsageError(f"{path} is an MP4 file without video: use a clip that Kinetile saved.")
    width, height = _picture_size(facts)
    return np.ascontiguousarray(decode(path, facts.frames, facts.height, facts.width)[:, :height, :width])


def _save(
    frames: Frames, rate: Fraction, folder: Path, stem: str, metadata: dict[str, Any], crf: int, uid: str
) -> SavedClip:
    height, width = frames.shape[1:3]
    even = _even(frames)
    text = _json(metadata)
    warnings: list[str] = []
    note = None
    if even is not frames:
        note = f"picture {width}x{height}, edges repeated to even sides"
        warnings.append(
            f"The clip is {width}x{height}, but H.264 needs even sides: its edge pixels are repeated, and the file "
            f"is {even.shape[2]}x{even.shape[1]}."
        )
    with outputs.drafting(folder, stem, uid) as draft:
        _write_poster(_representative(frames), draft.file(".png"))
        _write_tags(draft, text, note)
        encode(even, rate, crf, draft.file(".mp4"), draft.file(".txt"))
        facts = _read_back(draft.file(".mp4"), even, rate, warnings)
        publish = [".png", ".mp4"]
        if _differs(facts.tags.get("comment"), metadata):
            draft.file(".json").write_bytes(text)
            publish = [".png", ".json", ".mp4"]
        final = draft.publish(publish)
    if ".json" in final:
        warnings.append(
            f"The request could not be stored in {final['.mp4'].name}; it lies beside it as {final['.json'].name}."
        )
    return SavedClip(final[".mp4"], final[".png"], final.get(".json"), tuple(warnings))


def _rate(fps: float) -> Fraction:
    if not math.isfinite(fps) or not 0 < fps <= 1000:
        raise UsageError(f"The clip's fps is {fps}; it must be above 0 and at most 1000 frames per second.")
    film = round(fps * 1.001)  # 23.976, 29.97 and 59.94 are short for 24000/1001 and so on
    if abs(fps * 1.001 - film) < 2e-4:
        return Fraction(film * 1000, 1001)
    return Fraction(fps).limit_denominator(1001)


def _even(frames: Frames) -> Frames:
    height, width = frames.shape[1:3]
    if height % 2 == 0 and width % 2 == 0:
        return frames
    return np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _picture_size(facts: mp4.Mp4) -> tuple[int, int]:
    """Width and height as saved: the tag is believed only where it takes at most one row or column."""
    found = _PICTURE.fullmatch(facts.tags.get("description", b""))
    if found:
        width, height = int(found[1]), int(found[2])
        if 0 <= facts.width - width <= 1 and 0 <= facts.height - height <= 1:
            return width, height
    return facts.width, facts.height


def _write_tags(draft: outputs.Draft, comment: bytes, description: str | None) -> None:
    """An ffmetadata file: the one way to hand ffmpeg a text of any length, on every system."""
    tags = {"title": draft.stem.encode(), "encoding_tool": f"Kinetile {__version__}".encode()}
    if description:
        tags["description"] = description.encode()
    if len(comment) <= mp4.MAX_TAG_BYTES:
        tags["comment"] = comment
    lines = [key.encode() + b"=" + re.sub(rb"([=;#\\\n])", rb"\\\1", value) for key, value in tags.items()]
    draft.file(".txt").write_bytes(b"\n".join([b";FFMETADATA1", *lines, b""]))


def _read_back(path: Path, frames: Frames, rate: Fraction, warnings: list[str]) -> mp4.Mp4:
    """Compare the written file with what was asked. Raises JobFailedError for a wrong clip; wrong labels only warn."""
    count, height, width, _ = frames.shape
    try:
        facts = mp4.read(path)
    except mp4.Mp4Error as error:
        raise JobFailedError(f"The clip was not saved: what ffmpeg wrote {error}.") from error
    found = (facts.codec, facts.width, facts.height, facts.frames, facts.seconds, count_frames(path))
    wanted = ("avc1", width, height, count, count / rate, count)
    if found != wanted:
        raise JobFailedError(f"The clip was not saved: ffmpeg wrote {_told(found)}, not {_told(wanted)}.")
    if (facts.profile, facts.colour, facts.full_range, facts.faststart) != (100, (1, 1, 1), False, True):
        warnings.append(
            "This ffmpeg left out a label (High profile, BT.709 or index in front): browsers may show it otherwise."
        )
    return facts


def _told(facts: tuple[str, int, int, int, Fraction, int]) -> str:
    codec, width, height, count, seconds, decoded = facts
    return f"{codec} {width}x{height}, {count} frames ({decoded} decoded) in {float(seconds):.3f} s"


def _told_error(error: Exception, folder: Path) -> KinetileError:
    """The sentence for a person. A full disk reaches us as one line of ffmpeg among others: said plainly here."""
    if isinstance(error, OSError):
        return outputs.explained(error, folder)
    if not isinstance(error, KinetileError):
        return JobFailedError(f"The clip was not saved ({type(error).__name__}: {error}).")
    full = any(words in str(error).lower() for words in ("no space left", "disk quota exceeded"))
    return outputs.disk_full(folder) if full else error


def _representative(frames: Frames) -> Frames:
    """The frame with the most contrast among three inner ones, so that no fade or flash stands for the clip."""
    count = len(frames)
    picks = [frames[i] for i in (count // 2, count // 4, count * 3 // 4)]
    return max(picks, key=lambda frame: float(frame[::2, ::2].std()))


def _write_poster(frame: Frames, path: Path) -> None:
    from PIL import Image

    Image.fromarray(frame).save(path, format="PNG")


def _keep_frames(frames: Frames, rate: Fraction, folder: Path, stem: str, metadata: dict[str, Any]) -> Path | None:
    """All frames as PNG, with their metadata, in a new folder where the clip would be, else in the temporary one."""
    for parent in (folder, None):
        place: Path | None = None
        try:  # asking for the temporary folder fails where every disk is full
            place = outputs.new_folder(parent or Path(tempfile.gettempdir()), outputs.safe_stem(stem) + "-frames")
            (place / "metadata.json").write_bytes(_json({"fps": float(rate), **metadata}))
            for number, frame in enumerate(frames):
                _write_poster(frame, place / f"{number:05d}.png")
        except (OSError, ValueError):
            if place:
                for file in place.iterdir():
                    file.unlink()
                place.rmdir()
            continue
        return place
    return None


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it, so that nothing in a report costs a finished clip.

    Not-a-number and infinity become null, half surrogate pairs "?", arrays lists, unknown objects their text.
    """
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else str(value)
    return text.encode("utf-8", "replace").decode()


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()


def _differs(comment: bytes | None, metadata: dict[str, Any]) -> bool:
    try:
        return comment is None or _parse(comment, Path()) != metadata
    except UsageError:
        return True


def _facts(path: Path) -> mp4.Mp4:
    try:
        return mp4.read(path)
    except mp4.Mp4Error as error:
        raise UsageError(f"{path} {error}: use a clip that Kinetile saved.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path} cannot be read ({reason.lower()}): check the name.") from error


def _parse(text: bytes, path: Path) -> dict[str, Any]:
    """Metadata from a stranger's file: strict JSON, bounded in depth and number of parts. Raises UsageError."""
    unusable = UsageError(f"{path} holds no Kinetile request: use a clip that Kinetile saved and nobody rewrote.")
    try:
        value = parse_json(text)
    except ValueError as error:
        raise unusable from error
    ours = isinstance(value, dict) and isinstance(value.get("request"), dict) and type(value.get("kinetile")) is int
    if not ours:
        raise unusable
    return dict(value)
