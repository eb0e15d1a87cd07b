"""Programs that take ffmpeg's place in tests: they fail, lie or flood, or change one argument and run the real one."""

from __future__ import annotations

import sys
from pathlib import Path

import imageio_ffmpeg
import pytest

needs_shell = pytest.mark.skipif(sys.platform == "win32", reason="stand-in programs are shell scripts")

LISTS_ENCODER = """
if "-encoders" in args:
    print(" V....D libx264    H.264")
    sys.exit(0)
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> Path:
    """Make a program of the Python lines ``body`` (names: args, real, sys, os) the ffmpeg of this test."""
    script, program = folder / "stand_in.py", folder / "ffmpeg"
    real = str(imageio_ffmpeg.get_ffmpeg_exe())
    script.write_text(f"import os, sys\nargs = sys.argv[1:]\nreal = {real!r}\n{body}")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -ES "{script}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(program))
    return program
