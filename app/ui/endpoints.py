"""Endpoints for programs: typed arguments, plain data, and errors as the sentence itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gradio as gr

from app.errors import KinetileError


def add_endpoints(*functions: Callable[..., Any]) -> None:
    """Make each function an endpoint of the page that is being built, under its own name and docstring."""
    for function in functions:
        gr.api(_answering(function), api_name=function.__name__, api_description=_description(function))


def _answering(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def answering(*values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except KinetileError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return answering


def _description(function: Callable[..., Any]) -> str:
    return " ".join((function.__doc__ or "").split())
