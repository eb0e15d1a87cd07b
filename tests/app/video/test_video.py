"""Clips as files: what is written is what was asked, and the request comes back, also past files from strangers."""

from __future__ import annotations

import json
import math
import shutil
import struct
import subprocess
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from app import video
from app.errors import JobFailedError, UsageError
from app.request import GenerationRequest
from app.video import ffmpeg, mp4
from tests.app.ffmpeg_stand_ins import needs_shell, stand_in
from tests.app.tiny_clips import METADATA, listing, noise

NASTY = (
    "a \"quoted\" 'text'; key=value # no comment \\ back\r\nnew line\ttab "
    "🚀 👩\u200d🚀 红 \u202e é \x00\x1b \ufeff [\\;FFMETADATA1]"
)


def smooth(count: int, height: int, width: int) -> video.Frames:
    """A gradient that moves: compresses well, so that decoded and given frames can be compared."""
    y, x, t = np.mgrid[0:height, 0:width, 0:count].astype(float)
    waves = [np.sin(x / 23 + t / 3), np.cos(y / 19), np.sin((x + y) / 31 + t / 2)]
    return (127.5 + 100 * np.stack(waves)).transpose(3, 1, 2, 0).astype(np.uint8)


@pytest.mark.parametrize(("width", "height"), [(32, 32), (256, 160), (624, 936), (250, 142), (2, 2), (18, 1000)])
def test_even_sizes_stay_exactly(tmp_path: Path, width: int, height: int) -> None:
    """Case 31: H.264's blocks of 16 stretch and pad nothing."""
    given_frames = smooth(3, height, width)
    clip = video.save(given_frames, 8, tmp_path, "size", METADATA)
    facts = mp4.read(clip.path)
    assert (facts.width, facts.height, facts.frames) == (width, height, 3)
    assert clip.warnings == ()
    frames = video.decode_frames(clip.path)
    assert frames.shape == given_frames.shape
    error = np.abs(frames.astype(int) - given_frames)
    print(f"{width}x{height}: max {error.max()}, mean {error.mean():.2f} of 255")
    assert error.mean() < 6, "stretched, shifted or miscoloured"


@pytest.mark.parametrize(("width", "height"), [(33, 32), (32, 33), (251, 141), (1, 1)])
def test_odd_sides_repeat_their_edge_and_come_back(tmp_path: Path, width: int, height: int) -> None:
    given_frames = smooth(2, height, width)
    clip = video.save(given_frames, 8, tmp_path, "odd", METADATA)
    facts = mp4.read(clip.path)
    assert (facts.width, facts.height) == (width + width % 2, height + height % 2)
    assert [
        f"{width}x{height}" in warning and f"{facts.width}x{facts.height}" in warning for warning in clip.warnings
    ] == [True]
    frames = video.decode_frames(clip.path)
    assert frames.shape == given_frames.shape
    assert np.abs(frames.astype(int) - given_frames).mean() < 6
    assert video.read_metadata(clip.path) == METADATA


@pytest.mark.parametrize("fps", [1, 8, 12.5, 15, 16, 23.976, 24, 29.97, 30, 60, 120, 240, 7.3])
@pytest.mark.parametrize("count", [1, 5])
def test_frame_count_and_rate_are_exact(tmp_path: Path, fps: float, count: int) -> None:
    facts = mp4.read(video.save(noise(count, 16, 16), fps, tmp_path, "rate", METADATA).path)
    assert facts.frames == count
    film = {23.976: 24000, 29.97: 30000}
    exact = Fraction(film[fps], 1001) if fps in film else Fraction(str(fps))
    assert count / facts.seconds == exact


