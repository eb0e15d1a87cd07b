"""From pydantic's verdict to one sentence: which key, which value, what is allowed.

Unknown keys are found here and not by pydantic, because a file of a newer Kinetile keeps them (with a warning), while
ours refuses them and names the nearest known key.
"""

from __future__ import annotations

import difflib
import itertools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from app.errors import UsageError, refuse_all
from app.strict_json import Document, Keys, dotted, printable, short

VERSION = 1
"""The version of requests and presets that this Kinetile writes."""

BROKEN_TEXT = "the text holds half of a surrogate pair or a byte that is not UTF-8; write the character itself."

OR_NOTHING = ", or left out"
"""How `allowed` ends for a field that may be null."""

MAX_UNKNOWN = 100
"""Most unknown keys that a file of a newer version may have, and most list entries looked through for them."""

MAX_MISTAKES = 100
"""Most mistakes of one document that are told: a small file can have a hundred thousand."""

Model = TypeVar("Model", bound=BaseModel)


def check(
    model: type[Model], document: Document, base: Keys = (), newer: bool = False
) -> tuple[Model, tuple[str, ...]]:
    """The part of ``document`` at ``base`` as a ``model``, and warnings (only ever for a ``newer`` file).

    Raises UsageError naming source, line, dotted path, value and what is allowed, for every mistake.
    """
    value = document.value
    for part in base:
        value = value.get(part) if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping):
        raise UsageError(f"{_where(document, base)}: {short(value)} must be an object, {{…}}.")
    unknown = list(itertools.islice(_unknown(model, value), MAX_UNKNOWN + 1))
    wrong: dict[Keys, list[str] | ErrorDetails] = {}
    if not newer or len(unknown) > MAX_UNKNOWN:
        wrong |= dict(unknown)
    warnings = tuple(
        f"{_where(document, base + path, key=True)}: this key comes from a newer Kinetile and has no effect here."
        for path, _ in unknown
    )
    try:
        found = model.model_validate(_without(value, [path for path, _ in unknown]))
    except ValidationError as error:
        wrong |= {tuple(one["loc"]): one for one in error.errors(include_url=False)}
    except (OverflowError, RecursionError) as error:
        raise UsageError(f"{_where(document, base)}: a value is too large.") from error
    if wrong:
        _refuse(model, document, base, wrong, " The file was written by a newer Kinetile." if newer else "")
    return found, warnings


def _refuse(
    model: type[Model], document: Document, base: Keys, wrong: Mapping[Keys, list[str] | ErrorDetails], hint: str
) -> None:
    """Raise UsageError for what is wrong, in the order of the text: by path the known names, or pydantic's verdict."""
    refused = []
    for path in sorted(wrong, key=lambda path: document.offsets.get(base + path, 0))[:MAX_MISTAKES]:
        verdict = wrong[path]
        if isinstance(verdict, list):
            where = _where(document, base + path, key=True)
            refused.append(UsageError(f"{where}: {_unknown_sentence(path[-1], verdict)}"))
        else:
            refused.append(UsageError(_sentence(model, document, base, verdict) + hint))
    if len(wrong) > MAX_MISTAKES:
        refused.append(UsageError(f"{document.source}: more than {MAX_MISTAKES} mistakes; the others are not told."))
    refuse_all(refused)


def version_of(document: Document, *paths: Keys) -> int:
    """The highest "kinetile" version among the objects at ``paths`` (1 where none is given).

    Raises UsageError for a version that is not a whole number from 1.
    """
    version = VERSION
    for path in paths:
        value = document.value
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if not isinstance(value, Mapping) or "kinetile" not in value:
            continue
        found = value["kinetile"]
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            place = _where(document, (*path, "kinetile"))
            raise UsageError(f"{place}: {short(found)} is not a version; this Kinetile writes {VERSION}.")
        version = max(version, found)
    return version


def allowed(info: FieldInfo) -> str:
    """What a field takes, in words, derived from its type and bounds: "a whole number from 1 to 1,000"."""
    bounds = {type(item).__name__: item for item in info.metadata}
    low = getattr(bounds.get("Ge") or bounds.get("Gt"), "ge", getattr(bounds.get("Gt"), "gt", None))
    high = getattr(bounds.get("Le"), "le", None)
    longest = getattr(bounds.get("MaxLen"), "max_length", None)
    kinds = [kind for kind in _members(info.annotation) if kind is not type(None)]
    kind = typing.get_origin(kinds[0]) or kinds[0]
    if kind in (int, float):
        text = "a whole number" if kind is int else "a number"
        over = "above" if "Gt" in bounds else "from"
        text += f" {over} {low:,}" if low is not None else ""
        text += f" to {high:,}" if high is not None else ""
    elif kind is str:
        text = f"text of at most {longest:,} characters" if longest else "text in double quotes"
    elif kind is bool:
        text = "true or false"
    elif kind is typing.Literal:
        text = " or ".join(short(choice) for choice in typing.get_args(kinds[0]))
    elif kind in (tuple, list):
        text = f"a list, [...], of at most {longest} entries" if longest else "a list, [...]"
    else:
        text = "an object, {...}"
    return text + (OR_NOTHING if len(kinds) < len(_members(info.annotation)) else "")


