"""The walker reads our files rightly and answers every broken or hostile one with one plain error, quickly."""

from __future__ import annotations

import os
import random
import struct
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app import video
from app.video import mp4


def box(kind: bytes, body: bytes = b"", size: int | None = None) -> bytes:
    return struct.pack(">I4s", 8 + len(body) if size is None else size, kind) + body


FTYP = box(b"ftyp", b"isom\0\0\2\0isomavc1")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    frames = np.random.default_rng(0).integers(0, 255, (5, 32, 48, 3), np.uint8)
    metadata = {"kinetile": 1, "request": {"prompt": "walk"}}
    return video.save(frames, 8, tmp_path_factory.mktemp("clip"), "walk", metadata).path.read_bytes()


def read(folder: Path, data: bytes) -> mp4.Mp4:
    path = folder / "some.mp4"
    path.write_bytes(data)
    return mp4.read(path)


def test_our_clip_says_what_it_is(tmp_path: Path, clip: bytes) -> None:
    facts = read(tmp_path, clip)
    assert (facts.codec, facts.width, facts.height, facts.frames) == ("avc1", 48, 32, 5)
    assert facts.seconds == Fraction(5, 8)
    assert facts.profile == 100, "High"
    assert (facts.colour, facts.full_range) == ((1, 1, 1), False)
    assert facts.faststart
    assert facts.tags["title"] == b"walk"
    assert facts.tags["encoder"].startswith(b"Kinetile ")
    assert facts.tags["comment"] == b'{"kinetile":1,"request":{"prompt":"walk"}}'


def test_an_index_behind_the_pictures_is_no_faststart(tmp_path: Path, clip: bytes) -> None:
    at = clip.index(b"moov") - 4
    (length,) = struct.unpack(">I", clip[at : at + 4])
    moved = clip[:at] + clip[at + length :] + clip[at : at + length]
    assert not read(tmp_path, moved).faststart


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty"),
        (b"RIFF\0\0\0\0WEBP", "not an MP4"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 64, "not an MP4"),
        (FTYP, "without an index"),
        (FTYP + box(b"mdat", b"x" * 100), "without an index"),
        (FTYP + box(b"moov"), "without pictures"),
        (FTYP + box(b"moov", b"", size=2**31), "cut short"),
        (FTYP + box(b"moov", b"", size=4), "damaged"),
        (FTYP + struct.pack(">I4sQ", 1, b"moov", 2**63), "cut short"),
        (FTYP + box(b"moov", box(b"udta", b"", size=500)) + box(b"mdat"), "damaged"),
        (FTYP + box(b"free") * 10_000, "more than 4,096 boxes"),
        (FTYP + box(b"moov", box(b"free") * 10_000) + box(b"mdat"), "more than 4,096 boxes"),
    ],
)
def test_broken_files_are_told_apart(tmp_path: Path, data: bytes, problem: str) -> None:
    with pytest.raises(mp4.Mp4Error, match=problem):
        read(tmp_path, data)


def test_a_huge_text_is_not_read(tmp_path: Path) -> None:
    length = mp4.MAX_TAG_BYTES + 1
    data = box(b"data", b"\0" * 8 + b"x" * length)
    listing = box(b"meta", b"\0\0\0\0" + box(b"ilst", box(b"\xa9cmt", data)))
    with pytest.raises(mp4.Mp4Error, match=f"{length:,} bytes"):
        read(tmp_path, FTYP + box(b"moov", box(b"udta", listing)) + box(b"mdat"))


def test_deep_nesting_costs_nothing(tmp_path: Path) -> None:
    body = b""
    for _ in range(5000):
        body = box(b"moov", body)
    assert read(tmp_path, FTYP + body + box(b"mdat")).codec == ""


def test_a_video_without_pictures_of_ours_has_facts_and_no_tags(tmp_path: Path) -> None:
    assert read(tmp_path, FTYP + box(b"moov") + box(b"mdat")) == mp4.Mp4(faststart=True)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(mp4.Mp4Error, match="not a file"):
        mp4.read(tmp_path)
    if sys.platform != "win32":
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(mp4.Mp4Error, match="not a file"):
            mp4.read(tmp_path / "pipe")


def test_every_cut_is_noticed(tmp_path: Path, clip: bytes) -> None:
    for length in range(0, len(clip), 7):
        with pytest.raises(mp4.Mp4Error):
            read(tmp_path, clip[:length])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), hits=st.integers(1, 12))
def test_any_damage_is_an_mp4_error_or_nothing(tmp_path: Path, clip: bytes, seed: int, hits: int) -> None:
    chance = random.Random(seed)
    data = bytearray(clip)
    for _ in range(hits):
        data[chance.randrange(clip.index(b"mdat"))] = chance.choice((0, 1, 8, 255, chance.randrange(256)))
    try:
        facts = read(tmp_path, bytes(data))
    except mp4.Mp4Error:
        return
    assert sum(map(len, facts.tags.values())) <= len(clip)