@pytest.mark.parametrize("crf", [1, 18, 30, 51])
def test_every_quality_plays_in_browsers(tmp_path: Path, crf: int) -> None:
    """Case 30: profile, pixel format and tag by ffmpeg's own account; a lossless quality is not offered."""
    clip = video.save(noise(), 8, tmp_path, "quality", METADATA, crf)
    facts = mp4.read(clip.path)
    assert (facts.codec, facts.profile, facts.faststart) == ("avc1", 100, True)
    told = subprocess.run([ffmpeg.locate(), "-i", str(clip.path)], capture_output=True, check=False).stderr.decode()
    assert "h264 (High) (avc1" in told
    assert "yuv420p(tv, bt709, progressive)" in told


def test_quality_orders_size_and_error(tmp_path: Path) -> None:
    frames = noise(4, 64, 64)
    paths = [video.save(frames, 8, tmp_path, "q", METADATA, crf).path for crf in (5, 18, 40)]
    sizes = [path.stat().st_size for path in paths]
    errors = [float(np.abs(video.decode_frames(path).astype(int) - frames).mean()) for path in paths]
    print(sizes, errors)
    assert sizes == sorted(sizes, reverse=True)
    assert errors == sorted(errors)


@pytest.mark.parametrize(
    ("fps", "crf"), [(0, 18), (-1, 18), (math.nan, 18), (math.inf, 18), (2000, 18), (8, 0), (8, 52)]
)
def test_bad_rates_and_qualities_are_refused(tmp_path: Path, fps: float, crf: int) -> None:
    with pytest.raises(UsageError, match="must"):
        video.save(noise(), fps, tmp_path / "out", "x", METADATA, crf)
    assert not listing(tmp_path)


@pytest.mark.parametrize(
    "frames", [np.zeros((0, 8, 8, 3), np.uint8), np.zeros((2, 8, 8, 3), np.float32), np.zeros((8, 8, 3), np.uint8)]
)
def test_what_is_no_clip_is_refused(tmp_path: Path, frames: Any) -> None:
    with pytest.raises(JobFailedError, match="uint8 RGB"):
        video.save(frames, 8, tmp_path / "out", "x", METADATA)
    assert not listing(tmp_path)


def test_the_same_clip_twice_decodes_to_the_same_bits(tmp_path: Path) -> None:
    frames = noise(20, 96, 64)
    first, second = (video.save(frames, 8, tmp_path, "same", METADATA) for _ in range(2))
    assert first.path.read_bytes() == second.path.read_bytes().replace(b"same-2", b"same")
    assert np.array_equal(video.decode_frames(first.path), video.decode_frames(second.path))


def test_frames_may_be_a_view_and_stay_untouched(tmp_path: Path) -> None:
    frames = noise(6, 64, 64)[::2, ::-1, 10:42]
    copy = frames.copy()
    clip = video.save(frames, 8, tmp_path, "view", METADATA, 1)
    assert np.array_equal(frames, copy)
    again = video.save(copy, 8, tmp_path, "copy", METADATA, 1)
    assert np.array_equal(video.decode_frames(clip.path), video.decode_frames(again.path))


def test_the_poster_is_a_frame_and_not_a_fade(tmp_path: Path) -> None:
    frames = np.zeros((8, 32, 48, 3), np.uint8)
    frames[2] = noise(1, 32, 48)[0]
    clip = video.save(frames, 8, tmp_path, "poster", METADATA)
    assert clip.poster == clip.path.with_suffix(".png")
    assert np.array_equal(np.asarray(Image.open(clip.poster)), frames[2])


@pytest.mark.parametrize(
    "name",
    ["../../evil", "/tmp/evil", "C:\\evil", "a/../../b", "CON", "nul\0byte", "红" * 120, "🚀" * 90, 'a/b:c*d?"e', ""],
)
def test_no_name_leaves_the_folder(tmp_path: Path, name: str) -> None:
    """Cases 28 and 31."""
    clip = video.save(noise(1, 16, 16), 8, tmp_path / "root" / "sub", name, METADATA)
    assert clip.path.resolve().parent == (tmp_path / "root" / "sub").resolve()
    assert listing(tmp_path) == ["root"]
    assert listing(tmp_path / "root") == ["sub"]
    assert len(listing(tmp_path / "root" / "sub")) == 2, "clip and poster, no leftovers"


