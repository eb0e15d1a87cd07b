"""Pictures that a clip begins or ends with: read safely, kept by content, cut to the clip's shape.

    request with a picture's name, and where that lies --adopt--> request with the name of a kept copy --fit--> RGB

A file that a person hands in is read once, so that a broken one is refused before anything is queued, and kept in the
data folder under a name made of its content: what is queued no longer depends on the file it came from. The clip's own
file carries the picture as the model saw it (upright, cut, no camera data), so it can be made again anywhere.

Files come from strangers: only the formats below are opened, by their content, with limits on bytes and pixels.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import io
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from app.errors import CannotRunError, UsageError
from app.models.base import Normalised
from app.paths import Home, inside, read_bytes, slug
from app.request import Adjustment, GenerationRequest

Field = Literal["image", "last_image"]
FIELDS: tuple[Field, ...] = ("image", "last_image")
TITLES: Mapping[Field, str] = {"image": "first picture", "last_image": "last picture"}

MAX_BYTES = 64 * 1024 * 1024
"""Largest picture file read."""
MAX_PIXELS = 100_000_000
"""Most pixels of a picture: 300 MB as RGB."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
_SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "MPO": ".jpg", "WEBP": ".webp", "BMP": ".bmp", "GIF": ".gif"}
_HASHED = re.compile(r"-[0-9a-f]{16}$")


@dataclass(frozen=True)
class Picture:
    """A picture as a model takes it: RGB, upright, opaque, in sRGB. notes: sentences on what was changed for that."""

    image: Image.Image
    suffix: str
    notes: tuple[str, ...] = ()


def read_picture(data: bytes, where: str, field: Field = "image") -> Picture:
    """The picture in a file's content. Raises UsageError, naming it as ``where``, for what can't be one."""
    if not data:
        raise UsageError(f"{where} is empty; choose a picture ({_formats()}).")
    if len(data) > MAX_BYTES:
        raise UsageError(f"{where} has {len(data):,} bytes, at most {MAX_BYTES:,} are read; save it smaller.")
    try:
        with warnings.catch_warnings():  # Pillow's own limit only warns; ours is below
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
                width, height = opened.size
                if width * height > MAX_PIXELS:
                    raise UsageError(
                        f"{where} has {width}x{height} pixels, at most {MAX_PIXELS:,} in all are read; save it smaller."
                    )
                return _as_rgb(opened, TITLES[field])
    except Image.DecompressionBombError as error:
        raise UsageError(f"{where} has more than {MAX_PIXELS:,} pixels; save it smaller.") from error
    except UnidentifiedImageError as error:
        raise UsageError(f"{where} is no picture that can be read; choose one in {_formats()}.") from error
    except (OSError, SyntaxError, ValueError, IndexError, TypeError, EOFError, MemoryError, OverflowError) as error:
        # what Pillow's decoders raise over damaged files
        raise UsageError(f"{where} is damaged or was cut short ({error}); save it again.") from error


def _formats() -> str:
    return ", ".join(FORMATS[:-1]) + f" or {FORMATS[-1]}"


def _as_rgb(opened: Image.Image, title: str) -> Picture:
    notes: list[str] = []
    suffix = _SUFFIXES[str(opened.format)]
    if getattr(opened, "n_frames", 1) > 1 and opened.format != "MPO":  # an MPO's others are views of the same picture
        notes.append(f"The {title} has several frames; the first is taken.")
    opened.load()
    image = ImageOps.exif_transpose(opened)
    if image.mode.startswith("I") or image.mode == "F":  # 16 bits of grey
        image = image.point(lambda value: value / 257).convert("L")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        if cast(tuple[int, int], image.getchannel("A").getextrema())[0] < 255:
            notes.append(f"The {title} is transparent in places; white is put behind it.")
            white = Image.new("RGBA", image.size, "white")
            white.alpha_composite(image)
            image = white
        image = _kept_profile(image.convert("RGB"), opened)
    image, note = _in_srgb(image, title)
    if note:
        notes.append(note)
    return Picture(image.convert("RGB"), suffix, tuple(notes))


def _kept_profile(image: Image.Image, source: Image.Image) -> Image.Image:
    if "icc_profile" in source.info and source.mode in ("RGB", "RGBA", "P", "PA"):
        image.info["icc_profile"] = source.info["icc_profile"]
    return image


