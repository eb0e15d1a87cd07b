"""A save that fails leaves nothing under a final name, says why in one line, and costs no frames."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app import video
from app.errors import CannotRunError, JobFailedError
from app.video import ffmpeg, outputs
from tests.app.ffmpeg_stand_ins import LISTS_ENCODER, needs_shell, stand_in
from tests.app.tiny_clips import METADATA, listing, noise


def kept_pictures(folder: Path, frames: video.Frames) -> None:
    pictures = [np.asarray(Image.open(path)) for path in sorted(folder.glob("*.png"))]
    assert np.array_equal(np.stack(pictures), frames)
    assert json.loads((folder / "metadata.json").read_text()) == {"fps": 8.0, **METADATA}


@needs_shell
@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("sys.exit(\"Unknown encoder 'libx264'\")", CannotRunError, "Unknown encoder"),
        ("open(args[-1][5:], 'w').write('half')\nsys.exit('Conversion failed!')", JobFailedError, "Conversion failed!"),
        (
            "open(args[-1][5:], 'w').write('half')\nsys.exit('x.mp4: No space left on device')",
            CannotRunError,
            "is full",
        ),
        ("sys.stdin.buffer.read()", JobFailedError, "is empty"),
        ("sys.stdin.buffer.read()\nopen(args[-1][5:], 'w').write('half' * 9)", JobFailedError, "not an MP4"),
        ("os.kill(os.getpid(), 9)", JobFailedError, "exit code"),
        ("i = args.index('-frames:v')\nargs[i + 1] = '2'\nos.execv(real, [real, *args])", JobFailedError, "2 frames"),
        (
            "i = args.index('-vf')\nargs[i + 1] += ',scale=48:48'\nos.execv(real, [real, *args])",
            JobFailedError,
            "48x48",
        ),
        (
            "i = args.index('-framerate')\nargs[i + 1] = '9'\nos.execv(real, [real, *args])",
            JobFailedError,
            "in 0.333 s",
        ),
    ],
)
def test_a_failing_encoder_costs_no_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, kind: type[Exception], words: str
) -> None:
    """Cases 32 and 34: the end of what ffmpeg said is told, and no half-written file has the final name."""
    decoding = "if 'pipe:0' not in args: os.execv(real, [real, *args])\n"
    stand_in(monkeypatch, tmp_path, LISTS_ENCODER + decoding + body)
    frames, out = noise(), tmp_path / "out"
    with pytest.raises(kind, match=words) as caught:
        video.save(frames, 8, out, "a clip", METADATA)
    assert listing(out) == ["a-clip-frames"]
    assert str(out / "a-clip-frames") in str(caught.value)
    assert "\n" not in str(caught.value)
    kept_pictures(out / "a-clip-frames", frames)


def test_no_ffmpeg_when_saving_keeps_the_frames_under_a_free_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "gone"))
    (tmp_path / "x-frames").mkdir()
    with pytest.raises(CannotRunError, match=r"does not start.*x-frames-2\.$"):
        video.save(noise(), 8, tmp_path, "x", METADATA)
    assert listing(tmp_path) == ["x-frames", "x-frames-2"]
    kept_pictures(tmp_path / "x-frames-2", noise())


def test_a_folder_that_cannot_be_made_keeps_the_frames_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spare"))
    with pytest.raises(CannotRunError, match=r"Cannot write in the output folder .*spare"):
        video.save(noise(), 8, tmp_path / "file" / "out", "x", METADATA)
    kept_pictures(tmp_path / "spare" / "x-frames", noise())


@pytest.mark.parametrize("folder_is_full", [False, True])
def test_without_a_temporary_folder_the_frames_are_kept_beside_the_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_is_full: bool
) -> None:
    """Python finds none where every disk is full."""

    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    monkeypatch.setattr(video, "encode", full)
    if folder_is_full:
        monkeypatch.setattr(outputs, "new_folder", full)
    with pytest.raises(CannotRunError, match="could not be kept" if folder_is_full else r"kept .*x-frames\.$"):
        video.save(noise(), 8, tmp_path, "x", METADATA)


def test_when_nothing_can_be_kept_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(video, "_write_poster", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spare"))
    with pytest.raises(CannotRunError, match=r"is full: free some space.*could not be kept") as caught:
        video.save(noise(), 8, tmp_path / "out", "x", METADATA)
    assert caught.value.exit_code == 3
    assert listing(tmp_path / "out") == listing(tmp_path / "spare") == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount") if sys.platform == "linux" else None
    if (
        not mount
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True).returncode
    ):
        pytest.skip("mounting a small file system needs root on Linux; the stand-ins say what a full disk says")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_fills_up(small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 34, on a real one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "spare"))
    frames = noise(60, 64, 64)
    with pytest.raises(CannotRunError, match=r"The disk that holds .* is full: free some space.*spare"):
        video.save(frames, 8, small_disk, "x", METADATA)
    assert listing(small_disk) == []
    kept_pictures(tmp_path / "spare" / "x-frames", frames)
    with pytest.raises(CannotRunError, match="free, but this run may need"):
        outputs.check_space(small_disk, video.space_needed(64, 64, 60))


def test_an_interrupted_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ffmpeg.Child, "feed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        video.save(noise(), 8, tmp_path, "x", METADATA)
    assert listing(tmp_path) == []


def test_a_name_taken_meanwhile_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program makes x.mp4 just before ours gets its name."""
    real_link = os.link

    def link(source: Path, target: Path) -> None:
        if Path(target).name == "x.mp4":
            (tmp_path / "x.mp4").write_text("theirs")
        real_link(source, target)

    monkeypatch.setattr(os, "link", link)
    clip = video.save(noise(), 8, tmp_path, "x", METADATA)
    assert (tmp_path / "x.mp4").read_text() == "theirs"
    assert clip.path.name == "x-2.mp4"
    assert listing(tmp_path) == ["x-2.mp4", "x-2.png", "x.mp4"]