# Metadata


@pytest.mark.parametrize("prompt", [NASTY, NASTY * 500, "x" * 40_000, "🚀" * 10_000, "\\" * 5000, ";#=\n" * 10_000, ""])
def test_prompts_come_back_to_the_letter(tmp_path: Path, prompt: str) -> None:
    """Case 27: read back by `save` itself, and once more here."""
    metadata = {
        "kinetile": 1,
        "request": {"prompt": prompt},
        "asked": {"prompt": prompt},
        "adjustments": [],
        "timings": {"text": 0.1},
    }
    clip = video.save(noise(5, 16, 16), 8, tmp_path, prompt, metadata)
    assert clip.sidecar is None
    assert clip.warnings == ()
    assert video.read_metadata(clip.path) == metadata


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=st.text(max_size=200), report=json_values)
def test_any_metadata_comes_back(tmp_path: Path, prompt: str, report: Any) -> None:
    metadata = {"kinetile": 1, "request": {"prompt": prompt}, "report": report}
    clip = video.save(noise(1, 8, 8), 8, tmp_path, prompt, metadata)
    assert (video.read_metadata(clip.path), clip.sidecar) == (metadata, None)


def test_what_json_cannot_hold_costs_no_clip(tmp_path: Path) -> None:
    metadata = {
        **METADATA,
        "report": {"nan": math.nan, "inf": [-math.inf], "path": Path("a/b"), 3: (1, 2), "half": "\ud83d!", "type": int},
        "timings": {"text": np.float32(0.5), "array": np.arange(3)},
    }
    clip = video.save(noise(1, 16, 16), 8, tmp_path, "odd things", metadata)
    stored = video.read_metadata(clip.path)
    assert clip.sidecar is None
    assert stored["report"] == {
        "nan": None, "inf": [None], "path": str(Path("a/b")), "3": [1, 2], "half": "?!", "type": "<class 'int'>",
    }  # fmt: skip
    assert stored["timings"] == {"text": 0.5, "array": [0, 1, 2]}


def test_the_request_comes_back(tmp_path: Path) -> None:
    request = GenerationRequest(
        prompt='a red rocket 🚀\n"now"', width=256, height=160, frames=25, fps=8, seed=2**53 - 1, steps=20
    )
    clip = video.save(noise(), 8, tmp_path, request.prompt, {"kinetile": 1, "request": request.model_dump(mode="json")})
    assert video.read_request(clip.path) == request
    assert clip.path.name == "a-red-rocket-🚀-now.mp4"


def test_other_programs_find_title_and_comment(tmp_path: Path) -> None:
    clip = video.save(noise(), 8, tmp_path, "A title", METADATA)
    command = [ffmpeg.locate(), "-v", "error", "-i", str(clip.path), "-f", "ffmetadata", "-"]
    told = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    assert "title=A-title\n" in told
    assert 'comment={"kinetile":1,' in told


DROPS = "if '-map_metadata' in args: args[args.index('-map_metadata') + 1] = '-1'"
CHANGES = "if '-map_metadata' in args: args[-1:-1] = ['-metadata', 'comment={}']"


