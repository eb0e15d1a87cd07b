"""The presets we ship: valid as they stand, in words the starter knows, and worth trying."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.models import family_for
from app.presets import decode_code, encode_code, read_source, shipped_presets
from app.request import parse_request

ENTRIES = shipped_presets()


def test_there_are_enough_and_the_rocket_comes_first() -> None:
    assert len(ENTRIES) >= 8
    assert ENTRIES[0].path.name == "starter-rocket.json"
    assert [entry.problem for entry in ENTRIES] == [None] * len(ENTRIES)
    prompts = {entry.request.prompt for entry in ENTRIES if entry.request}
    seeds = {entry.request.seed for entry in ENTRIES if entry.request}
    titles = {entry.preset.title for entry in ENTRIES if entry.preset}
    assert len(prompts) == len(seeds) == len(titles) == len(ENTRIES)
    assert None not in seeds


@pytest.mark.parametrize("path", [entry.path for entry in ENTRIES], ids=lambda path: path.stem)
def test_each_runs_as_asked(path: Path) -> None:
    (found,) = read_source(str(path))
    assert found.title
    assert found.warnings == ()
    assert family_for(found.request.model).normalise(found.request, strict=True).adjustments == ()
    data = json.loads(path.read_text(encoding="utf-8"))
    assert list(data) == ["kinetile", "title", "notes", "request"]
    assert len(data["notes"]) <= 120
    assert path.read_text(encoding="utf-8") == json.dumps(data, indent=2, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("path", [entry.path for entry in ENTRIES], ids=lambda path: path.stem)
def test_each_fits_a_short_share_code(path: Path) -> None:
    (found,) = read_source(str(path))
    code = encode_code(found.request)
    assert len(code) <= (100 if found.request.loras else 80)
    assert parse_request(decode_code(code), "code") == found.request


def test_the_world_is_shown_widely() -> None:
    text = " ".join(entry.request.prompt for entry in ENTRIES if entry.request)
    assert sum("camera" in entry.request.prompt for entry in ENTRIES if entry.request) >= 1
    assert sum(" and " in entry.request.prompt for entry in ENTRIES if entry.request) >= 1
    for words in (
        ("rocket", "balloon", "boat", "fish", "ball", "car", "bird"),
        ("city", "snow", "space", "sea", "desert"),
    ):
        assert all(word in text for word in words)
