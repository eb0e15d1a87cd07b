"""Who may talk to the page: judged on bare requests, and on the real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ui.context import file_url
from app.ui.safety import MAX_BODY, MAX_CALL, UPLOADS, Guard, host_name, own_names
from tests.app.services import until
from tests.app.ui.serving import ROOT, Served, serving


async def _nothing(*_: Any) -> None:
    return None


def ask(guard: Guard, method: str = "GET", path: str = "/", **headers: str) -> int:
    """The status that the guard answers with, 200 when it lets the request through."""
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    refusal = guard.why_not({"type": "http", "method": method, "path": path, "headers": pairs})
    return 200 if refusal is None else refusal[0]


LOCAL = Guard(_nothing)
OPEN = Guard(_nothing, names={"studio", "studio.local", "localhost"}, any_address=True)


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "LOCALHOST", "[::1]:7860", "127.0.0.1"])
def test_names_of_this_machine_are_taken(host: str) -> None:
    assert ask(LOCAL, host=host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "localhost.evil.example:7860", "192.168.1.5:7860",
     "", ":7860", "127.0.0.1:x", "user@127.0.0.1", "127.0.0.1:1:2", "[::1", "[evil]"],
)  # fmt: skip
def test_other_names_are_refused(host: str) -> None:
    assert ask(LOCAL, host=host) == 421


def test_a_request_names_one_host() -> None:
    twice = [(b"host", b"127.0.0.1"), (b"host", b"evil.example")]
    assert LOCAL.why_not({"type": "http", "method": "GET", "path": "/", "headers": twice}) is not None
    assert LOCAL.why_not({"type": "http", "method": "GET", "path": "/", "headers": []}) is not None


def test_listening_takes_any_address_but_no_foreign_name() -> None:
    assert ask(OPEN, host="192.168.1.5:7860") == 200
    assert ask(OPEN, host="[fe80::1]:7860") == 200
    assert ask(OPEN, host="studio.local:7860") == 200
    assert ask(OPEN, host="evil.example:7860") == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:7860", 200),
        ("http://127.0.0.1:8000", 403),
        ("http://localhost:7860", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_only_its_own_pages_may_talk_to_it(origin: str, status: int) -> None:
    assert ask(LOCAL, "POST", host="127.0.0.1:7860", origin=origin, content_length="2") == status


def test_other_sites_may_link_but_not_embed() -> None:
    assert ask(LOCAL, host="127.0.0.1", sec_fetch_site="cross-site", sec_fetch_mode="no-cors") == 403
    assert ask(LOCAL, host="127.0.0.1", sec_fetch_site="cross-site", sec_fetch_mode="navigate") == 200
    assert ask(LOCAL, host="127.0.0.1", sec_fetch_site="same-origin", sec_fetch_mode="cors") == 200


def test_bodies_are_bounded() -> None:
    for path, most in ((UPLOADS, MAX_BODY), ("/gradio_api/queue/join", MAX_CALL)):
        assert ask(LOCAL, "POST", path, host="127.0.0.1", content_length=str(most)) == 200
        assert ask(LOCAL, "POST", path, host="127.0.0.1", content_length=str(most + 1)) == 413
    assert ask(LOCAL, "POST", host="127.0.0.1", content_length="9" * 5000) == 413
    assert ask(LOCAL, "POST", host="127.0.0.1", transfer_encoding="chunked") == 411
    assert ask(LOCAL, "POST", host="127.0.0.1") == 200


def test_an_upload_that_would_fill_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 34."""
    guard = Guard(_nothing, uploads=tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: Mock(free=3 * 2**20))

    def upload(size: int, path: str = "/gradio_api/upload") -> int:
        return ask(guard, "POST", path, host="127.0.0.1", content_length=str(size))

    assert (upload(2**20), upload(2 * 2**20 + 1), upload(2 * 2**20 + 1, "/gradio_api/call/generate")) == (200, 507, 200)


def test_a_websocket_is_judged_too() -> None:
    scope = {"type": "websocket", "path": "/", "headers": [(b"host", b"evil.example")]}
    assert LOCAL.why_not(scope) is not None


@given(st.text(max_size=40))
def test_no_host_that_is_not_ours_passes(host: str) -> None:
    if ask(LOCAL, host=host.encode("latin-1", "replace").decode("latin-1")) == 200:
        assert host_name(host) in ("localhost", "127.0.0.1", "::1")


def test_own_names_hold_no_empty_one() -> None:
    assert "localhost" in own_names()
    assert "" not in own_names()


# -- the real server --


def test_the_server_refuses_foreign_names_and_pages(served: Served) -> None:
    assert served.ask("/")[0] == 200
    status, sentence = served.ask("/", Host="evil.example")
    assert (status, "does not lead to Kinetile" in sentence) == (421, True)
    assert served.ask("/config", Host=f"evil.example:{served.url.rsplit(':', 1)[1]}")[0] == 421
    assert served.ask("/gradio_api/run/predict", data=b"{}", Origin="https://evil.example")[0] == 403


ELSEWHERE = (
    "/etc/hostname",
    "./pyproject.toml",
    "pyproject.toml",
    "./config.json",
    "app/cli.py",
    "/proc/self/environ",
    "/tmp/gradio/../../etc/hostname",
    "..%2f..%2fetc%2fhostname",
    "{home}/kinetile.sqlite3",
    "{home}/owner.json",
    "{outputs}/../kinetile.sqlite3",
    "{outputs}/..%2fkinetile.sqlite3",
    "{home}/cache",
)