@needs_shell
@pytest.mark.parametrize("fault", [DROPS, CHANGES], ids=["dropped", "changed"])
def test_metadata_that_does_not_come_back_goes_beside_the_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Case 27: and a warning says where it lies."""
    stand_in(monkeypatch, tmp_path, f"{fault}\nos.execv(real, [real, *args])")
    clip = video.save(noise(), 8, tmp_path / "out", "x", METADATA)
    assert clip.sidecar == tmp_path / "out" / "x.json"
    assert json.loads(clip.sidecar.read_text()) == METADATA
    assert any("x.json" in warning for warning in clip.warnings)
    assert video.read_metadata(clip.path) == METADATA
    clip.sidecar.unlink()
    with pytest.raises(UsageError, match="holds no Kinetile request"):
        video.read_metadata(clip.path)


def test_metadata_too_long_for_the_file_goes_beside_it(tmp_path: Path) -> None:
    metadata = {**METADATA, "report": "x" * mp4.MAX_TAG_BYTES}
    clip = video.save(noise(1, 16, 16), 8, tmp_path, "x", metadata)
    assert clip.sidecar is not None
    assert video.read_metadata(clip.path) == metadata


# Files from strangers


def with_comment(clip: Path, text: bytes) -> Path:
    """The clip with another comment of any length, as a box tree of its own in front of the pictures."""

    def box(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I4s", 8 + len(body), kind) + body

    tag = box(b"\xa9cmt", box(b"data", struct.pack(">II", 1, 0) + text))
    moov = box(b"moov", box(b"udta", box(b"meta", b"\0\0\0\0" + box(b"ilst", tag))))
    data = clip.read_bytes()
    start = data.index(b"moov") - 4
    (length,) = struct.unpack(">I", data[start : start + 4])
    clip.write_bytes(data[:start] + moov + data[start + length :])
    return clip


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"a film about kinetile",
        b"[1]",
        b'{"kinetile":1}',
        b'{"kinetile":true,"request":{}}',
        b'{"kinetile":1,"request":"x"}',
        b'{"kinetile":1,"request":{"fps":NaN}}',
        b'{"kinetile":1,"request":{"prompt":"\\ud83d"}}',
        b'{"kinetile":1,"request":{"\xff":1}}',
        b'{"kinetile":1,"request":{"seed":' + b"9" * 10_000 + b"}}",
        b'{"kinetile":1,"request":{},"plan":{"x":1e999}}',
        b'{"kinetile":1,"request":{},"x":[' + b"1," * 1_500_000 + b"0]}",
        b"[" * 900_000,
        b'{"kinetile":1,"request":{"a":' + b"[" * 60 + b"]" * 60 + b"}}",
        b'{"kinetile":1,"request":{"a":[' + b"[]," * 1_500_000 + b"0]}}",
    ],
    ids=lambda text: text[:40].decode("latin-1"),
)
def test_a_strangers_comment_is_refused(tmp_path: Path, text: bytes) -> None:
    clip = video.save(noise(1, 16, 16), 8, tmp_path, "x", METADATA)
    with pytest.raises(UsageError, match="holds no Kinetile request") as caught:
        video.read_metadata(with_comment(clip.path, text))
    assert len(str(caught.value)) < 500
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["picture.png", "gone.mp4", "cut.mp4", "folder.mp4", "nul\0.mp4", "empty.mp4"])
def test_what_is_no_clip_is_told_in_one_sentence(tmp_path: Path, name: str) -> None:
    clip = video.save(noise(1, 16, 16), 8, tmp_path, "x", METADATA)
    shutil.copy(clip.poster, tmp_path / "picture.png")
    (tmp_path / "cut.mp4").write_bytes(clip.path.read_bytes()[:-10])
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "folder.mp4").mkdir()
    for reader in (video.read_metadata, video.read_request, video.decode_frames):
        with pytest.raises(UsageError) as caught:
            reader(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_an_mp4_with_sound_only_has_no_frames(tmp_path: Path) -> None:
    command = f"{ffmpeg.locate()} -v error -f lavfi -i sine=d=0.1 -c:a aac -y".split()
    subprocess.run([*command, str(tmp_path / "sound.mp4")], check=True)
    with pytest.raises(UsageError, match="without video"):
        video.decode_frames(tmp_path / "sound.mp4")


def test_noise_stays_within_the_space_foreseen(tmp_path: Path) -> None:
    for count, height, width in ((1, 16, 16), (9, 128, 128)):
        clip = video.save(noise(count, height, width), 8, tmp_path, "space", METADATA, 1)
        used = clip.path.stat().st_size + clip.poster.stat().st_size
        foreseen = video.space_needed(width, height, count)
        print(f"{width}x{height}, {count} frames at CRF 1: {used:,} of {foreseen:,} bytes foreseen")
        assert used <= foreseen
