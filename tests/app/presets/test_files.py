"""Presets on disk: strict to read, whole to write, never fatal to list (CASES 24, 25, 28)."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import CannotRunError, NameTakenError, UsageError
from app.paths import Home, slug
from app.presets.files import (
    Preset,
    load_preset,
    own_presets,
    read_preset,
    rename_own,
    save_own,
    save_preset,
)
from app.request import MAX_PROMPT, GenerationRequest

GOOD = {"kinetile": 1, "title": "Mine", "notes": "n", "request": {"prompt": "a ball", "steps": 5}}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_reads_title_notes_and_a_partial_request(tmp_path: Path) -> None:
    preset, request, warnings = read_preset(write(tmp_path / "a.json", GOOD))
    assert preset == Preset("Mine", "n", {"prompt": "a ball", "steps": 5})
    assert request == GenerationRequest(prompt="a ball", steps=5)
    assert warnings == ()
    assert load_preset(tmp_path / "a.json") == preset
    assert load_preset(write(tmp_path / "b.json", {"request": {}})) == Preset()


@pytest.mark.parametrize(
    ("content", "place", "says"),
    [
        ("{}", ", line 1, column 1, request: ", "missing; add it"),
        ("[1]", ", line 1, column 1: ", "must be an object"),
        ("", ", line 1, column 1: ", "nothing here"),
        ('{"model": null}', ", line 1, column 2, model: ", 'inside "request"'),
        ('{"title": "x",\n "prompt": "a ball"}', ", line 2, column 2, prompt: ", 'write {"request": {"prompt": ...}}'),
        ('{"request": {"model": null}}', ", line 1, column 23, request.model: ", "must be text"),
        ('{"request": null}', ", line 1, column 13, request: ", "must be an object"),
        ('{\n "request": {\n  "stepz": 3}}', ", line 3, column 3, request.stepz: ", 'did you mean "steps"'),
        ('{\n "request": {\n  "steps": 3,\n }}', ", line 4, column 2: ", "remove the comma"),
        ('{"titel": "x", "request": {}}', ", line 1, column 2, titel: ", 'did you mean "title"'),
        ('{"title": 5, "request": {}}', ", line 1, column 11, title: ", "text of at most 200"),
        ('{"output": "/tmp/x", "request": {}}', ", line 1, column 2, output: ", "no such key"),
        ('{"request": {"name": "../../evil"}}', ", line 1, column 14, request.name: ", "no such key"),
        ('{"request": {"image": "no.png"}}', ", request.image: ", "is not in"),
        ('{"kinetile": true, "request": {}}', ", line 1, column 14, kinetile: ", "not a version"),
    ],
)
def test_broken_presets_are_named_with_place(tmp_path: Path, content: str, place: str, says: str) -> None:
    path = write(tmp_path / "bad.json", content)
    with pytest.raises(UsageError) as caught:
        load_preset(path)
    assert str(caught.value).startswith(f"{path}{place}")
    assert says in str(caught.value)


def _fifo(path: Path) -> None:
    """A file that would never end; a folder where the system has no such files."""
    os.mkfifo(path) if hasattr(os, "mkfifo") else path.mkdir()


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    _fifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    (tmp_path / "big.json").write_bytes(b" " * (2 * 1024 * 1024 + 1))
    for name in ("pipe", "folder", "loop", "big", "missing", "a\0b"):
        with pytest.raises(UsageError):
            load_preset(tmp_path / f"{name}.json")


def test_pictures_lie_beside_the_preset(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(b"x")
    (folder / "first.png").write_bytes(b"x")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    _, request, _ = read_preset(write(folder / "a.json", {"request": {"image": "first.png"}}))
    assert request.image == "first.png"
    with pytest.raises(UsageError, match=r"request\.image: .*leads out"):
        load_preset(write(folder / "b.json", {"request": {"image": "link.png"}}))


def test_a_newer_presets_unknown_keys_are_kept_and_said(tmp_path: Path) -> None:
    data = {"kinetile": 3, "title": "T", "mood": [1], "request": {"prompt": "x", "sparkle": {"a": 1}}}
    preset, request, warnings = read_preset(write(tmp_path / "new.json", data))
    assert request == GenerationRequest(prompt="x")
    assert [text.split(", ")[-1].split(":")[0] for text in warnings] == ["mood", "request.sparkle"]
    saved = save_preset(preset, tmp_path / "again.json")
    assert json.loads(saved.read_text(encoding="utf-8")) == data


def test_the_record_of_a_clip_reads_as_a_preset(tmp_path: Path) -> None:
    record = {
        "kinetile": 1,
        "request": {"prompt": "x", "seed": 3},
        "asked": {},
        "plan": {"a": 1},
        "timings": {},
        "new": 1,
    }
    assert load_preset(write(tmp_path / "clip.json", record)).request == {"prompt": "x", "seed": 3}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    st.none() | st.integers(0, 2**53 - 1),
)
def test_save_and_load_round_trip(tmp_path: Path, title: str, prompt: str, seed: int | None) -> None:
    asked = GenerationRequest(prompt=prompt, seed=seed)
    path = save_preset(Preset.of(asked, title, prompt), tmp_path / "x.json", overwrite=True)
    preset, request, _ = read_preset(path)
    assert request == asked
    assert (preset.title, preset.notes) == (title, prompt)
    assert preset == Preset.of(asked, title, prompt)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
known = st.sampled_from(["kinetile", "title", "notes", "request", "plan", "x"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=50)
    | st.dictionaries(known, json_like, max_size=4).map(lambda data: json.dumps(data).encode())
    | st.dictionaries(st.sampled_from([*GenerationRequest.model_fields]), json_like, max_size=3).map(
        lambda data: json.dumps({"request": data}).encode()
    )
)
def test_whatever_the_file_holds_only_a_usage_error_escapes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.json"
    path.write_bytes(content)
    try:
        preset, request, _ = read_preset(path)
    except UsageError as error:
        said = str(error)
    else:
        json.dumps(request.model_dump(mode="json"), allow_nan=False)
        save_preset(preset, tmp_path / "again.json", overwrite=True)
        return
    assert said.startswith(str(path))


def test_the_longest_valid_preset_fits(tmp_path: Path) -> None:
    worst = "\0" * MAX_PROMPT  # six bytes each in the file
    preset = Preset.of(GenerationRequest(prompt=worst, negative_prompt=worst), "t" * 200, "\0" * 20_000)
    assert load_preset(save_preset(preset, tmp_path / "x.json")) == preset


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    path = save_preset(Preset("one"), tmp_path / "x.json")
    with pytest.raises(UsageError, match="exists already"):
        save_preset(Preset("two"), path)
    assert load_preset(path).title == "one"
    save_preset(Preset("two"), path, overwrite=True)
    assert load_preset(path).title == "two"


def test_the_second_of_two_writers_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    monkeypatch.setattr(Path, "exists", lambda self: False)  # both looked before either wrote
    save_preset(Preset("one"), path)
    with pytest.raises(UsageError, match="exists already"):
        save_preset(Preset("two"), path)
    monkeypatch.setattr(os, "link", _no_links)
    with pytest.raises(UsageError, match="exists already"):
        save_preset(Preset("three"), path)
    assert load_preset(path).title == "one"
    assert load_preset(save_preset(Preset("four"), tmp_path / "y.json")).title == "four"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.json", "y.json"]


def _no_links(source: Path, target: Path) -> None:
    raise OSError(errno.EPERM, "no links here")


def test_a_full_disk_leaves_the_old_file_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_preset(Preset("one"), tmp_path / "x.json")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotRunError, match=r"x\.json can't be written .*No space left"):
        save_preset(Preset("two"), path, overwrite=True)
    assert load_preset(path).title == "one"
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    with pytest.raises(CannotRunError):
        save_preset(Preset("two"), tmp_path / "no" / "folder.json")


@pytest.mark.parametrize(
    "preset",
    [
        Preset("x" * 201),
        Preset(request={"steps": 0}),
        Preset(request={"a": object()}),
        Preset(request={"a": float("nan")}),
        Preset(version=0),
        Preset(extra={"a": 1}),
        Preset("\ud800"),
    ],
)
def test_invalid_presets_are_never_written(tmp_path: Path, preset: Preset) -> None:
    with pytest.raises(UsageError):
        save_preset(preset, tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_no_empty_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "rename" if os.name == "nt" else "replace", refuse)
    with pytest.raises(CannotRunError, match="can't be written"):
        save_preset(Preset("ball"), tmp_path / "ball.json")
    assert list(tmp_path.iterdir()) == []


def test_own_presets_list_broken_files_with_their_reason(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert own_presets(home) == ()
    assert list(tmp_path.iterdir()) == []
    for name, content in {"a": "{}", "b": '{"model": null}', "c": "[1]", "d": "", "e": GOOD}.items():
        write(home.presets / f"{name}.json", content)
    (home.presets / "f.json").mkdir()
    (home.presets / "notes.txt").write_text("not a preset")
    entries = own_presets(home)
    assert [entry.name for entry in entries] == ["e", "a", "b", "c", "d", "f"]
    assert entries[0].problem is None
    assert entries[0].request == GenerationRequest(prompt="a ball", steps=5)
    for entry in entries[1:]:
        assert entry.request is None
        assert entry.problem is not None
        assert entry.problem.startswith(str(entry.path))


def test_own_presets_are_saved_and_renamed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    path = save_own(home, Preset("Über: die Wolken / 雲", "n", {"prompt": "x"}))
    assert path.name == "über-die-wolken-雲.json"
    with pytest.raises(NameTakenError, match=r"is called '.*' already; choose another title"):
        save_own(home, Preset("über die wolken 雲"))
    new = rename_own(home, path.stem, "Clouds")
    assert new.name == "clouds.json"
    assert load_preset(new) == Preset("Clouds", "n", {"prompt": "x"})
    assert not path.exists()
    assert rename_own(home, "clouds", "CLOUDS!") == new
    assert load_preset(new).title == "CLOUDS!"
    save_own(home, Preset("other"))
    with pytest.raises(NameTakenError, match="A preset of yours is called 'other' already"):
        rename_own(home, "clouds", "Other")
    assert load_preset(new).title == "CLOUDS!"
    new.unlink()
    assert [entry.name for entry in own_presets(home)] == ["other"]
    for name in ("clouds", "../other", "/etc/passwd", "", "a\0"):
        with pytest.raises(UsageError, match="No preset of yours"):
            rename_own(home, name, "x")


def test_a_name_that_differs_in_case_only_is_its_own_where_the_system_says_so(tmp_path: Path) -> None:
    """Two names of one file stand in for what Windows and macOS make of Clouds and clouds."""
    home = Home(tmp_path)
    old = save_preset(Preset("Clouds", "n", {"prompt": "x"}), home.presets / "Clouds.json")
    if not (home.presets / "clouds.json").exists():
        os.link(old, home.presets / "clouds.json")
    new = rename_own(home, "Clouds", "clouds")
    assert load_preset(new) == Preset("clouds", "n", {"prompt": "x"})


@given(st.text(max_size=200))
def test_slugs_are_file_names(title: str) -> None:
    name = slug(title)
    assert name
    assert len(name.encode("utf-8")) <= 110
    assert not set(name) & set('/\\:*?"<>|.\0 ')


@pytest.mark.parametrize("title", ["CON", "nul", "", "../../evil", "…", "com1"])
def test_awkward_titles_get_a_name(tmp_path: Path, title: str) -> None:
    path = save_own(Home(tmp_path), Preset(title))
    assert path.parent == tmp_path / "presets"
    assert path.stem.upper() not in {"CON", "NUL", "COM1"}
