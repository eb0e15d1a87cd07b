"""Whether a model's folder is whole, told file by file, without reading any weights.

An interrupted download leaves a folder that looks like a model. A safetensors file begins with a table of where its
tensors lie, so a file that was cut short is known by its size alone.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app.models.sources.choosing import INDEX, components_in, has_weights, is_pickle
from app.video.outputs import size_text

MAX_HEADER = 100_000_000
"""Bytes that the table at the beginning of a safetensors file may have, as its own library allows."""

_NO_WEIGHTS = " has no safetensors weights"

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
            found.append((path.relative_to(folder).as_posix(), seen.st_size, seen.st_mtime_ns))
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
    here = {name: size for name, size, _ in seen}
    told = list(_look(Path(folder), here))
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
        components = components_in(json.loads((folder / INDEX).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        yield f"{INDEX} can't be read ({error})"
        return
    if not components:
        yield f"{INDEX} names no components"
    for component, (_, kind) in components.items():
        inside = {name: size for name, size in here.items() if name.startswith(f"{component}/")}
        yield from _look_at(folder, component, kind, inside)


def _look_at(folder: Path, component: str, kind: str, inside: Mapping[str, int]) -> Iterator[str]:
    """One component: its settings, and all the weights that it says it has."""
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
            listed = json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values()
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            yield f"{index} can't be read"
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
    with file.open("rb") as opened:
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
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("its table is none") from error
    if not isinstance(found, dict):
        raise ValueError("its table is none")
    return found


def size_by_header(file: Path) -> int:
    """Bytes that a safetensors file has when it is whole. Raises OSError, ValueError."""
    header = header_of(file)
    try:
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError("its table is none") from error
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
    return int(8 + length + max(ends, default=0))


def tensors_in(file: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a safetensors file. Raises OSError, ValueError."""
    try:
        return {
            name: tuple(int(side) for side in entry["shape"])
            for name, entry in header_of(file).items()
            if name != "__metadata__"
        }
    except (KeyError, TypeError) as error:
        raise ValueError("its table is none") from error


def numbers_in(tensors: Mapping[str, tuple[int, ...]]) -> int:
    """How many numbers tensors of these shapes hold together."""
    return sum(math.prod(shape) for shape in tensors.values())
