"""The ffmpeg child: found, proved able, and fed raw frames through a pipe.

Colour: frames are RGB with full range (0...255); H.264 for browsers is 4:2:0 with limited range (16...235) and the
BT.709 matrix. swscale's defaults are BT.601 in older releases and rounded roughly in all, so matrix, range and exact
rounding are asked for by name on both ways. swscale's error is then at most 0.51 of a step (see
tests/app/video/test_ffmpeg.py).

Threads: x264's picture depends on its thread count (measured, 24 frames of 1280x720 moving vertically: 1 and 2 threads
agree; 4, 8 and 16 each decode to other pixels). The count is fixed so that the same frames give the same clip on every
machine.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from accel.advice import pip
from app.errors import CannotRunError, JobFailedError

Frames = npt.NDArray[np.uint8]

_GET = pip("install", "--force-reinstall", "imageio-ffmpeg")

ENCODER = "libx264"
THREADS = 4
MAX_DECODED_BYTES = 4 * 1024**3
_TAIL_BYTES = 16 * 1024
_EXACT = "flags=bicubic+accurate_rnd+full_chroma_int+full_chroma_inp+bitexact"
_TO_YUV = (
    f"scale=in_range=pc:out_range=tv:out_color_matrix=bt709:{_EXACT},format=yuv420p,"
    "setparams=range=tv:color_primaries=bt709:color_trc=bt709:colorspace=bt709"
)
_TO_RGB = f"scale=in_range=tv:out_range=pc:in_color_matrix=bt709:{_EXACT},format=rgb24"
_COLOUR_TAGS = "-color_range tv -colorspace bt709 -color_primaries bt709 -color_trc bt709"
# A file from elsewhere may only be an MP4 and may not name other files or addresses.
_SAFE_INPUT = ("-protocol_whitelist", "file", "-f", "mov", "-noautorotate")


def locate() -> str:
    """The ffmpeg program: $IMAGEIO_FFMPEG_EXE, else the one bundled with imageio-ffmpeg, else the system's.

    Raises CannotRunError when there is none.
    """
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except Exception as error:  # none was found, or the package is broken in one of many ways
        raise CannotRunError(
            f"There is no ffmpeg to write videos with: `{_GET}`, or set IMAGEIO_FFMPEG_EXE to an ffmpeg."
        ) from error


def check_encoder() -> str:
    """Prove that ffmpeg starts and has libx264; returns its path. A success is remembered.

    Raises CannotRunError with the end of what ffmpeg said.
    """
    exe = locate()
    _prove(exe)
    return exe


@cache
def _prove(exe: str) -> None:
    fix = f"`{_GET}`, or set IMAGEIO_FFMPEG_EXE to an ffmpeg that has libx264."
    if os.environ.get("IMAGEIO_FFMPEG_EXE"):
        fix = "IMAGEIO_FFMPEG_EXE names it; set that to an ffmpeg that has libx264, or unset it."
    command = [exe, "-hide_banner", "-encoders"]
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, **_quiet())
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRunError(f"ffmpeg at {exe} does not start ({_reason(error)}): {fix}") from error
    if result.returncode:
        raise CannotRunError(f"ffmpeg at {exe} fails ({_sentence(result.stderr) or result.returncode}): {fix}")
    if ENCODER not in result.stdout.decode(errors="replace").split():
        raise CannotRunError(f"ffmpeg at {exe} has no H.264 encoder {ENCODER}: {fix}")


def encode(frames: Frames, rate: Fraction, crf: int, target: Path, tags: Path) -> None:
    """Write ``frames`` (frames, height, width, 3), even sides, as an H.264 High MP4 at ``target``.

    ``tags`` is an ffmetadata file. Raises CannotRunError or JobFailedError with the end of what ffmpeg said; ``target``
    may then hold anything.
    """
    count, height, width, _ = frames.shape
    pictures = f"-f rawvideo -pix_fmt rgb24 -s {width}x{height} -framerate {rate} -i pipe:0 -f ffmetadata"
    output = (
        f"-map 0:v:0 -map_metadata 1 -vf {_TO_YUV} -frames:v {count} -c:v {ENCODER} -profile:v high -pix_fmt yuv420p "
        f"-crf {crf} -preset medium -threads {THREADS} {_COLOUR_TAGS} -movflags +faststart -tag:v avc1 -f mp4"
    )
    command = ["-y", *pictures.split(), "-i", f"file:{tags}", *output.split(), f"file:{target}"]
    with Child(check_encoder(), command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        child.feed(frames)
        child.finish("encode the clip")


def count_frames(path: Path) -> int:
    """Decode the whole video, keep nothing, and count. Raises JobFailedError when it does not decode."""
    command = ["-xerror", *_SAFE_INPUT, "-i", f"file:{path}", "-map", "0:v:0", "-f", "framecrc", "pipe:1"]
    with Child(locate(), command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        lines = sum(1 for line in child.output if not line.startswith(b"#"))
        child.finish("decode the clip")
    return lines


def decode(path: Path, count: int, height: int, width: int) -> Frames:
    """The ``count`` frames of an H.264 file as RGB, full range, shape (count, height, width, 3).

    Raises JobFailedError if there are fewer, or more than 4 GiB.
    """
    told = f"{count} frames of {width}x{height}"
    if not count or not width or not height or count * height * width * 3 > MAX_DECODED_BYTES:
        raise JobFailedError(f"{path} says it holds {told}: from one frame to 4 GiB of them can be decoded.")
    output = f"-map 0:v:0 -vf {_TO_RGB} -frames:v {count} -f rawvideo pipe:1"
    command = [*_SAFE_INPUT, "-i", f"file:{path}", *output.split()]
    frames = np.empty((count, height, width, 3), np.uint8)
    with Child(locate(), command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        for number, frame in enumerate(frames):
            if _read_into(child.output, frame.data.cast("B")):
                continue
            child.finish("decode the clip")
            raise JobFailedError(f"{path} says it holds {told}, but {number} could be decoded.")
        child.finish("decode the clip")
    return frames


def _read_into(stream: IO[bytes], target: memoryview) -> bool:
    """Fill ``target``; False when the stream ends before."""
    while target:
        size = stream.readinto(target)  # type: ignore[attr-defined]  # every pipe of Popen has it
        if not size:
            return False
        target = target[size:]
    return True


class Child:
    """A running ffmpeg, ended when the block is left. Its messages are read at once, so that it never waits."""

    def __init__(self, exe: str, arguments: Sequence[str], stdin: int, stdout: int) -> None:
        command = [exe, "-hide_banner", "-nostdin", "-loglevel", "error", *arguments]
        try:
            self._process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, **_quiet())
        except OSError as error:
            raise CannotRunError(f"ffmpeg at {exe} does not start ({_reason(error)}).") from error
        self._messages = bytearray()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    @property
    def output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def feed(self, frames: Frames) -> None:
        """Write the frames to its input and close it. A child that stops reading is for `finish` to explain."""
        assert self._process.stdin is not None
        try:
            for frame in frames:
                self._process.stdin.write(np.ascontiguousarray(frame).data.cast("B"))
            self._process.stdin.close()
        except OSError:  # a broken pipe; Windows says "invalid argument"
            pass

    def finish(self, task: str) -> None:
        """Wait for success, else raise JobFailedError, or CannotRunError for an ffmpeg that lacks the encoder."""
        try:
            code = self._process.wait(timeout=600)
        except subprocess.TimeoutExpired as error:
            raise JobFailedError(f"ffmpeg could not {task}: it has done nothing for ten minutes.") from error
        self._reader.join(timeout=10)
        if code:
            said = _sentence(bytes(self._messages)) or f"exit code {code}"
            kind = CannotRunError if "unknown encoder" in said.lower() else JobFailedError
            raise kind(f"ffmpeg could not {task} ({said}).")

    def _listen(self) -> None:
        assert self._process.stderr is not None
        while chunk := os.read(self._process.stderr.fileno(), 4096):
            self._messages += chunk
            del self._messages[:-_TAIL_BYTES]

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(timeout=10)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream:
                with contextlib.suppress(OSError):  # what was still to be written has no reader
                    stream.close()


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


def _sentence(messages: bytes) -> str:
    """The last lines that ffmpeg said, in one line of at most 500 characters."""
    lines = [line.strip() for line in messages.decode(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-4:])[-500:]


def _quiet() -> dict[str, Any]:
    """No window on Windows, and no Ctrl-C from the terminal: the parent decides when its child ends."""
    if os.name == "nt":
        return {"creationflags": 0x08000000 | 0x00000200}  # CREATE_NO_WINDOW, CREATE_NEW_PROCESS_GROUP
    return {"start_new_session": True}
