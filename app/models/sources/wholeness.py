"""Whether a model's folder is whole, told file by file, without reading any weights.

An interrupted download leaves a folder that looks like a model. A safetensors file begins with a table of where its
tensors lie, so a file that was cut short is known by its size alone.
"""

from __future__ import annotations

import functools
import math
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from accel.reading import open_file, parse_json, read_json
from app.models.sources.choosing import INDEX, components_in, has_weights, is_pickle
from app.strict_json import short
from app.video.outputs import size_text

MAX_HEADER = 100_000_000
"""Bytes that the table at the beginning of a safetensors file may have, as its own library allows."""

MAX_SIDES = 8
MAX_SIDE = 2**63 - 1
_NO_WEIGHTS = " has no safetensors weights"
_NO_FILE = -2
"""In the place of its size: a pipe, a socket or a device, which a reader would wait for."""
_NAME = re.compile(r"[^\W/\\][\w.-]{0,99}")
"""What a part of a model is called: a folder or a file in the model's own, so that an index leads nowhere else."""

Signature = tuple[tuple[str, int, int], ...]


def problems_in(folder: Path, sizes: Mapping[str, int] | None = None) -> tuple[str, ...]:
    """What is missing or broken in a model's folder (diffusers layout), one phrase a file; empty when it is whole.

    ``sizes``: bytes that files must have, by their names relative to the folder, where a hub's listing is known.
    """
    return _problems(str(folder), signature(folder), tuple(sorted((sizes or {}).items())))


def signature(folder: Path) -> Signature:
    """Another value once a file of the model came, went or changed; looks at the names, sizes and times only.

    ``folder`` may also be a single file.
    """
    found = []
    files = (*_files(folder), *(file for part in _folders(folder) for file in _files(part)))
    for path in files or (folder,):
        try:
            seen = path.stat()
            size = seen.st_size if stat.S_ISREG(seen.st_mode) else _NO_FILE
            found.append((path.relative_to(folder).as_posix(), size, seen.st_mtime_ns))
        except OSError:  # a link to something that is gone
            found.append((path.relative_to(folder).as_posix(), -1, 0))
    return tuple(sorted(found))


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.is_dir()]
    except OSError:
        return []