def _in_srgb(image: Image.Image, title: str) -> tuple[Image.Image, str]:
    """The picture's own colours as sRGB, and a sentence where its colour profile can't be used."""
    profile = image.info.get("icc_profile")
    if not profile or image.mode not in ("RGB", "CMYK", "L"):
        return image, ""
    try:
        own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        converted = ImageCms.profileToProfile(image, own, ImageCms.createProfile("sRGB"), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return image, f"The colour profile of the {title} can't be read; its colours are taken as sRGB."
    return (image if converted is None else converted), ""


# -- kept by content --


def keep(home: Home, data: bytes, name: str, where: str, field: Field = "image") -> str:
    """Keep a picture; returns its name, made of ``name`` and its content. Raises UsageError for what is no picture,
    CannotRunError when the disk refuses.
    """
    suffix = read_picture(data, where, field).suffix
    stem = slug(_HASHED.sub("", re.split(r"[/\\]", name)[-1].rpartition(".")[0])[:60], "picture")
    kept = f"{stem}-{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
    path = home.pictures / kept
    if not path.is_file():
        try:
            _write(path, data)
        except OSError as error:
            raise CannotRunError(f"The picture can't be kept in {path.parent} ({error.strerror or error}).") from error
    return kept


def _write(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=".", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def kept_path(home: Home, name: str, field: Field) -> Path:
    """Where a kept picture lies. Raises UsageError when it is gone or its name would leave the folder."""
    try:
        return inside(home.root / "pictures", name)
    except UsageError as error:
        raise UsageError(f"{field}: {error}") from error


def adopt(
    request: GenerationRequest, home: Home, folder: Path | None = None, embedded: Mapping[str, bytes] | None = None
) -> GenerationRequest:
    """The request with each picture kept, under its name there. A picture is looked for in ``embedded`` (what a clip's
    file carries, by field), else in ``folder``, else among those that are kept already.

    Raises UsageError for one that is missing or can't be read.
    """
    names: dict[str, str] = {}
    for field in FIELDS:
        name = getattr(request, field)
        if name is None:
            continue
        if embedded and field in embedded:
            names[field] = keep(home, embedded[field], name, f"{field}: the picture in the clip", field)
        elif folder is not None:
            try:
                data = read_bytes(inside(folder, name), MAX_BYTES)
            except UsageError as error:
                raise UsageError(f"{field}: {error}") from error
            names[field] = keep(home, data, name, f"{field}: {name}", field)
        else:
            kept_path(home, name, field)
    return request.model_copy(update=names)


# -- cut to the clip's shape --


def opened(home: Home, request: GenerationRequest) -> dict[Field, Picture]:
    """The pictures of a request whose pictures are kept, at their own size. Raises UsageError."""
    return {
        field: _opened(str(kept_path(home, name, field)), field) for field in FIELDS if (name := _name(request, field))
    }


def _name(request: GenerationRequest, field: Field) -> str | None:
    found: str | None = getattr(request, field)
    return found


def _opened(path: str, field: Field) -> Picture:
    return read_picture(read_bytes(Path(path), MAX_BYTES), f"{field}: {path}", field)


@functools.lru_cache(maxsize=32)
def _facts(path: str, field: Field) -> tuple[int, int, tuple[str, ...]]:
    """Width, height and notes; kept names tell their content, so what was said once stays true."""
    picture = _opened(path, field)
    return picture.image.width, picture.image.height, picture.notes


def fit(picture: Picture, width: int, height: int) -> Image.Image:
    """RGB of exactly that size: scaled until it covers it, what stands over is cut off evenly on both sides. A picture
    that has the size is not changed.
    """
    if picture.image.size == (width, height):
        return picture.image
    return ImageOps.fit(picture.image, (width, height), Image.Resampling.LANCZOS)


def fitted(made: Normalised, home: Home, strict: bool = False) -> Normalised:
    """``made`` with an adjustment for everything that is changed of its pictures. Raises UsageError for a picture that
    is not there or can't be read, and with ``strict`` for every change.
    """
    request, found = made.request, []
    for field in FIELDS:
        name = _name(request, field)
        if name is None:
            continue
        width, height, notes = _facts(str(kept_path(home, name, field)), field)
        wanted = int(request.width or width), int(request.height or height)
        if cut := _cut(field, (width, height), wanted):
            notes = (*notes, cut)
        size = f"{width}x{height}"
        found += [Adjustment(field=field, asked=size, used=f"{wanted[0]}x{wanted[1]}", reason=note) for note in notes]
    if strict and found:
        told = " ".join(item.reason for item in found)
        raise UsageError(f"Refused because of --strict: {told} Change the picture or the size, or leave --strict out.")
    return replace(made, adjustments=(*made.adjustments, *found)) if found else made


def _cut(field: Field, own: tuple[int, int], wanted: tuple[int, int]) -> str:
    """What is cut off so that the picture fills the clip; empty for less than a pixel."""
    scale = max(wanted[0] / own[0], wanted[1] / own[1])
    for side, words, place in ((0, "columns", "left and right"), (1, "rows", "top and bottom")):
        over = own[side] - wanted[side] / scale
        if round(over) >= 1:
            lost = f"{round(over)} of its {own[side]} {words} are cut off at {place}"
            size = f"{wanted[0]}x{wanted[1]}"
            return f"The {TITLES[field]} has {own[0]}x{own[1]} pixels; {lost} so that it fills {size}."
    return ""


# -- in a clip's own file --


def as_png(image: Image.Image) -> bytes:
    """Lossless, with nothing but the pixels."""
    stream = io.BytesIO()
    image.save(stream, format="PNG")
    return stream.getvalue()


def to_metadata(pictures: Mapping[str, bytes]) -> dict[str, str]:
    """Pictures by field as a clip's metadata holds them."""
    return {field: base64.b64encode(data).decode("ascii") for field, data in pictures.items()}


def from_metadata(metadata: Mapping[str, object], where: str) -> dict[str, bytes]:
    """The pictures that a clip's metadata holds. Raises UsageError for what is no picture's content."""
    held = metadata.get("pictures")
    if not isinstance(held, Mapping):
        return {}
    found: dict[str, bytes] = {}
    for field in FIELDS:
        text = held.get(field)
        if text is None:
            continue
        try:
            found[field] = base64.b64decode(str(text), validate=True)
        except (binascii.Error, ValueError) as error:
            raise UsageError(f"{where}: the {TITLES[field]} in it is damaged; give the picture itself.") from error
    return found


__all__ = [
    "FIELDS",
    "FORMATS",
    "Field",
    "Picture",
    "adopt",
    "as_png",
    "fit",
    "fitted",
    "from_metadata",
    "keep",
    "kept_path",
    "opened",
    "read_picture",
    "to_metadata",
]
