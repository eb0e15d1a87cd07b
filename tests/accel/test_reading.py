"""Files from strangers: what an honest program wrote is read as it stands, anything else ends at once in one error."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel.reading import MAX_DEPTH, MAX_VALUES, parse_json, read_file, read_json

NUMBERS = st.integers(-(10**60), 10**60) | st.floats(allow_nan=False, allow_infinity=False)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.booleans())
def test_what_a_program_wrote_is_read_as_it_stands(value: Any, escaped: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=escaped).encode()) == value


@given(st.binary(max_size=200) | st.text('[]{}",:0123456789eE.-+aInfityNulrs\\ ', max_size=60).map(str.encode))
def test_any_bytes_are_a_value_or_one_error(text: bytes) -> None:
    try:
        value = parse_json(text)
    except ValueError:
        return
    assert json.loads(json.dumps(value, allow_nan=False)) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"NaN", "NaN is no number"),
        (b"[-Infinity]", "-Infinity is no number"),
        (b"1e999", "1e999 is no number"),
        (b"9" * 65, "is no number"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "deeper than 32"),
        (b"[" * 500_000, "deeper than 32"),
        (b'{"a":' * 500_000, "deeper than 32"),
        (b"[" + b"[]," * (MAX_VALUES // 2) + b"[]]", "more than 1,000,000 values"),
        (b'"\\ud800"', "surrogates not allowed"),
        (b'{"\\ud800": 1}', "surrogates not allowed"),
        (b"\xff", "utf-8"),
        (b"", "Expecting value"),
    ],
)
def test_what_no_honest_program_writes_is_refused(text: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_json(text)


def test_figures_that_are_no_numbers_are_read_where_they_may_be() -> None:
    assert str(parse_json(b"[NaN, 1e999, -Infinity]", finite=False)) == "[nan, inf, -inf]"


def test_a_file_of_two_gigabytes_is_refused_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(2 * 1024**3)
    with pytest.raises(ValueError, match="more than 16,777,216 bytes"):
        read_json(path)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_file(path, 10)


@pytest.mark.skipif(os.name == "nt", reason="Windows has none of these in a folder")
@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "folder", "circle"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            monkeypatch.chdir(tmp_path)  # the path of a socket may have some hundred bytes only
            listening.bind("x.json")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "circle" else "/dev/zero")
    with pytest.raises(OSError, match="symbolic links" if kind == "circle" else "it is not a file"):
        read_file(path, 10)
