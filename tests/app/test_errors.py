"""The error tree is a contract: the exit codes that scripts rely on."""

from __future__ import annotations

import pytest

from app import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.KinetileError, 1),
        (errors.UsageError, 2),
        (errors.CannotRunError, 3),
        (errors.PlanRefusedError, 3),
        (errors.JobFailedError, 1),
        (errors.Cancelled, 130),
    ],
)
def test_exit_codes(kind: type[errors.KinetileError], code: int) -> None:
    error = kind("one sentence")
    assert isinstance(error, errors.KinetileError)
    assert error.exit_code == code
    assert str(error) == "one sentence"
