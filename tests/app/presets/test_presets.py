"""Everything a person can hand in (CASES 24, 25, 28)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app import presets, strict_json, video
from app.errors import KinetileError, SourceError, UsageError
from app.paths import Home
from app.presets import FIRST, Preset, encode_code, read_each, read_source, save_own, shipped_presets
from app.request import GenerationRequest

ASKED = GenerationRequest(prompt="a ball", steps=5, seed=3)


def test_a_preset_file(tmp_path: Path) -> None:
    path = presets.save_preset(Preset.of(ASKED, "Mine"), tmp_path / "my ball.json")
    (found,) = read_source(str(path))
    assert (found.name, found.title, found.origin, found.folder) == ("my ball", "Mine", str(path), tmp_path)
    assert found.request == ASKED
    path.rename(tmp_path / "ball.preset")
    assert read_source(str(tmp_path / "ball.preset"))[0].request == ASKED


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".txt"])
def test_a_file_name_that_is_not_utf8_becomes_text(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a\udcff{suffix}"
    content = {".json": '{"request": {}}', ".jsonl": "{}", ".txt": encode_code(ASKED)}[suffix]
    try:
        path.write_text(content, encoding="utf-8")
    except (OSError, UnicodeError) as error:
        pytest.skip(f"this system has no such names: {error}")
    (found,) = read_source(str(path))
    assert (found.name + found.origin).encode("utf-8")


def test_a_batch_keeps_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\r\n\n   \n{"prompt": "\xe4\xba\x8c", "seed": 3}')
    found = read_source(str(path))
    assert [item.request.prompt for item in found] == ["one", "二"]
    assert [item.origin for item in found] == [f"{path}:1", f"{path}:4"]
    assert [item.name for item in found] == ["batch-1", "batch-4"]
    path.rename(tmp_path / "batch.txt")
    assert len(read_source(str(tmp_path / "batch.txt"))) == 2


@pytest.mark.parametrize(
    ("line", "place", "says"),
    [
        ('{"steps": 0}', ":3, column 11, steps: ", "from 1"),
        ('{"steps": 5,}', ":3, column 13: ", "remove the comma"),
        ("a red ball", ":3, column 1: ", "neither a number"),
        ("[]", ":3, column 1: ", "must be an object"),
        ('{"title": "x"}', ":3, column 2, title: ", "no such key"),
        ('{"image": "no.png"}', ":3, image: ", "is not in"),
        ("\xff", ":3, column 1: ", "a value was expected"),
    ],
)
def test_batch_errors_name_file_and_line(tmp_path: Path, line: str, place: str, says: str) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text('{"prompt": "x"}\n\n' + line + "\n", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_source(str(path))
    assert str(caught.value).startswith(f"{path}{place}")
    assert says in str(caught.value)


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text("\n \n")
    with pytest.raises(UsageError, match="holds no request"):
        read_source(str(path))
    path.write_text('{"prompt": "' + "x" * (2 * 1024 * 1024) + '"}')
    with pytest.raises(UsageError, match=r"batch\.jsonl:1.*too long"):
        read_source(str(path))
    path.write_text("{}\n" * 12)
    monkeypatch.setattr(presets, "MAX_BATCH_LINES", 11)
    with pytest.raises(UsageError, match=r"batch\.jsonl:12: .*at most 11 requests"):
        read_source(str(path))
    monkeypatch.setattr(presets, "MAX_BATCH_BYTES", 30)
    with pytest.raises(UsageError, match=r"batch\.jsonl:11: .*at most 30 bytes"):
        read_source(str(path))
    monkeypatch.setattr(presets, "MAX_LINES", 5)
    path.write_text("{}\n" + "\n" * 5)
    with pytest.raises(UsageError, match=r"batch\.jsonl: a batch has at most 5 lines, blank ones too"):
        read_source(str(path))


def test_a_line_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text("x" * (3 * strict_json.MAX_BYTES) + "\n" + '{"steps": 0}\n', encoding="utf-8")
    places = [str(one).partition(",")[0].partition(": ")[0] for one in read_each(str(path))]
    assert places == [f"{path}:1", f"{path}:2"]


def test_the_first_wrong_line_stands_for_all_where_one_sentence_is_told(tmp_path: Path) -> None:
    path = tmp_path / "batch.jsonl"
    path.write_text('{"steps": 0}\n{"steps": 5}\n{"steps": 0}\n[]\n', encoding="utf-8")
    with pytest.raises(SourceError, match=r"batch\.jsonl:1, column 11, steps: .* \(2 more mistakes\.\)$") as told:
        read_source(str(path))
    assert len(told.value.problems) == 3


def test_a_share_code_as_text_and_in_a_file(tmp_path: Path) -> None:
    code = encode_code(ASKED)
    (found,) = read_source(f"`{code.lower()}`")
    assert (found.request, found.origin, found.folder) == (ASKED, "share code", None)
    (tmp_path / "code.txt").write_text(f"> {code[:30]}\n> {code[30:]}\n")
    (found,) = read_source(str(tmp_path / "code.txt"))
    assert (found.request, found.origin) == (ASKED, str(tmp_path / "code.txt"))
    with pytest.raises(UsageError, match="damaged"):
        read_source(code[:-3] + "AAA")


def test_a_clip_gives_its_request_back(tmp_path: Path) -> None:
    frames = np.zeros((5, 32, 32, 3), np.uint8)
    resolved = GenerationRequest(prompt="a ball", width=32, height=32, frames=5, fps=8, steps=5, guidance=4, seed=3)
    metadata = {"kinetile": 1, "request": resolved.model_dump(mode="json"), "plan": {"vae": "x"}, "extra": 1}
    clip = video.save(frames, 8, tmp_path, "ball", metadata)
    (found,) = read_source(str(clip.path))
    assert found.request == resolved
    assert found.metadata is not None
    assert found.metadata["plan"] == {"vae": "x"}
    clip.path.rename(tmp_path / "renamed.bin")
    assert read_source(str(tmp_path / "renamed.bin"))[0].request == resolved
    (tmp_path / "fake.mp4").write_bytes(b"not a film")
    with pytest.raises(KinetileError, match=r"fake\.mp4"):
        read_source(str(tmp_path / "fake.mp4"))


def test_shipped_and_own_presets_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped_presets()[0].name == FIRST
    (found,) = read_source(FIRST)
    assert found.name == FIRST
    assert found.request == shipped_presets()[0].request
    home = Home(tmp_path / "home")
    save_own(home, Preset.of(ASKED, "My Ball"))
    assert read_source("my-ball", home)[0].request == ASKED
    with pytest.raises(UsageError):
        read_source("my-ball")


def test_a_preset_is_found_by_the_title_that_the_page_shows_unless_two_have_it(home: Home) -> None:
    assert read_source("lift-OFF")[0].request == read_source("starter-rocket")[0].request
    save_own(home, Preset.of(ASKED, "Große Fahrt"), "first")
    assert read_source("GROSSE fahrt", home)[0].request == ASKED
    save_own(home, Preset.of(ASKED, "große fahrt"), "second")
    with pytest.raises(UsageError, match="is no file, share code or preset"):
        read_source("Große Fahrt", home)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("starter-rokket", 'did you mean "starter-rocket"'),
        ("nothing/here.json", "There is no file 'nothing/here.json': name a preset"),
        ("missing.jsonl", "There is no file"),
        ("", "is no file, share code or preset"),
        ("\0", "is no file"),
        ("x" * 5000, "is no file"),
        ("KT9-AAAA", "update"),
        ("a red ball flies", 'give them as its prompt (on the command line: --set "prompt=…").'),
    ],
)
def test_what_is_nothing_is_told_what_is_possible(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_source(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 700


def _fifo(path: Path) -> None:
    """A file that would never end; a folder where the system has no such files."""
    os.mkfifo(path) if hasattr(os, "mkfifo") else path.mkdir()


def test_odd_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "empty").write_bytes(b"")
    for name in ("pipe", "pipe.jsonl"):
        _fifo(tmp_path / name)
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    for name in ("picture.png", "empty", "pipe", "pipe.jsonl", "gone.json"):
        with pytest.raises(UsageError, match=name.replace(".", r"\.")):
            read_source(str(tmp_path / name))
    with pytest.raises(UsageError, match="is a folder"):
        read_source(str(tmp_path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from([".json", ".jsonl", ".mp4", ".txt", ""]),
    st.binary(max_size=60) | st.text('{}[]":,\nKT1-AB7 promptseed0', max_size=40).map(str.encode),
)
def test_whatever_a_file_holds_only_our_errors_escape(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"any{suffix}"
    path.write_bytes(content)
    try:
        found = read_source(str(path))
    except KinetileError as error:
        str(error).encode("utf-8")
        return
    assert found
    json.dumps([item.request.model_dump(mode="json") for item in found])


@given(st.text(max_size=40))
def test_whatever_is_typed_only_our_errors_escape(text: str) -> None:
    try:
        read_source(text)
    except KinetileError as error:
        str(error).encode("utf-8")
