"""Uploads and pasted text: the exact request, or one sentence that shows no path of this machine (CASES 25, 28)."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import video
from app.errors import KinetileError, UsageError, on_page
from app.presets import Preset, encode_code, save_preset
from app.presets.incoming import from_text, from_upload
from app.request import AccelPreferences, GenerationRequest, Lora

ASKED = GenerationRequest(
    prompt="a red ball",
    steps=5,
    seed=2**53 - 1,
    loras=(Lora(name="a.safetensors"),),
    accel=AccelPreferences(vae="stock"),
)


def test_a_pasted_code_a_pasted_preset_and_a_pasted_request_give_the_exact_request() -> None:
    preset = Preset.of(ASKED, "Mine", "notes")
    assert from_text(f"  > `{encode_code(ASKED)}`\n").request == ASKED
    found = from_text("\ufeff\n" + json.dumps(preset.data()))
    assert (found.request, found.title) == (ASKED, "Mine")
    assert from_text(json.dumps(dict(preset.request))).request == ASKED


def test_uploads_of_every_kind_give_the_exact_request(tmp_path: Path) -> None:
    frames = np.zeros((5, 64, 64, 3), np.uint8)
    record = {"kinetile": 1, "request": ASKED.model_dump(mode="json"), "plan": {"stages": []}}
    clip = video.save(frames, 8, tmp_path, "clip", record).path
    assert from_upload(clip).request == ASKED
    assert from_upload(clip).metadata is not None
    preset = save_preset(Preset.of(ASKED, "Mine"), tmp_path / "p.json")
    assert from_upload(preset).request == ASKED
    code = tmp_path / "code.txt"
    code.write_text(encode_code(ASKED))
    assert from_upload(code).request == ASKED
    line = tmp_path / "one.jsonl"
    line.write_text(json.dumps(dict(Preset.of(ASKED).request)) + "\n")
    assert from_upload(line).request == ASKED


def test_pasted_text_is_never_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_preset(Preset.of(ASKED, "Mine"), tmp_path / "p.json")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "KT1-AAAA").write_text(encode_code(ASKED))
    for text in (str(tmp_path / "p.json"), "p.json", "starter-rocket", "KT1-AAAA", "~/p.json", "/etc/passwd"):
        with pytest.raises(UsageError):
            from_text(text)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"kinetile": 1, "request": {"steps": 0}}', "evil.json, line 1, column 38, request.steps"),
        ('{"kinetile": 1, "request": {"prompt": "x",}}', "remove the comma"),
        ('{"kinetile": 1, "request": {"output": "/etc/x"}}', "no such key"),
        ('{"kinetile": 1, "request": {"seed": 9007199254740993}}', "request.seed"),
        ('{"kinetile": 1, "request": {"image": "../../x.png"}}', "evil.json"),
        ("", "evil.json"),
        ("[" * 100_000, "evil.json"),
        ("\0\0\0\x18ftypisom", "evil.json"),
    ],
)
def test_a_hostile_upload_is_refused_by_its_own_name(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "4f1c" / "evil.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        from_upload(path)
    assert says in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_picture_can_not_come_along(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    path = tmp_path / "p.json"
    path.write_text('{"kinetile": 1, "request": {"image": "a.png"}}')
    with pytest.raises(UsageError, match="image: a picture lies beside its preset") as told:
        from_upload(path)
    assert str(told.value).endswith('take "a.png" out of the preset, and choose the picture on Create.')
    with pytest.raises(UsageError, match="image: a picture lies beside its preset"):
        from_text(path.read_text())


def test_a_batch_of_many_is_for_the_command_line_and_the_page_says_what_to_do_there(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    with pytest.raises(UsageError, match=r"many.jsonl is a batch of 2 requests.*launch.py --headless FILE") as told:
        from_upload(path)
    assert on_page(told.value).startswith("The page takes one preset at a time, and ")
    assert on_page(told.value).endswith("bring one of its lines as a file of its own.")
    path.write_text('{"prompt": 1}\n\n{"steps": 0}\nno request\n')
    with pytest.raises(UsageError, match=r"^The page takes one preset at a time, and 4f1c.jsonl is a batch of 3 req"):
        from_upload(path, "4f1c.jsonl")


def test_what_is_gone_or_too_large_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x.json can't be read"):
        from_upload(tmp_path / "x.json")
    large = tmp_path / "large.mp4"
    with large.open("wb") as file:
        os.truncate(file.fileno(), 600 * 1024 * 1024)
    with pytest.raises(UsageError, match=r"large.mp4 is larger than 512 MiB"):
        from_upload(large)


@given(st.text(max_size=300))
def test_any_text_is_a_request_or_one_sentence(text: str) -> None:
    with contextlib.suppress(KinetileError):  # any other exception fails
        assert isinstance(from_text(text).request, GenerationRequest)
