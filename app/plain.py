"""Values of this app as plain data and back, for the database, the pipe to the worker and the socket between processes.

Driven by type hints: dataclasses, pydantic models, paths, tuples. Nothing is ever unpickled.
"""

from __future__ import annotations

import functools
from typing import Any

from pydantic import TypeAdapter


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _of(value: Any, kind: Any) -> TypeAdapter[Any]:
    found: Any = type(value) if kind is None else kind
    return _adapter(found)


def to_json(value: Any, kind: Any = None) -> str:
    """`value` as JSON text; `kind` is its type where the value alone does not tell it."""
    return _of(value, kind).dump_json(value).decode()


def from_json(kind: Any, text: str | bytes) -> Any:
    """The value of type `kind` that `to_json` wrote. Raises ValueError when the text is no such value."""
    return _adapter(kind).validate_json(text)


def to_data(value: Any, kind: Any = None) -> Any:
    """`value` as dicts, lists and scalars."""
    return _of(value, kind).dump_python(value, mode="json")


def from_data(kind: Any, data: Any) -> Any:
    """The value of type `kind` that `to_data` described. Raises ValueError when the data is no such value."""
    return _adapter(kind).validate_python(data)
