"""Endpoints for programs: typed arguments, plain data, and errors as the sentence itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import gradio as gr
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from app.errors import KinetileError, UsageError
from app.paths import is_text
from app.strict_json import short
from app.validation import BROKEN_TEXT, allowed

_STRICT = ConfigDict(strict=True)


def add_endpoints(*functions: Callable[..., Any]) -> None:
    """Make each function an endpoint of the page that is being built, under its own name and docstring."""
    for function in functions:
        gr.api(answering(function), api_name=function.__name__, api_description=_description(function))


def answering(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called with what a program sent: any JSON. Its errors are gr.Error with their sentence."""
    signature, hints = inspect.signature(function), get_type_hints(function)
    adapters = {name: TypeAdapter(hints[name], config=_STRICT) for name in signature.parameters}

    @functools.wraps(function)
    def answer(*values: Any, **named: Any) -> Any:
        try:
            given = signature.bind(*values, **named).arguments
            return function(**{name: _taken(name, given[name], hints[name], adapters[name]) for name in given})
        except KinetileError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return answer


def _taken(name: str, value: Any, hint: Any, adapter: TypeAdapter[Any]) -> Any:
    """An argument as the function's type hints say. Raises UsageError."""
    if hint is str and _is_file(value):
        value = value["path"]
    if isinstance(value, str) and not is_text(value):
        raise UsageError(f"{name}: {BROKEN_TEXT}")
    try:
        return adapter.validate_python(value)
    except ValidationError:
        wanted = allowed(FieldInfo.from_annotation(hint))
        raise UsageError(f"{name}: {short(value)} is not possible; it must be {wanted}.") from None


def _is_file(value: Any) -> bool:
    """Whether this is an upload as gradio_client's `handle_file` sends it."""
    return isinstance(value, Mapping) and isinstance(value.get("path"), str) and isinstance(value.get("meta"), Mapping)


def _description(function: Callable[..., Any]) -> str:
    return " ".join((function.__doc__ or "").split())
