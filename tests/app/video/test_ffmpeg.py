"""The ffmpeg child: colours are right to the rounding, failures are told with ffmpeg's own words, nothing hangs."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from app.errors import CannotRunError, JobFailedError
from app.video import ffmpeg
from tests.app.ffmpeg_stand_ins import LISTS_ENCODER, needs_shell, stand_in

PATCH = 16  # pixels; the middle half of a patch is out of reach of its neighbours' chroma
LEVELS = (0, 64, 128, 191, 255)
COLOURS = np.array(list(itertools.product(LEVELS, repeat=3)), np.uint8)


def patches() -> ffmpeg.Frames:
    """125 flat patches, (1, 80, 400, 3)."""
    grid = COLOURS.reshape(5, 25, 3)
    return grid.repeat(PATCH, 0).repeat(PATCH, 1)[None]


def middles(plane: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.float64]:
    """(125, half, half, ...) middles of the patches of one picture, ``size`` pixels a patch."""
    rows = plane.reshape(5, size, 25, size, *plane.shape[2:]).swapaxes(1, 2).reshape(125, size, size, *plane.shape[2:])
    return rows[:, size // 4 : -size // 4, size // 4 : -size // 4].astype(np.float64)


@pytest.fixture(scope="module")
def patch_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("patches")
    (folder / "tags").write_text(";FFMETADATA1\n")
    ffmpeg.encode(patches(), Fraction(8), 1, folder / "patches.mp4", folder / "tags")
    return folder / "patches.mp4"


def test_stored_colours_follow_the_bt709_formula(patch_clip: Path) -> None:
    command = [ffmpeg.locate(), "-v", "error", "-i", str(patch_clip), "-f", "rawvideo", "-pix_fmt", "yuv420p", "-"]
    raw = np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, np.uint8)
    luma, cb, cr = raw[:32000].reshape(80, 400), raw[32000:40000].reshape(40, 200), raw[40000:].reshape(40, 200)
    red, green, blue = (COLOURS / 255.0).T
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue  # ITU-R BT.709-6, items 3.2 to 3.4
    wanted = {"Y": 16 + 219 * y, "Cb": 128 + 224 * (blue - y) / 1.8556, "Cr": 128 + 224 * (red - y) / 1.5748}
    for (name, value), plane, size in zip(wanted.items(), (luma, cb, cr), (PATCH, PATCH // 2, PATCH // 2), strict=True):
        error = middles(plane, size) - value[:, None, None]
        print(f"{name}: max {np.abs(error).max():.2f}, mean {error.mean():+.3f} of a step")
        assert np.abs(error).max() <= 1.5, "half a step of rounding and one of the encoder (CRF 1)"
        assert abs(error.mean()) < 0.1, "a wrong matrix or range would shift it"


def test_decoded_colours_are_those_given(patch_clip: Path) -> None:
    picture = ffmpeg.decode(patch_clip, 1, 80, 400)[0]
    error = middles(picture, PATCH) - COLOURS[:, None, None, :]
    print(f"RGB: max {np.abs(error).max():.0f}, mean {error.mean():+.3f} of 255")
    assert np.abs(error).max() <= 4, "steps of limited range are 1.16 and 2.1 wide in RGB, twice rounded"
    assert abs(error.mean()) < 0.3


def test_chroma_sites_do_not_shift(tmp_path: Path) -> None:
    """A red and a blue half: the edge stays where it was, to the chroma pixel."""
    frames = np.zeros((1, 32, 64, 3), np.uint8)
    frames[..., :32, 0] = 255
    frames[..., 32:, 2] = 255
    (tmp_path / "tags").write_text(";FFMETADATA1\n")
    ffmpeg.encode(frames, Fraction(8), 1, tmp_path / "edge.mp4", tmp_path / "tags")
    error = np.abs(ffmpeg.decode(tmp_path / "edge.mp4", 1, 32, 64).astype(int) - frames).max(axis=(0, 1, 3))
    print(f"largest error per column around the edge: {error[26:38].tolist()}")
    assert error[:28].max() <= 6
    assert error[36:].max() <= 6


def test_the_real_encoder_is_proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    exe = ffmpeg.check_encoder()

    def never(*_: object, **__: object) -> None:
        raise AssertionError("asked a second time")

    monkeypatch.setattr(subprocess, "run", never)
    assert ffmpeg.check_encoder() == exe


def test_no_ffmpeg_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 32."""
    import imageio_ffmpeg

    def none() -> str:
        raise RuntimeError("No ffmpeg exe could be found.")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", none)
    with pytest.raises(CannotRunError, match=r"no ffmpeg.*-m pip install --force-reinstall imageio-ffmpeg") as caught:
        ffmpeg.check_encoder()
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("content", ["", "x = (", "\0" * 100, "import no_such_package", "get_ffmpeg_exe = None"])
def test_a_package_that_is_half_installed_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    import imageio_ffmpeg  # so that it can come back afterwards

    assert imageio_ffmpeg
    (tmp_path / "imageio_ffmpeg.py").write_text(content, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "imageio_ffmpeg")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CannotRunError, match=r"no ffmpeg.*-m pip install --force-reinstall imageio-ffmpeg"):
        ffmpeg.check_encoder()


def test_a_program_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "gone"))
    with pytest.raises(CannotRunError, match=r"does not start \(no such file.*IMAGEIO_FFMPEG_EXE names it"):
        ffmpeg.check_encoder()


@needs_shell
def test_an_ffmpeg_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Case 32."""
    stand_in(monkeypatch, tmp_path, 'sys.exit("noise\\n" * 50 + "Unknown encoder \'libx264\'")')
    with pytest.raises(CannotRunError, match="Unknown encoder 'libx264'") as caught:
        ffmpeg.check_encoder()
    assert len(str(caught.value)) < 900
    assert "\n" not in str(caught.value)


@needs_shell
def test_an_ffmpeg_without_x264_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Case 32."""
    stand_in(monkeypatch, tmp_path, "print(' V....D libx264rgb  no\\n V....D mpeg4  no')")
    with pytest.raises(CannotRunError, match=r"no H.264 encoder libx264"):
        ffmpeg.check_encoder()


@needs_shell
def test_a_flood_of_messages_does_not_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flood = "os.write(2, b'x' * 3_000_000)\nsys.stdin.buffer.read()\nos.write(2, b'\\nthe end\\n')\nsys.exit(1)"
    stand_in(monkeypatch, tmp_path, LISTS_ENCODER + flood)
    with pytest.raises(JobFailedError, match="the end"):
        ffmpeg.encode(np.zeros((40, 64, 64, 3), np.uint8), Fraction(8), 18, tmp_path / "x.mp4", tmp_path / "tags")


@needs_shell
def test_a_child_is_ended_when_its_parent_is_interrupted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(
        monkeypatch, tmp_path, LISTS_ENCODER + f"open({str(tmp_path / 'alive')!r}, 'w')\nimport time\ntime.sleep(600)"
    )

    def interrupted() -> None:
        with ffmpeg.Child(ffmpeg.locate(), [], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
            processes.append(child._process)
            while not (tmp_path / "alive").exists():
                time.sleep(0.01)
            raise KeyboardInterrupt

    processes: list[subprocess.Popen[bytes]] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert processes[0].returncode not in (0, None)


def test_a_file_that_promises_too_much_is_not_decoded(patch_clip: Path) -> None:
    with pytest.raises(JobFailedError, match="4 GiB"):
        ffmpeg.decode(patch_clip, 2**31, 16384, 16384)
    with pytest.raises(JobFailedError, match="but 1 could be decoded"):
        ffmpeg.decode(patch_clip, 9, 80, 400)
