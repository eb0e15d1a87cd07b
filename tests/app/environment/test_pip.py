"""The real pip behind its one face, with wheels of a few hundred bytes and no network."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from app.environment.pip import Candidate, RealPip, last_error
from tests.app.environment.stand_ins import write_wheel

# Asked without importing pip: that would tell setuptools to leave distutils alone, and torch.compile would fail later.
pytestmark = pytest.mark.skipif(
    not any(importlib.metadata.distributions(name="pip")), reason="this environment has no pip"
)


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RealPip:
    """This interpreter's pip, which finds the wheels in ``tmp_path`` and nothing else. It is only asked to look."""
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    return RealPip(Path(sys.executable), tmp_path)


def test_pip_tells_what_it_would_take(tmp_path: Path, pip: RealPip) -> None:
    write_wheel(tmp_path, "torch", "2.13.0", ["nvidia-cudnn-cu13==9.24.0.43 ; platform_system == 'Linux'", "filelock"])
    write_wheel(tmp_path, "torch", "2.13.0+cpu", ["filelock"])
    assert pip.look("torch==2.13.0+cpu", None, 1) == Candidate("2.13.0+cpu", ("filelock",))
    found = pip.look("torch==2.13.0", "http://127.0.0.1:9/simple", 1)
    assert isinstance(found, Candidate)
    assert found.version == "2.13.0+cpu", "a labelled release counts as newer"


def test_an_author_whose_letters_the_console_lacks_is_no_obstacle(
    tmp_path: Path, pip: RealPip, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "Metadata-Version: 2.1\nName: umlaut\nVersion: 1.0\nAuthor: J\u00f6rg \u9673\n"
    write_wheel(tmp_path, "umlaut", "1.0", files={"umlaut-1.0.dist-info/METADATA": said})
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    assert pip.look("umlaut", None, 1) == Candidate("1.0", ())


def test_what_pip_cannot_find_is_told_in_its_words(pip: RealPip) -> None:
    assert pip.look("no-such-thing==1", None, 1) == "No matching distribution found for no-such-thing==1"


def test_settings_that_send_packages_elsewhere_are_not_followed(
    tmp_path: Path, pip: RealPip, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path, "tiny", "1.0")
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PIP_USER", "1")
    assert pip.look("tiny", None, 1) == Candidate("1.0", ())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "WARNING: slow\nERROR: first\nERROR: No matching distribution found\nnote: more\n",
            "No matching distribution found",
        ),
        ("Traceback\n  ...\nOSError: disk full\n\n", "OSError: disk full"),
        ("", ""),
    ],
)
def test_the_telling_line(text: str, line: str) -> None:
    assert last_error(text) == line