def nested(info: FieldInfo) -> tuple[type[BaseModel] | None, bool]:
    """The model inside a field, and whether the field is a list of them."""
    for kind in _members(info.annotation):
        # The entries of a list may be wrapped once more: tuple[Annotated[Lora, …], ...]
        entries = [arg for entry in typing.get_args(kind) for arg in (entry, *typing.get_args(entry)[:1])]
        inner = [arg for arg in entries if isinstance(arg, type) and issubclass(arg, BaseModel)]
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind, False
        if inner:
            return inner[0], True
    return None, False


def _members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, each without what Annotated adds to it."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if union else (annotation,)
    return tuple(kind.__origin__ if typing.get_origin(kind) is typing.Annotated else kind for kind in kinds)


def _unknown(model: type[BaseModel], value: Mapping[Any, Any]) -> Iterator[tuple[Keys, list[str]]]:
    """Each unknown key below ``value`` with the names known beside it."""
    for key, item in value.items():
        info = model.model_fields.get(key) if isinstance(key, str) else None
        if info is None:
            yield (key if isinstance(key, str) else str(key),), list(model.model_fields)
            continue
        inner, many = nested(info)
        if inner is None:
            continue
        entries = enumerate(item[:MAX_UNKNOWN]) if many and isinstance(item, (list, tuple)) else [(-1, item)]
        for index, entry in entries:
            if isinstance(entry, Mapping):
                step: Keys = (key, index) if many else (key,)
                for path, siblings in _unknown(inner, entry):
                    yield step + path, siblings


def _without(value: Any, paths: list[Keys]) -> Any:
    """A copy of ``value`` without the given paths."""
    if not paths:
        return value
    here = {path[0] for path in paths if len(path) == 1}

    def below(key: str | int) -> list[Keys]:
        return [path[1:] for path in paths if path[0] == key and len(path) > 1]

    if isinstance(value, Mapping):
        return {key: _without(item, below(key)) for key, item in value.items() if str(key) not in here}
    return [_without(item, below(index)) for index, item in enumerate(value)]


def _where(document: Document, path: Keys, key: bool = False) -> str:
    name, place = dotted(path), document.place(path, key)
    return f"{place}, {short_name(name)}" if name else place


def short_name(name: str) -> str:
    """A dotted path for a message, cut to a readable length and without control characters."""
    clean = printable(name[:200])
    return clean if len(clean) <= 80 else clean[:79] + "…"


def _unknown_sentence(key: str | int, siblings: list[str]) -> str:
    near = difflib.get_close_matches(str(key)[:100].lower(), siblings)
    told = " or ".join(f'"{name}"' for name in near) if near else ", ".join(siblings)
    return f"there is no such key: did you mean {told}?" if near else f"there is no such key: possible are {told}."


def _sentence(model: type[BaseModel], document: Document, base: Keys, error: ErrorDetails) -> str:
    path = tuple(error["loc"])
    info = _field(model, path)
    place = _where(document, base + path)
    if error["type"].startswith("kinetile"):
        text = error["msg"]
    elif error["type"] == "string_unicode":
        text = BROKEN_TEXT
    elif error["type"] == "missing":
        text = f"this key is missing; add it ({allowed(info) if info else 'see the shipped presets'})."
    else:
        wanted = allowed(info) if info else "another value"
        if info and path and isinstance(path[-1], int) and nested(info)[1]:
            wanted = "an object, {...}"
        text = f"{short(error['input'])} is not possible; it must be {wanted}."
    return f"{place}: {text}"


def _field(model: type[BaseModel], path: Keys) -> FieldInfo | None:
    """The field at ``path``; for an entry of a list of plain values, the list's field."""
    info: FieldInfo | None = None
    current: type[BaseModel] | None = model
    for part in path:
        if isinstance(part, str) and current is not None and part in current.model_fields:
            info = current.model_fields[part]
            current = nested(info)[0]
    return info
