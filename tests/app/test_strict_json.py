"""Strict, bounded JSON whose errors say where (CASES 25)."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import strict_json
from app.errors import UsageError
from app.strict_json import dumps, parse, printable, short

numbers = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(values, st.sampled_from([None, 2]), st.booleans())
def test_reads_what_json_writes(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert parse(text, "x").value == value
    assert parse(text.encode("utf-8"), "x").value == value
    assert parse(dumps(value, indent=indent), "x").value == value


@given(st.text(alphabet='{}[]":,0123456789.eE+-truefalsn \n\\u/é', max_size=40))
def test_accepts_nothing_that_the_standard_reader_refuses(text: str) -> None:
    """And where both accept, they agree; where only ours refuses, it is for one of its own rules."""
    try:
        expected: Any = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        expected = strict_json
    try:
        found = parse(text, "x").value
    except UsageError as error:
        said = str(error)
    else:
        assert found == expected
        return
    assert expected is strict_json or any(word in said for word in ("second time", "too large", "surrogate"))


def _refuse(word: str) -> None:
    raise ValueError(word)


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_usage_error(data: bytes) -> None:
    said = "x"
    try:
        parse(data, "x")
    except UsageError as error:
        said = str(error)
    assert said.startswith("x")


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ('{\n  "steps": 5,\n}', "line 3, column 1", "remove the comma"),
        ("[1,\n 2,]", "line 2, column 4", "remove the comma"),
        ('{"a": NaN}', "line 1, column 7", "not-a-number"),
        ('{"a": -Infinity}', "line 1, column 7", "infinity"),
        ('{"a": 1e999}', "line 1, column 7", "too large"),
        ('{"a": 1,\n "a": 2}', "line 2, column 2", "second time"),
        ("{'a': 1}", "line 1, column 2", "double quotes"),
        ('{"a" 1}', "line 1, column 6", '":"'),
        ('{"a": 1 "b": 2}', "line 1, column 9", '","'),
        ('{"a": 1', "line 1, column 8", "the end of the file"),
        ('{"a": True}', "line 1, column 7", "true in small letters"),
        ('{"a": None}', "line 1, column 7", "write null"),
        ('{"a": 007}', "line 1, column 7", "neither a number"),
        ('{"a": .5}', "line 1, column 7", "neither a number"),
        ('{"a": 0x1F}', "line 1, column 7", "neither a number"),
        ('{"a": +5}', "line 1, column 7", "neither a number"),
        ('{"a": hello}', "line 1, column 7", "double quotes"),
        ('// hi\n{"a": 1}', "line 1, column 1", "a comment (JSON has none)"),
        ('{"a": "x}', "line 1, column 7", "no closing double quote"),
        ('{"a": "x\ny"}', "line 1, column 9", "line break"),
        ('{"a": "C:\\temp\\q"}', "line 1, column 15", "escape"),
        ('{"a": "\\ud800"}', "line 1, column 7", "surrogate"),
        ('{"a": 1} {"b": 2}', "line 1, column 10", "after the end"),
        ("", "line 1, column 1", "nothing here"),
        (" \n ", "line 2, column 2", "nothing here"),
        ('{"a": ' + "9" * 65 + "}", "line 1, column 7", "65 characters"),
        ("[" * 33, "line 1, column 33", "deeper than 32"),
        ("[" * 1_000_000, "line 1, column 33", "deeper than 32"),
        ("[" + "1," * 100_001 + "1]", "line 1, column", "more than 100,000 values"),
    ],
)
def test_slips_are_named_with_line_and_column(text: str, place: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, "mine.json")
    assert str(caught.value).startswith(f"mine.json, {place}")
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_source_that_says_the_line_gets_only_the_column() -> None:
    with pytest.raises(UsageError, match=r"^batch\.jsonl:7, column 6: "):
        parse('{"a":}', "batch.jsonl:7", one_line=True)


def test_encodings() -> None:
    assert parse(b'\xef\xbb\xbf{"a": "\xc3\xa9"}', "x").value == {"a": "é"}
    with pytest.raises(UsageError, match="UTF-16"):
        parse('{"a": 1}'.encode("utf-16"), "x")
    with pytest.raises(UsageError, match="line 2: byte 10 is not UTF-8"):
        parse(b'{"a": 1,\n\xe9', "x")


def test_size_is_capped() -> None:
    parse('"' + "x" * 98 + '"', "x", limit=100)
    with pytest.raises(UsageError, match="101 bytes is too long; at most 100"):
        parse('"' + "x" * 99 + '"', "x", limit=100)


def test_places_are_remembered() -> None:
    document = parse('{\n"a": [1,\n{"b": 2}],\n"c": 3}', "x")
    assert document.place(("a", 1, "b")) == "x, line 3, column 7"
    assert document.place(("c",)) == "x, line 4, column 6"
    assert document.place(("a", 1, "unknown", 9)) == "x, line 3, column 1"


@given(values | st.just(list(range(1000))) | st.just("\ud800") | st.just({"\x7f\x9b2J": "\u202e"}))
def test_short_is_short_and_printable(value: Any) -> None:
    text = short(value)
    assert len(text) <= 60
    text.encode("utf-8")
    assert printable(text) == text


def test_dumps_refuses_nan() -> None:
    with pytest.raises(ValueError):
        dumps({"a": math.nan})
