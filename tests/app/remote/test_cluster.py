"""What can be told of a cluster without one: addresses, what Ray lacks, what stands behind an address."""

from __future__ import annotations

import importlib
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import CannotRunError, UsageError
from app.paths import Home
from app.remote import cluster
from app.remote.cluster import MAX_HERE, Address, Place, connect, load_ray


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("local", Address()),
        ("local:3", Address("", 3)),
        ("node-1.lan:6379", Address("node-1.lan:6379")),
        ("ray://10.0.0.7:10001", Address("ray://10.0.0.7:10001")),
    ],
)
def test_an_address_is_read(text: str, found: Address) -> None:
    assert Address.parse(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "auto",
        "local:",
        "local:0",
        f"local:{MAX_HERE + 1}",
        "host",
        "host:0",
        "host:65536",
        "http://host:1",
        "a b:1",
    ],
)
def test_any_other_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(UsageError, match=r"write local, local:N .* or a cluster's address as HOST:PORT"):
        Address.parse(text)


@given(st.text(max_size=40))
def test_no_text_is_taken_by_mistake(text: str) -> None:
    try:
        found = Address.parse(text)
    except UsageError:
        return
    assert text.startswith("local") if not found.joined else found.joined == text and ":" in text


def test_without_ray_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CannotRunError, match=r"^--ray needs Ray, .*-m pip install 'ray>=2\.50,<3'$"):
        load_ray()


def test_another_ray_than_is_wanted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        __version__ = "1.13.0"

    monkeypatch.setattr(importlib, "import_module", lambda name: Old)
    with pytest.raises(CannotRunError, match=r"needs ray>=2\.50,<3, and here is 1\.13\.0"):
        load_ray()


def test_nobody_at_the_address_is_said_at_once(home: Home) -> None:
    pytest.importorskip("ray", reason="Ray is an extra that is not installed here")
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(
            CannotRunError, match=rf"^--ray 127\.0\.0\.1:{port}: .* can't be joined \(Connection refused\)"
        ):
            connect(Address(f"127.0.0.1:{port}"), home)


def test_something_else_at_the_address_is_given_up(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is an extra that is not installed here")
    monkeypatch.setattr(cluster, "JOIN_SECONDS", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(CannotRunError, match=r"nothing that is a Ray of version .* answered within 3 s"):
            connect(Address(f"127.0.0.1:{port}"), home)


def test_other_versions_are_named() -> None:
    told = (
        "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.12.1\n"
        "This process on Ray node was started with:\n    Ray: 2.60.0\n    Python: 3.11.9\n"
    )
    assert cluster._reason(told) == "it runs Ray 2.50.0 on Python 3.12.1, this is Ray 2.60.0 on Python 3.11.9"


def test_the_last_line_is_the_reason_else() -> None:
    assert (
        cluster._reason("Traceback\n  File\nConnectionError: no such cluster.\n") == "ConnectionError: no such cluster"
    )
    assert cluster._reason("") == "it ended without a word"


def test_nothing_travels_to_a_cluster_but_what_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ["mine [1]", "token?.txt", "a*b", "#notes", "!keys", " odd ", "outputs", ".venv"]
    for name in [*kept, *cluster._SHIPPED]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "app").touch()
    monkeypatch.setattr(cluster, "ROOT", tmp_path)
    patterns = pytest.importorskip("pathspec", reason="what reads such patterns for Ray")
    left_out = patterns.GitIgnoreSpec.from_lines(cluster._kept_here())
    travels = {
        path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if not _inside(left_out, path, tmp_path)
    }
    assert travels == set(cluster._SHIPPED)


def _inside(left_out: Any, path: Path, root: Path) -> bool:
    return bool(left_out.match_file(path.relative_to(root).as_posix()))


@pytest.mark.parametrize(
    ("address", "gpus", "engines"), [("local", 4, 4), ("local:2", 4, 2), ("local:3", 0, 3), ("local", 0, 1)]
)
def test_there_are_as_many_engines_as_were_asked_for(home: Home, address: str, gpus: int, engines: int) -> None:
    node = {"Alive": True, "NodeID": "a", "NodeManagerHostname": "here", "Resources": {"CPU": 8.0, "GPU": float(gpus)}}
    found = cluster.Cluster(SimpleNamespace(nodes=lambda: [node]), Address.parse(address), home)
    assert len(found.places) == engines


def test_more_engines_than_gpus_are_refused(home: Home) -> None:
    node = {"Alive": True, "NodeID": "a", "NodeManagerHostname": "here", "Resources": {"CPU": 8.0, "GPU": 2.0}}
    with pytest.raises(CannotRunError, match=r"^--ray local:3: an engine takes a GPU, and here are 2; take that many"):
        cluster.Cluster(SimpleNamespace(nodes=lambda: [node]), Address.parse("local:3"), home)


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"kinetile": "0.0.9"}, r"^far has Kinetile 0\.0\.9, this machine .*: bring both to one version\.$"),
        (
            {"lacking": ["torch>=2.9,<3", "peft (has 0.1)"]},
            r"^far lacks torch>=2\.9,<3, peft \(has 0\.1\): install that",
        ),
    ],
)
def test_a_machine_with_other_packages_is_refused(facts: dict[str, Any], sentence: str) -> None:
    from app import __version__

    place = Place(None, "node", "far", {}, 0)  # type: ignore[arg-type]
    place._refuse_others({"kinetile": __version__, "lacking": []})
    with pytest.raises(CannotRunError, match=sentence):
        place._refuse_others({"kinetile": __version__, "lacking": [], **facts})