@functools.lru_cache(maxsize=64)
def _problems(folder: str, seen: Signature, sizes: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    here = {name: size for name, size, _ in seen if name != "."}  # "." is the folder itself, if it is none
    told = [f"{name} is no file" for name, size in here.items() if size == _NO_FILE]
    told = told or list(_look(Path(folder), here))
    for name, size in sizes:
        have = here.get(name, -1)
        if have != size and not any(one.startswith(f"{name} ") for one in told):
            told.append(
                f"{name} is missing" if have < 0 else f"{name} has {size_text(have)} instead of {size_text(size)}"
            )
    listed = {name.partition("/")[0] for name, _ in sizes}
    # what is listed was told file by file
    return tuple(
        dict.fromkeys(
            one for one in told if not (one.endswith((" is empty", _NO_WEIGHTS)) and one.split()[0] in listed)
        )
    )


def _look(folder: Path, here: Mapping[str, int]) -> Iterator[str]:
    if here.get(INDEX, -1) < 0:
        yield f"{INDEX} is missing"
        return
    try:
        components = components_in(read_json(folder / INDEX))
    except (OSError, ValueError) as error:
        yield f"{INDEX} can't be read ({error})"
        return
    if not components:
        yield f"{INDEX} names no components"
    for component, (_, kind) in components.items():
        if not _NAME.fullmatch(component):
            yield f"{INDEX} names a part {short(component)}, which is no folder in it"
            continue
        inside = {name: size for name, size in here.items() if name.startswith(f"{component}/")}
        yield from _look_at(folder, component, kind, inside)


def _look_at(folder: Path, component: str, kind: str, inside: Mapping[str, int]) -> Iterator[str]:
    """One component: its settings, and all the weights that it says it has."""
    for name, size in sorted(inside.items()):
        if name.endswith("config.json") and size > 0 and not _holds_settings(folder / name):
            yield f"{name} can't be read"
    if not has_weights(kind):
        if not any(size > 0 for size in inside.values()):
            yield f"{component} is empty"
        return
    if inside.get(f"{component}/config.json", -1) <= 0:
        yield f"{component}/config.json is missing"
    indices = [name for name in inside if name.endswith(".safetensors.index.json")]
    weights = [name for name in inside if name.endswith(".safetensors")]
    for index in indices:
        try:
            listed = set(read_json(folder / index)["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            yield f"{index} can't be read"
            continue
        if stray := [name for name in listed if not (isinstance(name, str) and _NAME.fullmatch(name))]:
            yield f"{index} names {short(stray[0])}, which is no file beside it"
            continue
        shards = {f"{component}/{name}" for name in listed}
        if indices == [index]:
            weights += sorted(shards - set(weights))
    if not weights:
        pickles = sorted(name for name in inside if is_pickle(name))
        yield (
            f"{pickles[0]} is pickled, which can run code when it is loaded; only safetensors are read"
            if pickles
            else f"{component}{_NO_WEIGHTS}"
        )
    for name in weights:
        if (told := weights_problem(folder / name)) is not None:
            yield f"{name} {told}"


def _holds_settings(file: Path) -> bool:
    try:
        return isinstance(read_json(file, finite=False), dict)  # a scheduler may say -Infinity
    except (OSError, ValueError):
        return False


def weights_problem(file: Path) -> str | None:
    """What is wrong with a safetensors file ("is missing"), None when it is as long as its own table says."""
    try:
        size = file.stat().st_size
    except OSError:
        return "is missing"
    try:
        expected = size_by_header(file)
    except (OSError, ValueError) as error:
        return "is empty" if size == 0 else f"can't be read ({error})"
    if size != expected:
        return f"is cut short ({size_text(size)} of {size_text(expected)})" if size < expected else "is too long"
    return None


def header_of(file: Path) -> dict[str, Any]:
    """The table of a safetensors file: {tensor: {"dtype", "shape", "data_offsets"}}. Raises OSError, ValueError."""
    return _header(file)[0]


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The table, and where it ends in the file."""
    with open_file(file) as opened:
        start = opened.read(8)
        if len(start) < 8:
            raise ValueError("it is no safetensors file")
        (length,) = struct.unpack("<Q", start)
        if not 2 <= length <= MAX_HEADER:
            raise ValueError("it is no safetensors file")
        text = opened.read(length)
    if len(text) < length:
        raise ValueError("it ends inside its table")
    try:
        found = parse_json(text)
    except ValueError as error:
        raise ValueError("its table is none") from error
    if not isinstance(found, dict):
        raise ValueError("its table is none")
    return found, 8 + length


def size_by_header(file: Path) -> int:
    """Bytes that a safetensors file has when it is whole. Raises OSError, ValueError."""
    header, start = _header(file)
    ends = [_numbers(entry, "data_offsets", 2) for name, entry in header.items() if name != "__metadata__"]
    return start + max((end for _, end in ends), default=0)


def tensors_in(file: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a safetensors file. Raises OSError, ValueError."""
    header = header_of(file)
    return {name: _numbers(entry, "shape") for name, entry in header.items() if name != "__metadata__"}


def _numbers(entry: Any, key: str, count: int | None = None) -> tuple[int, ...]:
    """The whole numbers under a key of a tensor's entry, as many as said. Raises ValueError for anything else."""
    found = entry.get(key) if isinstance(entry, dict) else None
    numbers: list[Any] = found if isinstance(found, list) else [None]
    fits = len(numbers) <= MAX_SIDES if count is None else len(numbers) == count
    if not fits or not all(type(one) is int and 0 <= one <= MAX_SIDE for one in numbers):
        raise ValueError("its table is none")
    return tuple(numbers)


def numbers_in(tensors: Mapping[str, tuple[int, ...]]) -> int:
    """How many numbers tensors of these shapes hold together. Raises ValueError for more than any file could."""
    total = sum(math.prod(shape) for shape in tensors.values())
    if total > MAX_SIDE:
        raise ValueError("its table is none")
    return total
