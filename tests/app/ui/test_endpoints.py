"""Endpoints are given any JSON by anybody: what does not fit is one sentence, and no traceback in the server's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from gradio_client import handle_file
from hypothesis import given
from hypothesis import strategies as st

from app.strict_json import printable
from app.ui.endpoints import answering
from tests.app.drawn import saved
from tests.app.ui.serving import ROOT, Served

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def _taker(
    number: int, text: str, yes: bool, many: list[int], any_: dict[str, Any], none: dict[str, Any] | None
) -> str:
    kinds = (type(number), type(text), type(yes), type(many), type(any_))
    assert kinds == (int, str, bool, list, dict)
    assert all(type(one) is int for one in many)
    assert none is None or isinstance(none, dict)
    return text.encode().decode()


TAKER = answering(_taker)
GOOD: list[Any] = [1, "a", True, [1, 2], {"a": None}, None]


def test_what_fits_is_taken() -> None:
    assert TAKER(*GOOD) == "a"
    upload = {"path": "/x/a.json", "meta": {"_type": "gradio.FileData"}, "orig_name": "a.json"}
    assert TAKER(1, upload, True, [], {}, {}) == "/x/a.json"


@given(st.lists(JSON, min_size=6, max_size=6) | st.tuples(st.integers(0, 5), JSON).map(lambda it: _with(*it)))
def test_the_function_gets_what_its_hints_say_or_the_program_one_sentence(values: list[Any]) -> None:
    try:
        TAKER(*values)
    except gr.Error as error:
        assert error.message == printable(error.message)  # noqa: PT017
        assert len(error.message) < 300  # noqa: PT017
        assert not error.print_exception  # noqa: PT017


def _with(place: int, value: Any) -> list[Any]:
    return [*GOOD[:place], value, *GOOD[place + 1 :]]


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (0, True, "number: true is not possible; it must be a whole number."),
        (0, 1.5, "number: 1.5 is not possible; it must be a whole number."),
        (1, 5, "text: 5 is not possible; it must be text in double quotes."),
        (1, "\ud800", "text: the text holds half of a surrogate pair"),
        (2, 1, "yes: 1 is not possible; it must be true or false."),
        (3, ["x"], 'many: ["x"] is not possible; it must be a list, [...].'),
        (4, [], "any_: [] is not possible; it must be an object, {...}."),
        (5, "x", 'none: "x" is not possible; it must be an object, {...}, or left out.'),
    ],
)
def test_a_sentence_names_the_argument_and_what_is_possible(place: int, value: Any, says: str) -> None:
    with pytest.raises(gr.Error) as caught:
        TAKER(*_with(place, value))
    assert str(caught.value.message).startswith(says)


# -- the real server --


def call(served: Served, name: str, values: list[Any]) -> str:
    """What an endpoint answers, as the stream of events that Gradio makes of it."""
    status, told = served.ask(f"/gradio_api/call/{name}", json.dumps({"data": values}).encode(), Content_Type=TYPE)
    return served.ask(f"/gradio_api/call/{name}/{json.loads(told)['event_id']}")[1] if status == 200 else told


TYPE = "application/json"
RUBBISH: list[Any] = [
    None,
    2**70,
    {"path": "x", "url": "http://127.0.0.1:1/", "meta": {"_type": "gradio.FileData"}},
    "\ud800",
]


def test_rubbish_is_one_sentence_for_every_endpoint_and_leaves_no_traceback(served: Served) -> None:
    before = len(served.lines)
    about = json.loads(served.ask("/gradio_api/info")[1])["named_endpoints"]
    called = 0
    for name, told in about.items():
        wanted = len(told["parameters"])
        for rubbish in RUBBISH if wanted else []:
            answer = call(served, name.removeprefix("/"), [rubbish] * wanted)
            assert answer.startswith("event: error"), (name, rubbish, answer)
            assert str(Path.cwd()) not in answer
            called += 1
        answer = call(served, name.removeprefix("/"), []) if wanted else ""
        assert answer.startswith("event: error") or not wanted
    assert called > 80
    assert served.lines[before:] == []


def test_a_program_hands_files_over_as_its_client_does(served: Served, tmp_path: Path) -> None:
    before, client = len(served.lines), served.client()
    preset = ROOT / "presets" / "starter-rocket.json"
    found = client.predict(handle_file(str(preset)), api_name="/preset_import_file")
    assert found["title"] == json.loads(preset.read_text(encoding="utf-8"))["title"]
    (tmp_path / "My ball.png").write_bytes(saved())
    kept = client.predict(handle_file(str(tmp_path / "My ball.png")), "Mine.png", api_name="/picture_keep")
    assert (served.home / "pictures" / kept["name"]).read_bytes() == saved()
    with pytest.raises(Exception, match="neither one of the clips nor an upload"):
        client.predict(str(preset), api_name="/preset_import_file")
    assert served.lines[before:] == []
    assert served.ask(f"/gradio_api/file={next((served.home / 'cache/uploads').rglob('*.json'))}")[0] == 403


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/gradio_api/queue/join", {"data": [], "fn_index": -1, "session_hash": "a"}, 500),
        ("/gradio_api/queue/join", {"data": [], "fn_index": 9999, "session_hash": "a"}, 500),
        (
            "/gradio_api/component_server",
            {"data": 1, "component_id": 9999, "fn_name": "poll", "session_hash": "a"},
            500,
        ),
    ],
)
def test_what_gradio_stumbles_over_is_one_line_in_the_log(served: Served, path: str, body: Any, status: int) -> None:
    before = len(served.lines)
    found, told = served.ask(path, json.dumps(body).encode(), Content_Type=TYPE)
    assert (found, told) == (status, "Kinetile can't make sense of that; reload the page.\n")
    assert "Traceback" not in "".join(served.lines[before:])


def test_a_body_that_would_fill_the_memory_is_refused(served: Served) -> None:
    body = b'{"data":[' + b"[]," * 600_000 + b"1]}"
    assert served.ask("/gradio_api/call/models", body, Content_Type=TYPE)[0] == 413