def is_kept_from(served: Served) -> None:
    """A plain request gets a clip, and nothing from anywhere else."""
    served.outputs.mkdir(exist_ok=True)
    (served.outputs / "seen.png").write_bytes(b"picture")
    assert served.ask(f"/gradio_api/file={served.outputs}/seen.png") == (200, "picture")
    for path in ELSEWHERE:
        named = path.format(home=served.home, outputs=served.outputs)
        assert served.ask(f"/gradio_api/file={named}")[0] == 403, named
        for route in ("/file=", "/static/", "/assets/"):
            status, _ = served.ask(route + named)
            assert status in (400, 403, 404, 405), (route, named, status)


def test_only_the_outputs_are_served(served: Served) -> None:
    """Case 42: whatever way a path is written in, Gradio's file route leads nowhere but to the clips."""
    is_kept_from(served)


def test_only_the_outputs_are_served_to_others(tmp_path: Path) -> None:
    """Case 42: the same where other machines may connect, which is said to be without a password."""
    with serving(tmp_path, "--listen", "--no-auth") as page:
        is_kept_from(page)
        assert any("can use it, without a password (--no-auth)" in line for line in page.lines)


def test_clips_are_served_wherever_the_data_folder_lies(tmp_path: Path) -> None:
    """Row 42, seen too (Fooocus issue 1485): below a hidden folder, in one of another script, beside "%", "#" and "?",
    on another disk by way of a link.
    """
    home, disk = tmp_path / ".local" / "Käfer 100%41 #1 & more?", tmp_path / "other disk"
    for folder in (home, disk):
        folder.mkdir(parents=True)
    (home / "outputs").symlink_to(disk)
    request = {"prompt": "one ball", "width": 64, "height": 64, "frames": 5, "steps": 1, "seed": 1}
    with serving(home) as page:
        client = page.client()
        (job,) = client.predict(request, api_name="/generate")
        made = until(lambda: next((one for one in [client.predict(job["id"], api_name="/job")] if one["ended"]), None))
        assert made["state"] == "done", made
        for kind in ("output", "poster"):
            assert Path(made[kind]).is_file()
            assert page.ask(file_url(made[kind]))[0] == 200, kind
        assert page.ask(file_url(home / "kinetile.sqlite3"))[0] == 403
        assert page.ask(file_url(tmp_path / "other disk" / ".." / "x.mp4"))[0] == 403


@pytest.mark.skipif(os.name == "nt", reason="there it can't be told who may change a folder")
def test_a_clip_that_a_batch_put_elsewhere_is_served_and_nothing_beside_it(served: Served, tmp_path: Path) -> None:
    request = {"prompt": "one ball", "width": 64, "height": 64, "frames": 5, "steps": 1, "seed": 1}
    preset, folder = tmp_path / "ball.json", tmp_path / "clips"
    preset.write_text(json.dumps({"kinetile": 1, "request": request}), encoding="utf-8")
    command = ["--headless", str(preset), "--out", str(folder), "--home", str(served.home), "--json"]
    launch = [sys.executable, "-m", "app.cli", *command]
    done = subprocess.run(launch, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "handed over" in done.stderr
    clip, poster = (Path(json.loads(done.stdout)["clips"][0][kind]) for kind in ("file", "poster"))
    assert clip.parent == poster.parent == folder
    (folder / "beside.mp4").write_bytes(b"private")
    address = f"/gradio_api/file={folder}"
    assert served.client().predict("one ball", 0, 1, api_name="/history")["jobs"][0]["output"] == str(clip)
    assert served.ask(f"{address}/{clip.name}")[0] == 200
    assert served.ask(f"{address}/{poster.name}")[0] == 200
    assert served.ask(f"{address}/beside.mp4")[0] == 403
    assert served.ask(address)[0] == 403


def test_a_link_in_the_outputs_leads_nowhere_else(served: Served) -> None:
    served.outputs.mkdir(exist_ok=True)
    link = served.outputs / "link.png"
    link.unlink(missing_ok=True)
    link.symlink_to(Path("/etc/hostname"))
    assert served.ask(f"/gradio_api/file={link}")[0] == 403
    link.unlink()


@pytest.mark.parametrize("route", ["proxy=https://example.com/", "deep_link", "runs", "vibe-edit/"])
def test_routes_that_reach_further_are_closed(served: Served, route: str) -> None:
    assert served.ask(f"/gradio_api/{route}")[0] == 404


def test_a_path_of_the_machine_is_no_upload(served: Served) -> None:
    client = served.client()
    with pytest.raises(Exception, match="neither one of the clips nor an upload"):
        client.predict("/etc/hostname", api_name="/preset_import_file")


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x.json", "https://example.com/x.json"])
def test_no_address_is_looked_up_for_a_request(served: Served, address: str) -> None:
    named = {"path": address, "url": address, "meta": {"_type": "gradio.FileData"}}
    with pytest.raises(Exception, match="fetches nothing from an address"):
        served.client().predict(named, api_name="/generate")


def test_an_upload_is_not_served_back(served: Served) -> None:
    boundary = "x" * 30
    part = 'Content-Disposition: form-data; name="files"; filename="a.html"\r\nContent-Type: text/html\r\n\r\n<script>'
    body = f"--{boundary}\r\n{part}\r\n--{boundary}--\r\n".encode()
    status, answer = served.ask(
        "/gradio_api/upload", data=body, Content_Type=f"multipart/form-data; boundary={boundary}"
    )
    assert status == 200
    (path,) = json.loads(answer)
    assert Path(path).is_relative_to(served.home / "cache")
    assert served.ask(f"/gradio_api/file={path}")[0] == 403
