"""Deleting own presets with a way back."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from app.errors import UsageError
from app.paths import Home
from app.presets import Preset, own_presets, save_own
from app.presets.bin import KEPT_SECONDS, bring_back, clear, put_aside
from app.request import GenerationRequest


def kept(home: Home) -> list[str]:
    return [entry.name for entry in own_presets(home)]


def test_there_and_back(tmp_path: Path) -> None:
    home = Home(tmp_path)
    path = save_own(home, Preset.of(GenerationRequest(prompt="x"), "Mine"))
    before = path.read_bytes()
    deleted = put_aside(home, "mine")
    assert kept(home) == []
    assert bring_back(home, deleted.token) == "mine"
    assert kept(home) == ["mine"]
    assert path.read_bytes() == before
    with pytest.raises(UsageError, match="too late"):
        bring_back(home, deleted.token)


def test_broken_presets_can_be_deleted_too(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (home.presets / "broken.json").write_text("{")
    bring_back(home, put_aside(home, "broken").token)
    assert (home.presets / "broken.json").read_text() == "{"


def test_a_name_that_is_taken_again_is_not_overwritten(tmp_path: Path) -> None:
    home = Home(tmp_path)
    save_own(home, Preset.of(GenerationRequest(prompt="old"), "Mine"))
    deleted = put_aside(home, "mine")
    new = save_own(home, Preset.of(GenerationRequest(prompt="new"), "Mine"))
    with pytest.raises(UsageError, match="Another preset is named 'mine'"):
        bring_back(home, deleted.token)
    assert b"new" in new.read_bytes()
    put_aside(home, "mine")
    assert bring_back(home, deleted.token) == "mine"
    assert b"old" in new.read_bytes()


def test_the_age_that_counts_is_that_of_the_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset that was written long ago can come back; one that was deleted long ago is gone with the next one."""
    home, now = Home(tmp_path), time.time()
    for name in ("Mine", "Other"):
        path = save_own(home, Preset.of(GenerationRequest(prompt="x"), name))
        os.utime(path, (now - 9 * KEPT_SECONDS,) * 2)
    (home.presets / ".deleted-by-hand.json").write_text("{}")
    with monkeypatch.context() as earlier:
        earlier.setattr(time, "time", lambda: now - KEPT_SECONDS - 60)
        long_ago = put_aside(home, "other")
    deleted = put_aside(home, "mine")
    assert bring_back(home, deleted.token) == "mine"
    with pytest.raises(UsageError, match="too late"):
        bring_back(home, long_ago.token)
    assert (home.presets / ".deleted-by-hand.json").exists()


@pytest.mark.parametrize("token", ["", "*", "../x", "0" * 15, "G" * 16, "[0-9]" * 4])
def test_no_token_reaches_other_files(tmp_path: Path, token: str) -> None:
    home = Home(tmp_path)
    save_own(home, Preset.of(GenerationRequest(prompt="x"), "Mine"))
    put_aside(home, "mine")
    with pytest.raises(UsageError, match="too late"):
        bring_back(home, token)


def test_clearing_takes_only_what_is_old_enough(tmp_path: Path) -> None:
    home = Home(tmp_path)
    save_own(home, Preset.of(GenerationRequest(prompt="x"), "Mine"))
    save_own(home, Preset.of(GenerationRequest(prompt="x"), "Other"))
    deleted = put_aside(home, "mine")
    clear(home, time.time() - 60)
    assert kept(home) == ["other"]
    assert bring_back(home, deleted.token) == "mine"
    again = put_aside(home, "mine")
    clear(home, time.time() + 60)
    with pytest.raises(UsageError, match="too late"):
        bring_back(home, again.token)
    assert kept(home) == ["other"]
