"""Ports, passwords, and an end without loss."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from app.errors import CannotRunError, UsageError
from app.paths import Home
from app.ui.server import (
    FIRST_PORT,
    PUT_BACK,
    OpenPage,
    PageSettings,
    _launch,
    _port,
    _until_ended,
    _uploads,
    serve,
    settings_of,
)
from tests.app.services import until
from tests.app.ui.serving import ROOT, Served, free_port, serving

HOME = Home(Path("nowhere"))


def wish(port: int | None = None, listen: bool = False, auth: str | None = None, no_auth: bool = False) -> PageSettings:
    return settings_of(HOME, port, False, listen, auth, no_auth)


def test_listening_needs_a_password_or_the_word_that_there_is_none() -> None:
    """Case 42: refused before anything opens."""
    with pytest.raises(UsageError, match="--auth USER:PASSWORD, or --no-auth"):
        wish(listen=True)
    assert wish(listen=True, auth="ada:love:lace").auth == ("ada", "love:lace")
    assert wish(listen=True, no_auth=True).auth is None


def test_only_this_machine_can_connect_unless_others_are_let_in() -> None:
    """Case 42: which address the page is opened on."""
    page = Mock()
    for settings, address in ((wish(), "127.0.0.1"), (wish(listen=True, no_auth=True), "0.0.0.0")):
        _launch(page, settings, {})
        assert page.launch.call_args.kwargs["server_name"] == address
        assert page.launch.call_args.kwargs["share"] is False


@pytest.mark.parametrize("auth", ["", "ada", "ada:", ":lovelace", " :x"])
def test_a_password_has_a_user(auth: str) -> None:
    with pytest.raises(UsageError, match="for example --auth ada:lovelace"):
        wish(auth=auth)


def test_a_taken_port_is_said_when_asked_for_and_passed_over_otherwise() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(CannotRunError, match=f"Port {taken} is taken"):
            _port(wish(taken))
    assert _port(wish()) >= FIRST_PORT


def test_a_port_that_another_program_took_last_is_said_in_one_sentence() -> None:
    page = Mock()
    page.launch.side_effect = OSError("Cannot find empty port in range: 7999-7999.\nYou can specify another.")
    with pytest.raises(CannotRunError, match="can't be opened on port") as said:
        _launch(page, wish(free_port()), {})
    assert "\n" not in str(said.value)


def test_the_port_is_chosen_when_the_page_is_launched() -> None:
    """Another program took the first port while the queue was opened."""
    page = Mock()
    early = _port(wish())
    with socket.socket() as other:
        other.bind(("127.0.0.1", early))
        other.listen()
        late = _launch(page, wish(), {})
    assert late != early
    assert page.launch.call_args.kwargs["server_port"] == late


def test_waiting_ends_with_a_signal_wherever_it_can_only_come_between_two_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float | None] = []

    def wait(timeout: float | None = None) -> bool:
        waits.append(timeout)
        if len(waits) == 3:
            raise KeyboardInterrupt
        return False

    monkeypatch.setattr("app.ui.server.threading", Mock(Event=lambda: Mock(wait=wait)))
    with pytest.raises(KeyboardInterrupt):
        _until_ended()
    assert waits == [0.5] * 3


def test_the_page_asks_for_the_password_and_ends_cleanly(tmp_path: Path) -> None:
    with serving(tmp_path, "--auth", "ada:lovelace") as page:
        assert page.ask("/config")[0] == 401
        assert page.ask("/gradio_api/info")[0] == 401
        assert page.ask(f"/gradio_api/file={page.outputs}/x.png")[0] == 401
        with pytest.raises(Exception, match=r"(?i)credentials|auth|login|401"):
            page.client().predict(api_name="/models")
        assert page.client(auth=("ada", "lovelace")).predict(api_name="/models")[0]["name"] == "starter"
        assert page.end() == 0
        assert page.lines[-1].strip() == "Closing."


def test_uploads_of_runs_that_are_over_go_at_the_start(tmp_path: Path) -> None:
    """Case 34: those of a page that is open stay."""
    home = Home(tmp_path)
    (first := _uploads(home)).joinpath("clip.mp4").write_bytes(b"x")
    over = first.with_name("999999999-0123abcd")
    over.mkdir()
    (over / "clip.mp4").write_bytes(b"x")
    second = _uploads(home)
    assert sorted(first.parent.iterdir()) == sorted([first, second])
    assert (first / "clip.mp4").exists()


def test_five_clips_leave_no_second_copy(served: Served) -> None:
    """Case 34: they are served from where they lie; the folder for uploads holds what others uploaded before."""
    client, uploads = served.client(), served.home / "cache" / "uploads"
    before = set(uploads.rglob("*.mp4"))
    asked = {"prompt": "five balls", "width": 64, "height": 64, "frames": 5, "steps": 1, "count": 5}
    made = [until(partial(done, client, job)) for job in client.predict(asked, api_name="/generate")]
    for job in made:
        assert served.ask(f"/gradio_api/file={job['output']}")[0] == 200
    assert len({job["output"] for job in made}) == 5
    assert set(uploads.rglob("*.mp4")) == before


def done(client: Any, job: dict[str, Any]) -> Any:
    """The job once its clip is made."""
    found = client.predict(job["id"], api_name="/job")
    assert found["state"] in ("queued", "running", "done"), found
    return found if found["state"] == "done" else None


@pytest.mark.parametrize(("is_making", "told"), [(True, PUT_BACK), (False, "Closing.")])
def test_ctrl_c_says_what_becomes_of_the_clip_that_is_being_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_making: bool, told: str
) -> None:
    closed = Mock()
    monkeypatch.setattr("app.ui.server.open_page", lambda _: OpenPage("http://x", 1, lambda: is_making, closed))
    assert serve(wish(), Mock(side_effect=KeyboardInterrupt)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == told
    closed.assert_called_once()


def test_the_servers_process_holds_neither_torch_nor_diffusers(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from app.paths import Home\n"
        "from app.ui.server import open_page, settings_of\n"
        f"page = open_page(settings_of(Home(Path(sys.argv[1])), {free_port()}, False, False, None, False))\n"
        "import urllib.request\n"
        "assert urllib.request.urlopen(page.url).status == 200\n"
        "print(json.dumps(sorted({'torch', 'diffusers', 'transformers'} & set(sys.modules))))\n"
        "page.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(done.stdout.strip().splitlines()[-1]) == []
