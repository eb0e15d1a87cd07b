"""Words for what a field takes come from the field itself, so they can't drift from the check."""

from __future__ import annotations

import pytest

from app.request import AccelPreferences, GenerationRequest, Lora
from app.strict_json import Document
from app.validation import allowed, check, nested, version_of


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kinetile", "1"),
        ("prompt", "text of at most 100,000 characters"),
        ("negative_prompt", "text of at most 100,000 characters, or left out"),
        ("steps", "a whole number from 1 to 1,000, or left out"),
        ("count", "a whole number from 1 to 1,000"),
        ("shift", "a number above 0 to 100, or left out"),
        ("image", "text in double quotes, or left out"),
        ("loras", "a list, [...], of at most 16 entries"),
        ("accel", "an object, {...}"),
    ],
)
def test_what_a_field_takes(name: str, words: str) -> None:
    assert allowed(GenerationRequest.model_fields[name]) == words


def test_nested_models_are_found_through_unions_and_lists() -> None:
    fields = GenerationRequest.model_fields
    assert nested(fields["loras"]) == (Lora, True)
    assert nested(fields["accel"]) == (AccelPreferences, False)
    assert nested(fields["steps"]) == (None, False)


def test_the_highest_version_counts() -> None:
    document = Document("x", {"kinetile": 1, "request": {"kinetile": 4}})
    assert version_of(document, (), ("request",)) == 4
    assert version_of(document, ("missing", "path")) == 1


def test_a_newer_part_checks_known_keys_still() -> None:
    lora, warnings = check(Lora, Document("x", {"name": "a", "hue": 3}), newer=True)
    assert lora == Lora(name="a")
    assert warnings == ("x, hue: this key comes from a newer Kinetile and has no effect here.",)
