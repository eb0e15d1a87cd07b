"""The probe's only way to the outside: files, commands, environment, packages, child processes.

Everything the probe learns passes through a Host, so a machine can be recorded once (`Recorder`) and probed again
anywhere (`Recorded`): that is how machines nobody here owns are tested. `python -m accel.probing.record > machine.json`
writes such a record; it holds hardware and version facts only, no user name, no path of the home folder, no address.
"""

from __future__ import annotations

import fnmatch
import glob
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).parents[2]
BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from accel.probing.runs import main; main(sys.argv[1:])"
START, DONE = "@proof start ", "@proof done "


@dataclass(frozen=True)
class Outcome:
    """How a child ended. `code` is the exit status, negative for death by that signal; None when it was stopped at its
    limit."""

    stdout: str
    stderr: str
    code: int | None


@dataclass(frozen=True)
class Distribution:
    """An installed package by its metadata alone. `torch` is the torch release it asks for, empty when it doesn't
    say."""

    name: str
    version: str
    folder: str = ""
    torch: str = ""


class Host(Protocol):
    """What a reader may ask. Everything answers None or empty rather than raise."""

    system: str
    arch: str
    python: str
    environ: Mapping[str, str]

    def read(self, path: str) -> str | None: ...
    def glob(self, pattern: str) -> list[str]: ...
    def run(self, *command: str, timeout: float = 5.0) -> str | None: ...
    def number(self, name: str) -> int | None: ...
    def has(self, program: str) -> bool: ...
    def distribution(self, name: str) -> Distribution | None: ...
    def child(self, tasks: Sequence[str], environ: Mapping[str, str], timeout: float) -> Outcome: ...


class LocalHost:
    """This machine."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.system = platform.system().lower()
        self.arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
        self.python = platform.python_version()
        self.environ: Mapping[str, str] = dict(os.environ if environ is None else environ)

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace").strip("\0")
        except OSError:
            return None

    def glob(self, pattern: str) -> list[str]:
        return sorted(glob.glob(pattern))

    def run(self, *command: str, timeout: float = 5.0) -> str | None:
        """Standard output of `command`, None when it is missing, fails or takes more than `timeout` seconds."""
        try:
            options: Any = {"capture_output": True, "text": True, "errors": "replace", "check": False}
            done = subprocess.run(command, timeout=timeout, **options)
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
        return done.stdout if done.returncode == 0 else None

    def number(self, name: str) -> int | None:
        """A count that only the running process can ask for; None where this system can't tell."""
        try:
            return _NUMBERS[name]()
        except (AttributeError, ImportError, OSError, ValueError, NotImplementedError):
            return None

    def has(self, program: str) -> bool:
        return shutil.which(program) is not None

    def distribution(self, name: str) -> Distribution | None:
        try:
            found = importlib.metadata.distribution(name)
            version, needs = found.version, found.requires or []
        except (importlib.metadata.PackageNotFoundError, OSError, KeyError, ValueError):
            return None
        torch = next((need for need in needs if re.match(r"torch\b(?!-)", need)), "")
        wanted = re.sub(r"^torch\s*|\s*;.*$|[()]", "", torch)
        return Distribution(name, version or "unknown", str(found.locate_file("")), wanted)

    def child(self, tasks: Sequence[str], environ: Mapping[str, str], timeout: float) -> Outcome:
        """Runs `tasks` one after another in a fresh interpreter; see `accel.probing.runs` for what it prints."""
        # -P, and our folder last: nothing in the current folder or in ours may hide a library
        command = [sys.executable, "-P", "-X", "utf8", "-c", BOOT, str(ROOT), *tasks]
        try:
            done = subprocess.run(
                command,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as stopped:
            return Outcome(_text(stopped.stdout), _text(stopped.stderr), None)
        except (OSError, ValueError) as error:
            return Outcome("", f"the test process could not be started: {error}", 1)
        return Outcome(done.stdout, done.stderr, done.returncode)


def _text(output: str | bytes | None) -> str:
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output or ""


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _physical() -> int | None:
    import psutil

    return psutil.cpu_count(logical=False)


def _memory() -> int:
    try:
        import psutil
    except ImportError:  # accel alone, without its dependencies
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(psutil.virtual_memory().total)


def _windows_feature(number: int) -> int:
    import ctypes

    return int(bool(ctypes.windll.kernel32.IsProcessorFeaturePresent(number)))  # type: ignore[attr-defined, unused-ignore]


_NUMBERS: dict[str, Any] = {
    "affinity": _affinity,
    "logical": os.cpu_count,
    "physical": _physical,
    "memory": _memory,
    # winnt.h: PF_AVX2_INSTRUCTIONS_AVAILABLE, PF_AVX512F_INSTRUCTIONS_AVAILABLE, PF_ARM_NEON_..., PF_ARM_SVE_...
    "windows_avx2": lambda: _windows_feature(40),
    "windows_avx512f": lambda: _windows_feature(41),
    "windows_neon": lambda: _windows_feature(19),
    "windows_sve": lambda: _windows_feature(46),
}


@dataclass
class Recorded:
    """A machine from a record: answers what was recorded and "not there" to everything else.

    `runs` maps each child task to its result and what else it printed ({"result": {...}, "output": [lines]}), or to how
    it ended the child: {"signal": 4} | {"timeout": true} | {"exit": 1, "stderr": "..."}. A task without an entry
    reports failure.
    """

    data: Mapping[str, Any]
    tried: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.system: str = self.data["system"]
        self.arch: str = self.data["arch"]
        self.python: str = self.data.get("python", "3.12.3")
        self.environ: Mapping[str, str] = self.data.get("environ", {})

    def read(self, path: str) -> str | None:
        return self.data.get("files", {}).get(path)

    def glob(self, pattern: str) -> list[str]:
        parts = pattern.split("/")
        known = [(path, path.split("/")) for path in self.data.get("files", {})]
        # part by part, since a glob's star stops at a slash
        fits = [path for path, names in known if len(names) == len(parts) and all(map(fnmatch.fnmatch, names, parts))]
        return sorted(fits)

    def run(self, *command: str, timeout: float = 5.0) -> str | None:
        return self.data.get("commands", {}).get(" ".join(command))

    def number(self, name: str) -> int | None:
        return self.data.get("numbers", {}).get(name)

    def has(self, program: str) -> bool:
        return program in self.data.get("programs", ())

    def distribution(self, name: str) -> Distribution | None:
        found = self.data.get("distributions", {}).get(name)
        return Distribution(name, found["version"], "/site", found.get("torch", "")) if found else None

    def child(self, tasks: Sequence[str], environ: Mapping[str, str], timeout: float) -> Outcome:
        self.tried.append(tuple(tasks))
        lines: list[str] = []
        for task in tasks:
            run = self.data.get("runs", {}).get(task, {"result": {"ok": False, "reason": f"{task} was not recorded"}})
            lines.append(START + task)
            if "result" not in run:
                code = None if run.get("timeout") else -run["signal"] if "signal" in run else run["exit"]
                return Outcome("\n".join(lines), run.get("stderr", ""), code)
            lines += [*run.get("output", []), DONE + task + " " + json.dumps(run["result"])]
        return Outcome("\n".join(lines), "", 0)
