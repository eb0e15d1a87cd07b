"""Frozen dataclasses to plain JSON data and back, driven by their type hints alone.

Small on purpose: dataclasses, tuples, dicts with text keys, unions with None, Literals and scalars. Unknown keys are
ignored so that a plan written by a newer version can still be read; a missing or unfit value names its dotted path.
"""

from __future__ import annotations

import dataclasses
import reprlib
import types
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def shown(value: Any) -> str:
    """`value` for a message, cut to a readable length whatever it is."""
    return _SHORT.repr(value)


def encode(value: Any) -> Any:
    """`value` as dicts, lists and scalars."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: encode(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def decode(kind: type[T], data: Any, path: str = "") -> T:
    """An instance of `kind` from `encode`'s output. Raises ValueError naming the dotted path, the value and what was
    expected."""
    return _decode(kind, data, path or kind.__name__)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode(kind: Any, data: Any, path: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, data, path)
    origin = get_origin(kind)
    if origin is tuple:
        return tuple(
            _decode(get_args(kind)[0], item, f"{path}[{i}]") for i, item in enumerate(_expect(list, data, path))
        )
    if origin is dict:
        inner = get_args(kind)[1]
        return {key: _decode(inner, item, f"{path}.{key}") for key, item in _expect(dict, data, path).items()}
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), data, path)
    if origin is Literal:
        if data not in get_args(kind):
            raise ValueError(f"{path} is {shown(data)}; allowed: {', '.join(map(str, get_args(kind)))}")
        return data
    if kind is float:
        return float(_expect((int, float), data, path))
    return _expect(kind, data, path) if isinstance(kind, type) else data


def _decode_dataclass(kind: type, data: Any, path: str) -> Any:
    _expect(dict, data, path)
    hints, values = _hints(kind), {}
    for item in dataclasses.fields(kind):
        if item.name in data:
            values[item.name] = _decode(hints[item.name], data[item.name], f"{path}.{item.name}")
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ValueError(f"{path}.{item.name} is missing")
    return kind(**values)


def _decode_union(kinds: tuple[Any, ...], data: Any, path: str) -> Any:
    for kind in kinds:
        # exact types, since True is also an int
        if kind is type(data) or (kind is type(None) and data is None):
            return data
    errors = []
    for kind in kinds:
        try:
            return _decode(kind, data, path)
        except ValueError as error:
            errors.append(str(error))
    raise ValueError(
        errors[0] if len(errors) == 1 else f"{path} is {shown(data)}, which fits none of {len(kinds)} types"
    )


def _expect(kind: Any, data: Any, path: str) -> Any:
    wrong_bool = isinstance(data, bool) and kind is not bool
    if wrong_bool or not isinstance(data, kind):
        name = " or ".join(k.__name__ for k in kind) if isinstance(kind, tuple) else kind.__name__
        raise ValueError(f"{path} is {shown(data)}, expected {name}")
    return data
