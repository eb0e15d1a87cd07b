"""What a person can do about what is missing: each as a clause that completes a sentence. The one place for commands
and addresses.

Releases: CUDA 13.0 builds of torch 2.13 have code for compute capability 7.5 and newer and need driver 580; CUDA 12.6
builds have code for 5.0 to 9.0; ROCm builds are 7.2 (PyTorch, RELEASE.md). SGLang documents how to get its CPU kernels
on its own page.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath, PureWindowsPath

TORCH_INDEX = "https://download.pytorch.org/whl"
SGLANG_CPU_PAGE = "https://docs.sglang.io/docs/hardware-platforms/cpu_server"
AITER_PAGE = "https://github.com/ROCm/aiter"


def python(executable: PurePath, folder: PurePath) -> str:
    """How a shell in `folder` starts this Python: in short where it lies below."""
    short = executable.relative_to(folder) if executable.is_relative_to(folder) else executable
    if isinstance(short, PureWindowsPath):
        return quoted(str(short.with_suffix("")), windows=True)
    return quoted(str(short))


def quoted(word: str, windows: bool = os.name == "nt") -> str:
    """One word of a command line as a shell takes it for one."""
    if windows:
        return f'"{word}"' if set(word) & set(" <>|&^") else word
    return shlex.quote(word)


# The shell's own folder: a worker's is another one.
PYTHON = python(Path(sys.executable or "python"), Path(os.environ.get("PWD") or os.getcwd()))


def pip(*arguments: str) -> str:
    """The command that has pip change the environment that this runs in."""
    return " ".join([PYTHON, "-m pip", *map(quoted, arguments)])


FEW, NEAR, FEWEST = 8, 3, 3
"""Names that are all told, those told of more, and letters that are looked for within names."""


def nearest(word: str, names: Iterable[str], where: str, first: Sequence[str] = ()) -> str:
    """Which name may have been meant, as a clause: the nearest, else a few; and where the rest of many stand ("the
    README lists"). first: those of many to tell when none is near.
    """
    known = list(names)
    asked = word[:100].lower()
    within = [name for name in known if len(asked) >= FEWEST and asked in name]
    near = difflib.get_close_matches(asked, known, NEAR) or within[:NEAR]
    few = len(known) <= FEW
    if near:
        told = "did you mean " + " or ".join(f'"{name}"' for name in near[: 1 if few else NEAR])
    else:
        told = f"possible {'are' if len(known) > 1 else 'is'} {', '.join(known if few else (first or known)[:NEAR])}"
    return told if few else f"{told}; {where} all {len(known)}"


def torch_command(index: str) -> str:
    return pip("install", "--force-reinstall", "torch", "--index-url", f"{TORCH_INDEX}/{index}")


def torch_for(arch: str) -> str:
    """How to get a torch with code for this GPU."""
    if arch.startswith("gfx"):
        return f"install torch for ROCm 7.2: `{torch_command('rocm7.2')}`"
    match = re.fullmatch(r"sm_(\d+)", arch)
    if match and int(match[1]) < 75:
        return f"install torch for CUDA 12.6: `{torch_command('cu126')}`"
    return f"install torch for CUDA 13.0 (driver 580 or newer): `{torch_command('cu130')}`"


SGL_CPU = f"SGLang's page says how to get its CPU kernels: {SGLANG_CPU_PAGE}"
SGL_HOPPER = f"`{pip('install', 'sglang-kernel')}` in the release made for your torch"
AITER = f"AMD's kernels are the package amd-aiter, not aiter: {AITER_PAGE}"
